/* watch.h - following a training job to its end. */
#ifndef CLI_WATCH_H
#define CLI_WATCH_H

#include "clients/cli/cli.h"

/* Show the job's events as they happen, and reconnect when the connection is lost. Ctrl-C ends the
 * watching, not the job. At the end the new model's id is printed on stdout (--json: every event, then the job).
 * Returns the exit status: 0 when the job has succeeded. */
int watch_job(cli *c, const char *id);

#endif
