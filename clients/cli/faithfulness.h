/* faithfulness.h - results of evaluations of explanations, for the commands of faithfulness.c and
 * faithfulness_jobs.c. */
#ifndef CLI_FAITHFULNESS_H
#define CLI_FAITHFULNESS_H

#include "clients/cli/cli.h"

/* Follow a job of an evaluation to its end, with a progress line on stderr; then show its numbers, and write the page
 * where --html is given. Returns the exit status. A Ctrl-C ends the program, and not the job. */
int faithfulness_follow(cli *c, const char *id);

#endif
