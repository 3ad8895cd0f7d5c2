/* sampler.h - the host's part of sampling: settings, token counts, log-probabilities.
 *
 * The op `sample` draws a token on the device that holds its logits; sample_plan.h runs it. engine/tensor/ops/sample.h
 * has the algorithm and explains why every backend and any batch gives the same token. Log-probabilities are those of
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

/* Sampling settings of a request. The plain numbers are the fields with `x-sampling` of CompletionRequest in
 * proto/openapi.yaml, which has their meanings, ranges and defaults. A row with `above` excludes its minimum. */
typedef struct sampling {
#define NUMBER(name, above, min, max, fallback) float name;
#define INTEGER(name, min, max, fallback) int32_t name;
#include "gen/sampling.def"
	uint64_t seed;
	sampling_bias *bias; /* [n_bias], owned by the owner of this struct */
	int n_bias;
} sampling;

/* Set the contract's defaults: temperature 1, everything else off. */
void sampling_default(sampling *s);
/* Check ranges and bias tokens. STATUS_INVALID names the field. The functions below expect checked settings. */
status sampling_check(const sampling *s, int64_t vocab, error *err);
/* Check that all settings except biases and the seed are defaults. If not, STATUS_INVALID names one; its message ends
 * with `reason`. */
status sampling_check_plain(const sampling *s, const char *reason, error *err);
/* Return the op's setting for the token at `position`, active and without adjustments. */
sample_setting sampling_setting(const sampling *s, uint64_t position);

/* Adjustments of a sequence's logits: biases and, with penalties, the count of each token. Biases of one token are
 * summed. The rows have the op's format. */
typedef struct tally {
	bool penalises;
	sample_adjust *rows; /* [count] sorted by token */
	int32_t count, capacity;
} tally;

/* An empty tally is all zeros. STATUS_NOMEM leaves it unchanged. */
status tally_init(tally *t, const sampling *s);
void tally_fini(tally *t);
/* Reserve memory for one more token. STATUS_NOMEM. */
status tally_reserve(tally *t);
/* Count one more occurrence of the token; tally_reserve comes first. No effect without penalties. */
void tally_add(tally *t, int32_t token);

typedef struct token_logprob {
	int32_t token;
	float logprob;
	int32_t rank; /* 1 + number of more likely tokens; ties count the lower id first; 0: not computed */
} token_logprob;

/* Return log Σ exp over the finite logits; -inf if there are none. */
double sampler_normalizer(const float *logits, int64_t vocab);
/* Write the n_top most likely tokens, best first, ties by lower id. Token -1 if fewer logits are finite. */
void sampler_top(const float *logits, int64_t vocab, double normalizer, token_logprob *top, int n_top);
/* Return the token's log-probability and rank. `top` receives the n_top most likely tokens, best first (token -1 if
 * fewer logits are finite). */
token_logprob sampler_logprob(const float *logits, int64_t vocab, int32_t token, token_logprob *top, int n_top);

#endif
