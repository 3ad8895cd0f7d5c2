/* watch.h - following a training job to its end. */
#ifndef CLI_WATCH_H
#define CLI_WATCH_H

#include "clients/cli/cli.h"

/* The option that watch_job knows: a row of a command's table. */
#define WATCH_OPTIONS                                                                                                  \
	{                                                                                                              \
		"no-curve", OPTION_FLAG, NULL, "do not draw the losses above the progress line of a terminal", NULL    \
	}

/* Show the job's events as they happen, with all that it has had so far, and reconnect when the connection is lost. At
 * a terminal the losses are drawn above the progress line where there is room for them. Ctrl-C ends the watching, not
 * the job. At the end the new model's id is printed on stdout (--json: every event, then the job).
 * Returns the exit status: 0 when the job has succeeded. */
int watch_job(cli *c, const char *id);

#endif
