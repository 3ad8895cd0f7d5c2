/* job_config.h - the model that a request is for: its tokenizer and its configuration.
 *
 * A new model is described from the request before the data is read, and described again when the data has decided the
 * lengths of rows and the classes. A model to continue from brings both. Private to job_request.c. */
#ifndef ENGINE_RECIPE_JOB_CONFIG_H
#define ENGINE_RECIPE_JOB_CONFIG_H

#include "engine/recipe/job_request.h"

/* A member of an object; NULL if it is absent or null. Borrowed. */
const json_t *job_config_member(const json_t *object, const char *key);

/* Set base, architecture, tokenizer, config and dims. ours: the member "additive" of params, or NULL; given: the
 * tokenizer of the file that they name, or NULL. Errors name the field. */
status job_config_read(job_request *r, const job_sources *from, const json_t *params, const json_t *ours,
                       const tokenizer *given, error *err);
/* The objective that is given, or the usual one of a model of r->dims; NULL: there is none. */
const objective *job_config_objective(const job_request *r, const json_t *ours);
/* Take the lengths that fit the data, and describe a new model for them, for its classes and for its tokenizer. */
status job_config_take_lengths(job_request *r, const json_t *params, const corpus *texts, error *err);
/* Give a new model that reads a source the token that its sequences begin with. */
status job_config_take_start(job_request *r, const tokenizer *t, error *err);

#endif
