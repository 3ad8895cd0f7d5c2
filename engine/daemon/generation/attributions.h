/* attributions.h - what the tokens have in the score of one prediction, in an explanation, by any method
 * (explain/attribution.h).
 *
 *   loop:     what is to be explained is read from the request (attributions_read)
 *   executor: a scoring of the tokens up to the position (scoring_task)
 *   pool:     the parts become JSON (attributions_object) */
#ifndef ENGINE_DAEMON_GENERATION_ATTRIBUTIONS_H
#define ENGINE_DAEMON_GENERATION_ATTRIBUTIONS_H

#include "engine/daemon/generation/scoring_task.h"

typedef struct attributions {
	bool wanted;
	bool span;          /* of several positions: rows */
	int64_t top;        /* of a span: only so many tokens of a row; 0: all */
	bool page;          /* as many rows as an answer may have, */
	bool more;          /* and others of the span follow */
	int64_t n;          /* rows */
	int64_t first;      /* position of the first row */
	const char *method; /* as requests name it */
	explain_options options;
	scoring_sequence *sequences; /* [n]: the tokens up to the position, or all of a model that is not causal */
	explain_parts *parts;        /* [n] */
	float *numbers;              /* of all parts: [4][tokens of the source, tokens] for each row */
	int32_t *ids;                /* of the source, and of the longest row */
	int32_t *rows;               /* [n]: positions, of a model with a head for tokens that is not causal */
} attributions;

/* What is explained: tokens, and those of the source that a model reads beside them. ids NULL: only to be checked. */
typedef struct attributions_input {
	const int32_t *ids, *source;
	int64_t n, n_source;
} attributions_input;

/* The request's `target`: STATUS_INVALID names "target.token" or "target.other". Its `replacement`, -1 without one:
 * STATUS_INVALID names it. */
status attributions_read_target(explain_target *out, const json_t *target, const model_entry *m, error *err);
status attributions_read_replacement(int32_t *out, const json_t *params, const model_entry *m, error *err);
/* A token, or a class: {"id","text"} or {"id","label"}; null below 0. New reference; any thread. */
json_t *attributions_output(const model_entry *m, int32_t id);

/* Does the request ask for them: by `method`, or, then for contributions, by leaving that out? */
bool attributions_asked(const json_t *params);
/* Of the prediction behind `position`, at it where the model is not causal, or of the request's `span`; of a model with
 * a head for classes, of these. Sets c->wanted, false where they were not asked for by name and there are too many
 * tokens.
 * STATUS_INVALID names "target", "steps", "replacement", "position", "span", "top", "after", "limit" or "input".
 * STATUS_NOMEM. */
status attributions_read(attributions *c, const json_t *params, const model_entry *m, const attributions_input *in,
                         int64_t position, error *err);
/* Begin the scoring; t->finished is the caller's. */
void attributions_submit(attributions *c, stream *s, model_entry *m, scoring_task *t);
/* Pool thread. New reference; NULL without err: out of memory. */
json_t *attributions_object(const attributions *c, const model_entry *m, error *err);
/* Its key in the explanation. */
const char *attributions_key(const attributions *c);
void attributions_fini(attributions *c);

#endif
