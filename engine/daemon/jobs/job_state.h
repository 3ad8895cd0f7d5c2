/* job_state.h - changes a job: its document, the events that report the change, and the ledger, as one.
 *
 * Loop thread only. */
#ifndef ENGINE_DAEMON_JOBS_JOB_STATE_H
#define ENGINE_DAEMON_JOBS_JOB_STATE_H

#include "engine/daemon/jobs/job_table.h"

enum {
	JOB_STATE_MAX_UNWRITTEN = 128,    /* items; beyond this metrics are dropped, and beyond twice this everything
	                                   * else */
	JOB_STATE_MAX_FAILURES = 3,       /* consecutive failures of the device */
	JOB_STATE_MAX_PAUSE_SECONDS = 300 /* between two attempts */
};

/* Queue an event or a checkpoint's row for the next commit (taken over; NULL: STATUS_NOMEM). */
status job_state_note(job *j, json_t *item);
/* Write something that has happened: a failure is logged, and jobs_tick retries. stale: include the row. */
void job_state_write_soon(jobs *all, job *j);

/* Change a job in a way that may be refused: on failure nothing has changed. next, events (an array) are taken over;
 * NULL: STATUS_NOMEM. */
status job_state_change(jobs *all, job *j, job_state state, json_t *next, json_t *events, error *err);
/* Add a queued job whose document, files and options have been checked. The document is shared. events: an array, taken
 * over, part of the same commit (NULL: STATUS_NOMEM). */
status job_state_add(jobs *all, const char *id, json_t *document, json_t *events, error *err);
/* Record a change that has happened. STATUS_OK once it is in memory; the ledger may follow later. STATUS_NOMEM. */
status job_state_follow(jobs *all, job *j, job_state state, json_t *next, json_t *events);
/* End a job and release it. Errors as for job_state_change. */
status job_state_end(jobs *all, job *j, json_t *next, json_t *events, error *err);

/* The job's run has ended or could not start, with `err`: pause or end the job, depending on the kind of failure. */
void job_state_fail(jobs *all, job *j, const error *err);
/* Pause a job during which the engine has died too often without progress; only a client resumes it. False: it is not
 * such a job. */
bool job_state_quarantine(jobs *all, job *j);
/* Record that the job passed its furthest step: the next failure counts as the first. */
void job_state_progress(jobs *all, job *j, int64_t step);
/* Queue paused jobs whose time has come, and write what the ledger lacks. */
void job_state_tick(jobs *all);

#endif
