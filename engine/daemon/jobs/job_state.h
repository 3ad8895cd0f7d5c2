/* job_state.h - changes of a job: its document, the events that report the change and the ledger, as one.
 *
 * Loop thread only. */
#ifndef ENGINE_DAEMON_JOBS_JOB_STATE_H
#define ENGINE_DAEMON_JOBS_JOB_STATE_H

#include "engine/daemon/jobs/job_table.h"

enum {
	JOB_STATE_MAX_UNWRITTEN = 128, /* items; beyond them metrics are left out, and beyond twice as many all else */
	JOB_STATE_MAX_FAILURES = 3,    /* of the device, in a row */
	JOB_STATE_MAX_PAUSE_SECONDS = 300 /* between two tries */
};

/* Keep an event or a checkpoint's row (taken over; NULL: STATUS_NOMEM) for the next commit. */
status job_state_note(job *j, json_t *item);
/* Write the job's row, if it is stale, and what has been noted as one commit, and serve the watches. On failure all of
 * it is kept. */
status job_state_write(jobs *all, job *j, error *err);
/* The same for what has happened already: a failure is logged, and jobs_tick tries again. The row with it: stale. */
void job_state_write_soon(jobs *all, job *j);

/* Change a job that a client may change: everything or, on failure, nothing. next, events (an array): taken over;
 * NULL: STATUS_NOMEM. */
status job_state_change(jobs *all, job *j, job_state state, json_t *next, json_t *events, error *err);
/* A job with a document whose files and options have been checked; it is queued. The document is shared; events: an
 * array, taken over, written in the same commit (NULL: STATUS_NOMEM). */
status job_state_add(jobs *all, const char *id, json_t *document, json_t *events, error *err);
/* Record a change that has happened: STATUS_OK once it is in memory; the ledger may follow later. STATUS_NOMEM. */
status job_state_follow(jobs *all, job *j, job_state state, json_t *next, json_t *events);
/* End a job and release it. Like job_state_change. */
status job_state_end(jobs *all, job *j, json_t *next, json_t *events, error *err);

/* The job's run has ended, or could not begin, with `why`: pause the job or end it, as the kind of failure asks. */
void job_state_fail(jobs *all, job *j, const error *why);
/* Is it a failure of the machine, which may pass, or of the job? */
bool job_state_may_pass(status s);
/* Pause a job under which the engine has died too often without progress; only a client resumes it. False: it is not
 * one. */
bool job_state_quarantine(jobs *all, job *j);
/* It got further than ever before: the next failure is a first one. */
void job_state_progress(jobs *all, job *j, int64_t step);
/* Queue what is paused and due, write what the ledger lacks. */
void job_state_tick(jobs *all);

#endif
