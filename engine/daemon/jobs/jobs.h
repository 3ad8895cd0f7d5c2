/* jobs.h - training jobs: the queue, the states of a job, and the methods job.* and checkpoint.delete.
 *
 *            create                      ┌──── cancel ────┐
 *   (checked) ────▶ queued ──▶ running ──┼─▶ succeeded    ▼
 *                    ▲ ▲ │        │      └─▶ failed ┐  cancelled ┐
 *                    │ │ └─ pause ┤                 │     ▲      │
 *                    │ └─ resume ─ paused ─── cancel ─────┘      │
 *                    │  or retry ┘   ▲ a failure of the machine  │
 *                    └───────────── resume, from a checkpoint ◀──┘ (failed too)
 *
 * Failures are of two kinds. One of the job itself (its loss is not finite, its options do not fit the device) ends the
 * job: "failed". One of the machine (disk full, I/O error, no memory, a lost device, a damaged file) pauses it: the
 * document's additive.paused_reason holds the error and the time of the next try. Tries come after 1 s, 2 s, … 300 s,
 * without end, and begin anew at 1 s when the job gets further than ever before; only a device that fails more than
 * three times in a row ends the job. job.resume tries at once. It also puts a failed or cancelled job that has an
 * intact checkpoint into the queue again, under the same id.
 *
 * Jobs that have not ended are held in memory, in the order in which they will run; one runs at a time. A change of
 * state and the event that reports it are one commit. A change that a client asks for is made only when the ledger
 * takes it. A change that has happened (a run has ended) is made in memory at once and is written as soon as the
 * ledger takes it, so a job is "running" exactly while it has a run, whatever the disk does. After a stop of any kind a
 * job that the ledger calls running comes first again and goes on from its newest intact checkpoint.
 * ("validating_files" is never seen: a job is validated before it exists.)
 *
 * A job that is paused or cancelled is so at once; the run on the executor ends a little later, and
 * until then no other begins. Loop thread only. */
#ifndef ENGINE_DAEMON_JOBS_JOBS_H
#define ENGINE_DAEMON_JOBS_JOBS_H

#include "engine/daemon/jobs/training.h"
#include "engine/daemon/net/stream.h"
#include "engine/daemon/requests/engine.h"

typedef struct jobs jobs;

typedef enum job_state { JOB_QUEUED, JOB_RUNNING, JOB_PAUSED } job_state;

typedef struct job {
	struct job *next;
	char id[STORE_ID_BYTES];
	job_state state;
	json_t *document;  /* what the API answers; the ledger's row, unless `stale` */
	json_t *unwritten; /* array: events and checkpoints for the next commit, oldest first */
	bool stale;        /* the document has changed since it was written, in more than its progress */
	uint64_t late_ns;  /* the ledger has refused it: when to try again; 0: it has not */
	bool unsettled;    /* its run has ended with `reason`, and there was no memory to change the state */
	error reason;      /* the machine's last failure; STATUS_OK: none since the last progress */
	int failures, device_failures; /* in a row */
	uint64_t retry_ns;             /* paused by a failure: when to try again; 0: not by itself */
	int64_t best_step;             /* the furthest any run of it got */
	int64_t metrics_step;          /* of the last metrics event; -1: not looked up yet */
} job;

status jobs_new(jobs **out, engine *e, error *err); /* reads those that have not ended */
/* Begin what waits. */
void jobs_start(jobs *all);
/* Retries and retention; every ENGINE_TICK_MS. */
void jobs_tick(jobs *all);
/* Let the running job save a checkpoint and end its run; begin no other. */
void jobs_stop(jobs *all);
bool jobs_stopped(const jobs *all);
void jobs_free(jobs *all);

/* The document of a job, ended or not (new reference). STATUS_NOT_FOUND. */
status jobs_document(const jobs *all, const char *id, json_t **out, bool *ended, error *err);
/* A job with a document whose files and options have been checked; it is queued. The document is shared; events: an
 * array, taken over, written in the same commit (NULL: STATUS_NOMEM). */
status jobs_add(jobs *all, const char *id, json_t *document, json_t *events, error *err);
/* Forget a job that was added in a commit which has failed. */
void jobs_discard(jobs *all, const char *id);
/* Is this the name of a model, or will a job give it to one? */
bool jobs_name_taken(const jobs *all, const char *result);
bool jobs_use_file(const jobs *all, const char *id);
bool jobs_use_model(const jobs *all, const char *id);
int jobs_waiting(const jobs *all);
int jobs_running(const jobs *all);

void jobs_create(stream *s);
void jobs_list(stream *s);
void jobs_get(stream *s);
void jobs_cancel(stream *s);
void jobs_pause(stream *s);
void jobs_resume(stream *s);
void jobs_delete(stream *s);
void jobs_events(stream *s);
void jobs_watch(stream *s);
void jobs_checkpoints(stream *s);
void jobs_delete_checkpoint(stream *s);

#endif
