/* rank_plan.h - the plan of a run, which rank 0 makes and all ranks receive, as a JSON document:
 *
 *   request   as written by job_request_write
 *   files     {id: path} of the files that it names
 *   base      folder of the model to continue from, or ""
 *   cache     folder of cached tokens; cache_bytes: limit of its unused part
 *   folder    where checkpoints are, "step-N"
 *   resume    folder of the checkpoint to start from, or ""
 *   result    folder of the finished model
 *   job       id of an engine's job, whose checkpoints have manifests like the engine's; or ""
 *   card      the model's card without its results (recipe/model_card.h); absent without an engine
 *
 * Paths are valid on every rank: all on one machine, or in shared folders. */
#ifndef ENGINE_RANK_RANK_PLAN_H
#define ENGINE_RANK_RANK_PLAN_H

#include "engine/recipe/job_request.h"

enum { RANK_PLAN_MAX_BYTES = 16 << 20 };

/* The computing device. */
typedef struct rank_device {
	const char *backend_name;
	bool bf16;
} rank_device;

/* Make the plan of a recipe: the body of POST /v1/fine_tuning/jobs, in which files and a base model are paths. Reads
 * its texts. `out` is the folder of the run. If it contains a run of the same recipe, that run continues from its
 * newest intact checkpoint. Errors name the field. STATUS_CONFLICT: `out` contains a run of another recipe. New
 * reference. */
status rank_plan_of_recipe(json_t **document, const char *recipe, const char *out, const rank_device *d, error *err);
/* Make the plan of a recipe that has been read. */
status rank_plan_of_object(json_t **document, const json_t *recipe, const char *out, const rank_device *d, error *err);
/* Read a plan that the engine has written to a file. */
status rank_plan_read(json_t **document, const char *path, error *err);

/* Return sources that resolve the names in the plan's request; borrows the plan. `rank` makes names of unfinished files
 * unique. */
job_sources rank_plan_sources(const json_t *document, int rank, const rank_device *d);
/* Return a string member; "" if absent. */
const char *rank_plan_text(const json_t *document, const char *key);

#endif
