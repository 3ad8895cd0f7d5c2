/* job_request.h - the request of a training job, with every default filled in.
 *
 * A request is checked completely before the job exists: fields and files, then the texts (corpus.h), then the options
 * that depend on their length. It is kept in the job's document as JSON, so that a run resumed after a restart has
 * exactly the same options. */
#ifndef ENGINE_RECIPE_JOB_REQUEST_H
#define ENGINE_RECIPE_JOB_REQUEST_H

#include "engine/recipe/job_defaults.h"
#include "engine/recipe/job_sources.h"
#include "engine/train/trainer.h"

enum {
	JOB_REQUEST_SAVE_SECONDS = 30 /* between checkpoints, when checkpoint_every is not given */
};

typedef struct job_request {
	const architecture *architecture;
	job_base *base;    /* the model to continue from; NULL: from scratch */
	json_t *config;    /* every key */
	void *parsed;      /* the typed configuration; dims are its dimensions */
	json_t *tokenizer; /* spec; from scratch only */
	json_t *classes;   /* the names of the model's classes; NULL: it has none, or those of the training file */
	model_dims dims;
	train_options options;
	job_given given;
	bool adapter;         /* an adapter of `base` is trained */
	json_t *lora;         /* {"rank", "alpha", "targets"?} of a low-rank adapter (lora.h); NULL: a state adapter */
	bool on_host;         /* a processor trains it, with the machine's memory */
	double base_rate;     /* the rate for a learning_rate_multiplier of 1 */
	int64_t epochs;       /* 0: auto */
	int64_t usual_epochs; /* without n_epochs; set by job_request_settle, 0: n_epochs is not given */
	int64_t fitted_length, fitted_source; /* chosen after the data; 0: not yet, or given */
	int64_t keep, save_seconds;
	int64_t ranks;                          /* processes; options.shard_optimizer is set, too */
	corpus_file training[CORPUS_MAX_FILES]; /* none in a dry run without files */
	size_t n_training;
	char validation[STORE_ID_BYTES]; /* a file's id; may be "" */
	double holdout;                  /* held-out share of `corpus` */
} job_request;

/* Add the usual architecture of the objective to job.create's params if they name no model. False: out of memory. */
bool job_request_name_model(json_t *params);
/* Read job.create's params, which name a model, checked by their schema. given: the tokenizer of the file that they
 * name, or NULL. Errors name the field as the client wrote it. */
status job_request_read(job_request *out, const job_sources *from, const json_t *params, const tokenizer *given,
                        error *err);
/* Describe what has to be built; borrows from r. */
void job_request_corpus(const job_request *r, const job_sources *from, corpus *out);
/* Fill in what depends on the texts that were built: the classes of a new model, and job_request_settle's. */
status job_request_take_texts(job_request *r, const json_t *params, const corpus *texts, error *err);
/* Fill in what depends on the number of training records. */
status job_request_settle(job_request *r, int64_t records, bool validates, error *err);
/* Name the hyperparameters that others override; "": none. */
void job_request_unused(const json_t *params, char *out, size_t size);
void job_request_fini(job_request *r);

/* Return the kind of adapter, as in the request; NULL: the result is a model. */
const char *job_request_kind(const job_request *r);

/* To and from the document. */
json_t *job_request_write(const job_request *r, double holdout);
/* True if the file with that id is among those that a stored request trains on or validates with. */
bool job_request_names_file(const json_t *stored, const char *id);
/* The corpus and training plan of a stored request. The plan gets a configuration of its own; the corpus borrows
 * from `stored`. */
status job_request_restore(const json_t *stored, const job_sources *from, corpus *c, train_options *options,
                           const architecture **a, error *err);

#endif
