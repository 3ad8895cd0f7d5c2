/* job_sources.h - where the names in a request lead, and what the process that trains has: the daemon's store,
 * catalogue and device, or files and folders. */
#ifndef ENGINE_RECIPE_JOB_SOURCES_H
#define ENGINE_RECIPE_JOB_SOURCES_H

#include "engine/model/model.h"
#include "engine/recipe/corpus.h"

/* A model to continue from. Free with job_base_fini. */
typedef struct job_base {
	char id[STORE_ID_BYTES], folder[PATH_MAX];
	const architecture *architecture;
	json_t *config; /* every key */
	void *parsed;   /* the typed configuration; owned */
	model_dims dims;
} job_base;
void job_base_fini(job_base *b);

typedef struct job_sources {
	/* The id of the file that a request names; STATUS_NOT_FOUND. */
	status (*find_file)(void *context, const char *name, char id[STORE_ID_BYTES], error *err);
	/* The model that a request names; STATUS_NOT_FOUND. */
	status (*find_model)(void *context, const char *name, job_base *out, error *err);
	void *context;
	corpus_paths paths; /* paths of files, by id */
	corpus_cache cache;
	char temporary[PATH_MAX - 16]; /* as of corpus */
	const char *backend_name;
	bool bf16;
	bool adapters;        /* the result of a job may be an adapter */
	const char *no_ranks; /* why a job cannot be one of several processes; NULL: it can */
} job_sources;

#endif
