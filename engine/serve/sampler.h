/* sampler.h - the host's share of sampling: settings, how often tokens have occurred, log-probabilities.
 *
 * A token is drawn where its logits lie, by the op `sample` (engine/tensor/ops/sample.h says in which steps, and why
 * it is the same token on every backend and in any batch); sample_plan.h runs it. Log-probabilities are those of
 * the model's own distribution (temperature 1, no penalties), as OpenAI reports them. */
#ifndef ENGINE_SERVE_SAMPLER_H
#define ENGINE_SERVE_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/tensor/ops/sample.h"

typedef struct sampling_bias {
	int32_t token;
	float bias;
} sampling_bias;

/* What a request says of sampling: the fields of CompletionRequest in proto/openapi.yaml with `x-sampling`, which gives
 * their meaning, ranges and defaults, under their own names, and what is no plain number. */
typedef struct sampling {
#define NUMBER(name, above, min, max, otherwise) float name;
#define INTEGER(name, min, max, otherwise) int32_t name;
#include "gen/sampling.def"
	uint64_t seed;
	sampling_bias *bias; /* owned by the holder of the sampling */
	int n_bias;
} sampling;

/* The contract's defaults: temperature 1 and everything else off. */
void sampling_default(sampling *s);
/* Ranges and bias tokens; STATUS_INVALID names the field. What comes below expects a checked sampling. */
status sampling_check(const sampling *s, int64_t vocab, error *err);
/* Does it need to know how often tokens have occurred? */
bool sampling_penalises(const sampling *s);
/* The op's setting for the token at `position`, wanted and without rows of adjust. */
sample_setting sampling_setting(const sampling *s, uint64_t position);

/* What adjusts a sequence's logits: bias, and with penalties how often each token has occurred so far. Biases of one
 * token add up. The rows are the op's. */
typedef struct tally {
	bool penalises;
	sample_adjust *rows; /* [count] sorted by token */
	int32_t count, capacity;
} tally;

/* An empty tally is all zeros. STATUS_NOMEM leaves it as it was. */
status tally_init(tally *t, const sampling *s);
void tally_fini(tally *t);
/* Room for one more token. */
status tally_reserve(tally *t);
/* The token has occurred once more; there is room. Nothing without penalties. */
void tally_add(tally *t, int32_t token);

typedef struct token_logprob {
	int32_t token;
	float logprob;
} token_logprob;

/* The logarithm of the token's probability. top: filled with the n_top likeliest tokens, best first (token -1
 * where there are fewer with a finite logit). */
token_logprob sampler_logprob(const float *logits, int64_t vocab, int32_t token, token_logprob *top, int n_top);

#endif
