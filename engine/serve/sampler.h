/* sampler.h - from logits to a token.
 *
 * Order: repetition, presence and frequency penalties and logit bias, then
 * temperature, then top-k, top-p and min-p on the sorted distribution, then one
 * uniform draw philox(seed, PHILOX_STREAM_SAMPLE, 0, position): the same token for
 * the same seed and position whatever the batch. temperature 0 is argmax (lowest id
 * on ties). Log-probabilities are those of the model's own distribution (temperature 1,
 * no penalties), as OpenAI reports them. Logits that are not finite are never picked. */
#ifndef ENGINE_SERVE_SAMPLER_H
#define ENGINE_SERVE_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"

typedef struct sampling_bias {
	int32_t token;
	float bias;
} sampling_bias;

typedef struct sampling {
	float temperature, top_p, min_p;
	int32_t top_k;                             /* 0: off */
	float repetition_penalty;                  /* 1: off; Keskar et al. 2019 */
	float presence_penalty, frequency_penalty; /* OpenAI's */
	uint64_t seed;
	sampling_bias *bias; /* owned by whoever holds the sampling */
	int n_bias;
} sampling;

/* Temperature 1 and everything else off. */
void sampling_default(sampling *s);
/* Ranges and bias tokens; STATUS_INVALID names the field. A sampler expects a checked sampling. */
status sampling_check(const sampling *s, int64_t vocab, error *err);
/* Does it need to know how often tokens have occurred? */
bool sampling_penalises(const sampling *s);

typedef struct token_logprob {
	int32_t token;
	float logprob;
} token_logprob;

typedef struct sampler sampler;

/* Scratch for one vocabulary; reused for every token, so sampling allocates nothing. */
status sampler_new(sampler **out, int64_t vocab);
void sampler_free(sampler *s);

/* counts[v]: how often v occurs in the context so far (NULL: no penalties).
 * top: filled with the n_top likeliest tokens, best first (token -1 where there are fewer). Without it
 * (NULL) nobody wants log-probabilities: none is computed and the logprob returned is -inf.
 * Token -1: no logit was finite. */
token_logprob sampler_pick(sampler *s, const sampling *how, const float *logits, const uint32_t *counts,
                           uint64_t position, token_logprob *top, int n_top);

#endif
