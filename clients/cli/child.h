/* child.h - a program that `serve` keeps running.
 *
 * It lives in a process group of its own, so that Ctrl-C reaches only `serve`, which stops the programs in order. The
 * kernel sends it SIGTERM when its parent ends for any reason.
 *
 * If it ends without a request it is restarted after 0.1 s, and after twice as long each further time, up to 5 s. The
 * count is reset after it has run for a minute. CHILD_MAX_FAILURES deaths in a row end the service. SIGKILL comes from
 * outside (a user, or the kernel when memory is short) and is not counted: the process is restarted after 0.1 s, at
 * most once a second. An engine whose data folder has vanished is restarted every two seconds without limit, since the
 * folder may be mounted again. The engine itself handles repeated deaths during the same work
 * (engine/base/death_log.h). */
#ifndef CLI_CHILD_H
#define CLI_CHILD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "clients/cli/text.h"

enum { CHILD_MAX_ARGUMENTS = 128, CHILD_MAX_FAILURES = 6, CHILD_STEADY_MS = 60000 };

typedef struct child {
	const char *name;                         /* name of the program, beside our own */
	char *arguments[CHILD_MAX_ARGUMENTS + 1]; /* without the program itself; owned */
	int n_arguments;

	pid_t pid;  /* 0: not running */
	int output; /* read end of its stdout, or -1 */
	text line;  /* its current line, as far as it has been read */
	int failures;
	int64_t started_ms, restart_ms; /* restart_ms: when to start it again; 0: not waiting */
} child;

/* Milliseconds of a clock that only goes forward. */
int64_t child_now(void);
/* Make child_log write JSON from now on. */
void child_log_json(void);
/* Write a line to the log of `serve`, in the form of the programs that it runs. */
void child_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The path of a program beside this one; path needs PATH_MAX. */
bool child_find(const char *name, char *path);
/* Add an argument, malloc'ed, which becomes the child's. False when it is NULL or one too many. */
bool child_argument(child *c, char *argument);
/* Free what it holds; it has been stopped. */
void child_fini(child *c);
/* False, with a message, when it cannot be started. */
bool child_start(child *c);
/* It has ended with this wait status: plan to start it again. False: it has died too often. */
bool child_died(child *c, int wait_status);
/* Ask it to end, and wait at most ms; then, or when a further signal arrives at the signalfd `hurry`, kill it. False
 * when that was needed. Nothing happens when it is not running. */
bool child_stop(child *c, int ms, int hurry);

#endif
