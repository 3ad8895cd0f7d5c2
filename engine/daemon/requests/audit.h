/* audit.h - a file with a line of JSON for each request to change a key, a model or a job: who asked for what, when,
 * and with which result. Never a prompt, a text or a secret.
 *
 * The file is opened for each line, so it may be renamed at any time. A line is on disk before its request is answered.
 */
#ifndef ENGINE_DAEMON_REQUESTS_AUDIT_H
#define ENGINE_DAEMON_REQUESTS_AUDIT_H

#include "engine/daemon/net/stream.h"

/* Create the file if it does not exist. STATUS_IO: it cannot be written. */
status audit_open(const char *path, error *err);
/* Append a line for a request that is being answered, if its method is one of these. answer: its RESULT or ERROR,
 * or NULL. A failure is logged. */
void audit_write(const char *path, const stream *s, status result, const char *answer);

#endif
