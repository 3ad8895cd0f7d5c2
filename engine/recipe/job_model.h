/* job_model.h - the model that a run begins with. */
#ifndef ENGINE_RECIPE_JOB_MODEL_H
#define ENGINE_RECIPE_JOB_MODEL_H

#include "engine/model/model.h"

typedef struct job_model {
	const char *folder; /* of a checkpoint or a model; "": the model is a fresh one, */
	const architecture *architecture;
	const json_t *config;
	uint64_t seed;
	const int64_t *counts; /* which counts tokens (architecture.h): of each id in the texts; else NULL */
} job_model;

/* Errors are those of model_open, model_create and model_set_counts. */
status job_model_open(model **out, const job_model *from, backend *b, error *err);

#endif
