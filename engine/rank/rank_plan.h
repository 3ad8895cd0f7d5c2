/* rank_plan.h - the plan of a run as a document: rank 0 creates it and sends it to the other ranks.
 *
 *   request   the output of job_request_write
 *   files     {id: path} of the files that it names
 *   base      the folder of the model to continue from, ""
 *   cache     the folder of tokens of texts; cache_bytes: limit of its unused files
 *   folder    the folder of checkpoints, "step-N"
 *   resume    the checkpoint to begin with, a folder, ""
 *   result    the folder of the finished model
 *   job       the id of the engine's job, or "". Its checkpoints have manifests as the engine writes them
 *
 * Paths are valid on every rank: on one machine, or in folders that machines share. */
#ifndef ENGINE_RANK_RANK_PLAN_H
#define ENGINE_RANK_RANK_PLAN_H

#include "engine/recipe/job_request.h"

enum { RANK_PLAN_MAX_BYTES = 16 << 20 };

/* The device that computes. */
typedef struct rank_device {
	const char *backend_name;
	bool bf16;
} rank_device;

/* Build a plan from a recipe: the body of POST /v1/fine_tuning/jobs, in which files and a model to continue from are
 * paths. Its texts are read. `out` is the folder of the run. If it holds a run of the same recipe, that is continued
 * from its newest intact checkpoint. Errors name the field; STATUS_CONFLICT: `out` holds a run of another recipe. New
 * reference. */
status rank_plan_of_recipe(json_t **document, const char *recipe, const char *out, const rank_device *d, error *err);
/* As the engine has written it to a file. */
status rank_plan_read(json_t **document, const char *path, error *err);

/* Where the names of the plan's request lead; borrows the plan. `rank` makes names of unfinished files different. */
job_sources rank_plan_sources(const json_t *document, int rank, const rank_device *d);
/* A member that is a string; "" where it is not. */
const char *rank_plan_text(const json_t *document, const char *key);

#endif
