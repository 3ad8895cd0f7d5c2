/* batch_run.h - the run of a batch.
 *
 *   pool:  read the file once (batch_input.h)
 *   loop:  until every line has a result
 *            pool:  read the next lines
 *            loop:  run up to BATCH_CONCURRENT of them at a time (batch_line.h)
 *                   commit the results, in the order of the lines
 *   both:  join the results to the output and error files (batch_output.h)
 *   loop:  commit the files, then delete the results from the ledger
 *
 * A commit has an event with the texts of consecutive lines, and the row with their number. After any stop the run
 * continues with the next line, so each line has exactly one result.
 *
 * A failure of the machine is no result: the run commits what it has and ends, and the queue retries it. If the engine
 * is only busy (429), the run stays, and repeats the lines that were refused: when another of its lines ends, or if none
 * runs, after a wait.
 *
 * If the engine has died during a run, the next run begins with one line at a time, for as many lines as were in memory.
 * If it dies three times in a row during one line, that line gets an error, and the run continues with the next one. */
#ifndef ENGINE_DAEMON_BATCHES_BATCH_RUN_H
#define ENGINE_DAEMON_BATCHES_BATCH_RUN_H

#include "engine/daemon/queue/job_queue.h"

enum {
	BATCH_CONCURRENT = 16,         /* lines at a time */
	BATCH_CHUNK = 128,             /* lines in memory */
	BATCH_CHUNK_BYTES = 8 << 20,   /* texts of these lines */
	BATCH_PENDING_BYTES = 1 << 20, /* results that are not committed; beyond it no line starts, and a commit has
	                                * several lines only within it */
	BATCH_MAX_OUTPUT = 512 << 20   /* all results; later lines get an error */
};

extern const queued_run_steps batch_run_steps;

/* The job's document now says when it was cancelled: end the run, keeping the results. */
void batch_run_cancel(queued_run *r);
/* Commit results that are due, continue after a wait, or let the run expire. */
void batch_run_tick(queued_run *r);

#endif
