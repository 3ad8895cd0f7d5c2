/* attribution_request.h - the tokens' parts of the score of one prediction, in an explanation, by any method
 * (explain/attribution.h).
 *
 *   loop:     read the target and options from the request (attribution_request_read)
 *   executor: score the tokens up to the position (score_call)
 *   pool:     convert the parts to JSON (attribution_request_object) */
#ifndef ENGINE_DAEMON_GENERATION_ATTRIBUTION_REQUEST_H
#define ENGINE_DAEMON_GENERATION_ATTRIBUTION_REQUEST_H

#include "engine/daemon/generation/score_call.h"

typedef struct attribution_request {
	bool requested;
	bool span;          /* rows for several positions */
	int64_t top;        /* with span: tokens answered per row; 0: all */
	bool page;          /* answer only as many rows as fit into one answer */
	bool more;          /* with page: more rows of the span follow these */
	int64_t n;          /* number of rows */
	int64_t first;      /* position of the first row */
	const char *method; /* name in the API */
	explain_options options;
	score_sequence *sequences; /* [n]: the tokens up to the position; all tokens if the model is not causal */
	explain_parts *parts;      /* [n] */
	float *numbers;            /* memory of all parts: [4][tokens of the source, tokens] for each row */
	int32_t *ids;              /* tokens of the source and of the longest row */
	int32_t *rows;             /* [n] positions, for a vocabulary head that is not causal */
} attribution_request;

/* Tokens to explain, and those of the source if the model reads one. ids NULL: check only. */
typedef struct attribution_request_input {
	const int32_t *ids, *source;
	int64_t n, n_source;
} attribution_request_input;

/* Read the request's `target`. STATUS_INVALID names "target.token" or "target.other". */
status attribution_request_read_target(explain_target *out, const json_t *target, const model_entry *m, error *err);
/* Read the request's `replacement`, -1 if absent. STATUS_INVALID names it. */
status attribution_request_read_replacement(int32_t *out, const json_t *params, const model_entry *m, error *err);
/* Return a token {"id","text"} or a class {"id","label"}; null if id < 0. New reference; any thread. */
json_t *attribution_request_output(const model_entry *m, int32_t id);

/* True if the request asks for attributions by `method`, or gives no method (contributions are the default). */
bool attribution_request_asked(const json_t *params);
/* Refuse keys that `method` does not have: STATUS_INVALID. */
status attribution_request_check_keys(const json_t *params, const char *method, error *err);
/* Read what to explain: the prediction after `position` (at it if the model is not causal), the request's `span`, or
 * the classes. c->requested is false if attributions are only the default and there are too many tokens. STATUS_INVALID
 * names "target", "steps", "replacement", "position", "span", "top", "after", "limit" or "input". STATUS_NOMEM. */
status attribution_request_read(attribution_request *c, const json_t *params, const model_entry *m,
                                const attribution_request_input *in, int64_t position, error *err);
/* Start the score task; the caller has set t->finished. */
void attribution_request_submit(attribution_request *c, stream *s, model_entry *m, score_call *t);
/* Return the answer's object. Pool thread. New reference; NULL without err: out of memory. */
json_t *attribution_request_object(const attribution_request *c, const model_entry *m, error *err);
/* Return the key of that object in the explanation. */
const char *attribution_request_key(const attribution_request *c);
void attribution_request_fini(attribution_request *c);

#endif
