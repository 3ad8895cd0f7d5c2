/* job_document.h - the JSON of jobs, events and checkpoints, as OpenAI's API has them.
 *
 * A job's document is the API's object and three members more, which are for us: "request" (job_request.h); "damaged",
 * an object of step to reason, where there are damaged checkpoints; "trace" (queue/job_trace.h), if it is traced. */
#ifndef ENGINE_RECIPE_JOB_DOCUMENT_H
#define ENGINE_RECIPE_JOB_DOCUMENT_H

#include "engine/recipe/job_estimate.h"

/* A member that is a string; NULL when it is not. */
#define JOB_DOCUMENT_OBJECT "fine_tuning.job"
/* True if the row is a training job. The ledger's jobs are of several kinds. */
bool job_document_is(const json_t *document);
const char *job_document_text(const json_t *document, const char *key);

/* Ids: of a job, and of its checkpoint, "ckpt-…-STEP" with the job's digits. */
#define JOB_ID_PREFIX "ftjob-"
#define JOB_CHECKPOINT_PREFIX "ckpt-"
enum { JOB_ID_DIGITS = 24 };
void job_document_checkpoint_name(const char *job, int64_t step, char out[STORE_ID_BYTES]);

/* New references; NULL when out of memory. params: kept as they are, as the job's recipe. */
json_t *job_document_new(const char *id, json_t *params, const job_request *r, double holdout, const job_estimate *e);
/* Every training option with its value, and what is known of the job before it starts. */
json_t *job_document_resolved(const job_request *r, const job_estimate *e);
/* The public document of the job: `additive` has the recipe and the resolved options (null for a job from before these
 * were kept), and the engine's own members are removed. */
json_t *job_document_public(const json_t *job);
json_t *job_document_event(const char *level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* preview: put into the data of an evaluation; borrowed, or NULL. */
json_t *job_document_metrics(const train_progress *p, bool evaluated, json_t *preview);
json_t *job_document_checkpoint(const char *job, const char *name, const train_progress *p);
/* STATUS_UNAVAILABLE: why no checkpoint is saved while the ledger lacks rows of evaluations. After a crash the job would
 * continue from it, and the rows would never be made again. */
status job_document_refuse_checkpoint(error *err);
/* A checkpoint as the API shows it: additive.damaged says why it cannot be used, as its job (NULL: unknown) has it. */
json_t *job_document_shown(const json_t *checkpoint, const json_t *job);
int job_document_device_failures(const json_t *job);
void job_document_forget_device_failures(json_t *job);
/* The words with which a job's checkpoint was found damaged; NULL: it was not. */
const char *job_document_damage(const json_t *job, int64_t step);

/* A changed copy of a job, which shares what is not changed. NULL when out of memory. */
json_t *job_document_in_state(const json_t *job, const char *job_status); /* without a reason, error or end */
/* retry_at: Unix time; 0: a client has to resume it. device_failures: in a row, so far. They stay with the job in whatever state it comes to. */
json_t *job_document_paused(const json_t *job, const error *reason, int64_t retry_at, int device_failures);
json_t *job_document_ended(const json_t *job, const char *job_status, const error *cause); /* why: NULL unless failed */
/* True if the job only looks for a rate: its weights have diverged, so it leaves no model. */
bool job_document_is_range_test(const json_t *job);
/* True if the result of the job is an adapter, not a model. */
bool job_document_is_adapter(const json_t *job);
/* name: of the model; NULL: there is none. */
json_t *job_document_succeeded(const json_t *job, const char *name, const train_progress *p);

/* Change a document; false when out of memory: it is as it was. */
bool job_document_set_damage(json_t *job, int64_t step, const char *cause); /* why NULL: it is whole again */
bool job_document_progress(json_t *job, const train_progress *p);

#endif
