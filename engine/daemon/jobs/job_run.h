/* job_run.h - the run of one job. The pool checks the inputs and builds the corpus; the executor trains.
 *
 * A run starts from the newest intact checkpoint. It may outlive its job's state: cancelling a job stops its run, which
 * is freed when neither the pool nor the executor uses it. Loop thread only. */
#ifndef ENGINE_DAEMON_JOBS_JOB_RUN_H
#define ENGINE_DAEMON_JOBS_JOB_RUN_H

#include "engine/recipe/corpus.h"
#include "engine/daemon/jobs/training.h"
#include "engine/daemon/queue/job_queue.h"

typedef struct job_run job_run;

/* Receives the run's reports. context: the queue. Each has the id of the job, which may have ended in between. */
typedef struct job_run_listener {
	void (*progress)(void *context, const char *id, const train_progress *p);
	/* preview: the text generated after an evaluation, borrowed, or NULL. */
	void (*metrics)(void *context, const char *id, const train_progress *p, bool evaluated, json_t *preview);
	/* True if the ledger has all events of the job. */
	bool (*written)(void *context, const char *id);
	/* For the job's trace: a phase begins; a validation or a checkpoint ends that took `ns`. */
	void (*phase)(void *context, const char *id, const char *name);
	void (*span)(void *context, const char *id, const char *name, int64_t step, uint64_t ns);
	void (*event)(void *context, const char *id, json_t *event);    /* taken over; NULL: out of memory */
	void (*checkpoint)(void *context, const char *id, json_t *row); /* borrowed */
	/* A checkpoint is unusable. Any status other than STATUS_OK (it could not be recorded) ends the run. */
	status (*damaged)(void *context, const char *id, int64_t step, const error *reason);
	/* The run is over and will be freed. result: the folder of the finished model, NULL if it did not finish. err:
	 * STATUS_OK if it was stopped, or if its checkpoint was found damaged and it should start again. */
	void (*ended)(void *context, const char *id, const char *result, const train_progress *p, const error *err);
} job_run_listener;

/* Checkpoints from which a run may start. */
typedef struct job_run_from {
	int64_t *steps; /* steps of checkpoints, newest first; from malloc */
	size_t n;
	bool damaged; /* there are others, which are damaged */
} job_run_from;

/* Start the run of a job, which becomes the queue's. from->steps is taken over, also on failure, and so are the texts,
 * if given: their files are checked but not read again. On failure nothing is running. */
status job_run_begin(job_queue *q, const queued_job *j, const job_run_from *from, corpus_texts *texts,
                     const job_run_listener *listener, error *err);
/* Stop the queue's run with or without a checkpoint. `ended` follows. */
void job_run_stop(queued_run *base, bool save);

#endif
