/* sampler.h - the part of sampling on the host: settings, token counts, log-probabilities.
 *
 * The op `sample` draws a token on the device that holds its logits (engine/tensor/ops/sample.h has the algorithm, and
 * why every backend and any batch gives the same token); sample_plan.h runs it. Log-probabilities are those of the
 * model's own distribution (temperature 1, no penalties), as OpenAI reports them. */
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

/* The sampling settings of a request: the fields of CompletionRequest in proto/openapi.yaml with `x-sampling`, under
 * their own names (meaning, ranges and defaults stand there), and those that are not plain numbers. */
typedef struct sampling {
#define NUMBER(name, above, min, max, otherwise) float name;
#define INTEGER(name, min, max, otherwise) int32_t name;
#include "gen/sampling.def"
	uint64_t seed;
	sampling_bias *bias; /* [n_bias], owned by the owner of this struct */
	int n_bias;
} sampling;

/* The contract's defaults: temperature 1 and everything else off. */
void sampling_default(sampling *s);
/* Check ranges and bias tokens; STATUS_INVALID names the field. The functions below expect checked settings. */
status sampling_check(const sampling *s, int64_t vocab, error *err);
/* Do the settings depend on how often tokens have occurred? */
bool sampling_penalises(const sampling *s);
/* Are all settings but biases and the seed the defaults? If not, STATUS_INVALID names one; `why` says why it has to be.
 */
status sampling_check_plain(const sampling *s, const char *why, error *err);
/* The op's setting for the token at `position`, active and without rows of adjust. */
sample_setting sampling_setting(const sampling *s, uint64_t position);

/* The adjustments of a sequence's logits: biases and, with penalties, how often each token has occurred. Biases of one
 * token add up. The rows have the op's format. */
typedef struct tally {
	bool penalises;
	sample_adjust *rows; /* [count] sorted by token */
	int32_t count, capacity;
} tally;

/* An empty tally is all zeros. STATUS_NOMEM leaves it unchanged. */
status tally_init(tally *t, const sampling *s);
void tally_fini(tally *t);
/* Room for one more token. */
status tally_reserve(tally *t);
/* Count one more occurrence of the token; tally_reserve has made room. No effect without penalties. */
void tally_add(tally *t, int32_t token);

typedef struct token_logprob {
	int32_t token;
	float logprob;
	int32_t rank; /* 1 + number of likelier tokens, of equal ones those with a lower id; 0: not counted */
} token_logprob;

/* log Σ exp over the finite logits; -inf without any. */
double sampler_normalizer(const float *logits, int64_t vocab);
/* The n_top likeliest tokens, best first, of equal ones the lower id; token -1 where fewer have a finite logit. */
void sampler_top(const float *logits, int64_t vocab, double normalizer, token_logprob *top, int n_top);
/* The logarithm of the token's probability, and its rank. top: filled with the n_top likeliest tokens, best first
 * (token -1 where there are fewer with a finite logit). */
token_logprob sampler_logprob(const float *logits, int64_t vocab, int32_t token, token_logprob *top, int n_top);

#endif
