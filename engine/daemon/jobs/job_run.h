/* job_run.h - the run of one job: what it reads is checked and its corpus is built on the pool, then it trains on the
 * executor.
 *
 * It begins from the newest checkpoint that is intact. A run outlives its job's state: when the job is cancelled the
 * run is stopped, and is freed when neither the pool nor the executor uses it. Loop thread only. */
#ifndef ENGINE_DAEMON_JOBS_JOB_RUN_H
#define ENGINE_DAEMON_JOBS_JOB_RUN_H

#include "engine/recipe/corpus.h"
#include "engine/daemon/jobs/training.h"
#include "engine/daemon/requests/engine.h"

typedef struct job_run job_run;

/* The run's reports, each with the id of its job, which may have ended meanwhile. */
typedef struct job_run_listener {
	void (*progress)(void *context, const char *id, const train_progress *p);
	/* preview: what the model wrote after an evaluation, borrowed, or NULL. */
	void (*metrics)(void *context, const char *id, const train_progress *p, bool evaluated, json_t *preview);
	/* True if the ledger has all events of the job. */
	bool (*written)(void *context, const char *id);
	void (*event)(void *context, const char *id, json_t *event); /* taken over; NULL: there was no memory for it */
	void (*checkpoint)(void *context, const char *id, json_t *row); /* borrowed */
	/* A checkpoint cannot be used. Not STATUS_OK: that could not be noted, and the run ends. */
	status (*damaged)(void *context, const char *id, int64_t step, const error *why);
	/* The run is over and will be freed. result: the finished model's folder, NULL when it did not finish;
	 * err: STATUS_OK when it was stopped, or when its checkpoint was found damaged and it should begin again.
	 */
	void (*ended)(void *context, const char *id, const char *result, const train_progress *p, const error *err);
} job_run_listener;

/* Where a run may begin. */
typedef struct job_run_from {
	int64_t *steps; /* of checkpoints, newest first; malloc'ed */
	size_t n;
	bool damaged; /* there are others, which are damaged */
} job_run_from;

/* Begin the run of a job; from->steps is taken over, also on failure, and so are the texts, if there are any: their
 * files are checked, but not read again. On failure nothing runs. */
status job_run_begin(job_run **out, engine *e, const char *id, const json_t *document, const job_run_from *from,
                     corpus_texts *texts, const job_run_listener *listener, void *context, error *err);
const char *job_run_id(const job_run *r);
/* End, with a checkpoint or without. `ended` follows. */
void job_run_stop(job_run *r, bool save);

#endif
