/* job_model.h - the model that a run begins with. */
#ifndef ENGINE_RECIPE_JOB_MODEL_H
#define ENGINE_RECIPE_JOB_MODEL_H

#include "engine/model/model.h"

typedef struct job_model {
	const char *folder; /* folder of a checkpoint or a model; "": a new model, */
	const architecture *architecture;
	const json_t *config;
	uint64_t seed;
	const int64_t *counts; /* counts of each id in the texts, if it counts tokens (architecture.h); else NULL */
} job_model;

/* Errors are those of model_open, model_create and model_set_counts. */
status job_model_open(model **out, const job_model *from, backend *b, error *err);

#endif
