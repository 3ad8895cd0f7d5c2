/* golden_session.h - sequences of a set that sessions read: sequence b has slot b of a state pool, as in serving. */
#ifndef TESTS_GOLDEN_GOLDEN_SESSION_H
#define TESTS_GOLDEN_GOLDEN_SESSION_H

#include "tests/golden/golden.h"

typedef struct golden_session {
	const model *model;
	int64_t batch, chunk; /* tokens of each sequence that a forward reads, at most */
	int64_t read;         /* tokens read so far by each sequence */
	bool masked;
	float *pool;
	plan *plan;
} golden_session;

/* Tokens that sequences read next: rows of `width` columns, of which the first `count` are used. */
typedef struct golden_tokens {
	int64_t width, count;
	const int32_t *ids, *mask,
	    *labels; /* mask: of masked sessions; labels: NULL, or -1 and less where there is none */
} golden_tokens;

/* Sessions that have read nothing, which read the options' chunk at a time. masked: tokens have a mask. Errors as of
 * model_plan: for a model without sessions the message names the reason. */
status golden_session_new(golden *g, const model *m, int64_t sequences, bool masked, golden_session *out, error *err);
/* Sources [B, source] of models that encode one, before the first token; mask NULL: all are seen. */
status golden_session_encode(golden *g, const golden_session *s, int64_t source, const int32_t *ids,
                             const int32_t *mask, error *err);
/* Read on. logits: [B, count, V]. *loss, *labels: the sum of the losses and how many there are. */
status golden_session_read(golden *g, golden_session *s, golden_tokens t, float *logits, double *loss, double *labels,
                           error *err);

#endif
