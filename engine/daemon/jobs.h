/* jobs.h - training jobs: the queue, what may become of a job, and the methods job.*.
 *
 *            create                      ┌──── cancel ────┐
 *   (checked) ────▶ queued ──▶ running ──┼─▶ succeeded    ▼
 *                     ▲ │         │      └─▶ failed     cancelled
 *                     │ └─ pause ─┤                       ▲
 *                     └─ resume ─ paused ──── cancel ─────┘
 *
 * Jobs that have not ended are held in memory, in the order in which they will run; one runs at a time. The
 * ledger always says what was last acknowledged: a job that was running when the engine stopped, however it stopped,
 * comes first again and goes on from its last checkpoint. ("validating_files" is never seen: a job is
 * validated before it exists.)
 *
 * A job that is paused or cancelled is so at once; the run on the executor ends a little later, and
 * until then no other begins. Loop thread only. */
#ifndef ENGINE_DAEMON_JOBS_H
#define ENGINE_DAEMON_JOBS_H

#include "engine/daemon/stream.h"
#include "engine/daemon/training.h"

typedef struct jobs jobs;

typedef enum job_state { JOB_QUEUED, JOB_RUNNING, JOB_PAUSED } job_state;

typedef struct job {
	struct job *next;
	char id[STORE_ID_BYTES];
	job_state state;
	int device_failures; /* in a row */
	json_t *document;    /* the truth about progress; the ledger has it as of the last change of state */
} job;

status jobs_new(jobs **out, struct engine *e, error *err); /* reads those that have not ended */
/* Begin what waits. */
void jobs_start(jobs *all);
/* Let the running job save a checkpoint and end its run; begin no other. */
void jobs_stop(jobs *all);
bool jobs_stopped(const jobs *all);
void jobs_free(jobs *all);

/* The document of a job, ended or not (new reference). STATUS_NOT_FOUND. */
status jobs_document(const jobs *all, const char *id, json_t **out, bool *ended, error *err);
/* A job with a document whose files and options have been checked; it is queued. The document is shared. */
status jobs_add(jobs *all, const char *id, json_t *document, error *err);
/* Forget a job that was added in a commit which has failed. */
void jobs_discard(jobs *all, const char *id);
/* Is this the name of a model, or will a job give it to one? */
bool jobs_name_taken(const jobs *all, const char *result);
/* Add an event to the job's. */
void jobs_say(jobs *all, const char *id, const char *level, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
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
void jobs_events(stream *s);
void jobs_watch(stream *s);
void jobs_checkpoints(stream *s);

#endif
