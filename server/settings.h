/* settings.h - set a server's keys, certificate, names and limits from options: at the start, and again on SIGHUP.
 *
 * Keys, the certificate, names and plain limits change while it runs. Requests in progress continue; what they read
 * next is new. Files that cannot be read leave the former contents in use. Whether keys are needed, and whether
 * connections are encrypted, is decided at the start. */
#ifndef SERVER_SETTINGS_H
#define SERVER_SETTINGS_H

#include "proto/options.h"
#include "server/server.h"

typedef enum settings_result { SETTINGS_OK, SETTINGS_USAGE, SETTINGS_FAILED } settings_result;

/* Set keys, certificate, names and limits of a server that does not run yet. On failure, a message is logged; freeing
 * is necessary also then. */
settings_result settings_load(server *s, const options *o);
/* Apply what may change while the server runs. started: the options of settings_load; latest: those of the last reload
 * that was applied, or also of settings_load. Log each option of the rows that has changed and whether it is applied,
 * and for files whether they were read. False, with a message logged: the options are invalid and nothing changed. */
bool settings_reload(server *s, const option_row *rows, const options *started, const options *latest,
                     const options *next);
void settings_free(server *s);

#endif
