/* sampler.c - settings, tallies, log-probabilities.
 *
 * A tally holds the tokens that have occurred, sorted, in the op's format. Binary search finds a token; inserting one
 * moves the rows after it, a few kilobytes at most. (An array of counts for the whole vocabulary has faster look-ups,
 * but the op would have to scan it for every sampled token.) */
#include "engine/serve/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

void sampling_default(sampling *s)
{
	*s = (sampling){
#define NUMBER(name, above, min, max, fallback) .name = fallback,
#define INTEGER(name, min, max, fallback) .name = fallback,
#include "gen/sampling.def"
	};
}

/* Check one number; NaN is out of range. */
static status sampling_check_range(const char *name, double x, bool above, double min, double max, error *err)
{
	if (x <= max && (above ? x > min : x >= min))
		return STATUS_OK;
	if (above)
		return error_set(err, STATUS_INVALID, name, "must be above %.10g and at most %.10g", min, max);
	return error_set(err, STATUS_INVALID, name, "must be between %.10g and %.10g", min, max);
}

status sampling_check(const sampling *s, int64_t vocab, error *err)
{
#define NUMBER(name, above, min, max, fallback) TRY(sampling_check_range(#name, (double)s->name, above, min, max, err));
#define INTEGER(name, min, max, fallback) TRY(sampling_check_range(#name, s->name, false, min, max, err));
#include "gen/sampling.def"
	for (int i = 0; i < s->n_bias; i++) {
		if (s->bias[i].token < 0 || s->bias[i].token >= vocab)
			return error_set(err, STATUS_INVALID, "logit_bias", "token %d is not in the vocabulary of %lld",
			                 (int)s->bias[i].token, (long long)vocab);
		if (!isfinite(s->bias[i].bias))
			return error_set(err, STATUS_INVALID, "logit_bias", "must be finite numbers");
	}
	return STATUS_OK;
}

status sampling_check_plain(const sampling *s, const char *reason, error *err)
{
#define NUMBER(name, above, min, max, fallback)                                                                        \
	if (s->name != (float)(fallback))                                                                              \
		return error_set(err, STATUS_INVALID, #name, "%s", reason);
#define INTEGER(name, min, max, fallback)                                                                              \
	if (s->name != (fallback))                                                                                     \
		return error_set(err, STATUS_INVALID, #name, "%s", reason);
#include "gen/sampling.def"
	return STATUS_OK;
}

sample_setting sampling_setting(const sampling *s, uint64_t position)
{
	return (sample_setting){
#define NUMBER(name, above, min, max, fallback) .name = s->name,
#define INTEGER(name, min, max, fallback) .name = s->name,
#include "gen/sampling.def"
	    .seed_low = (uint32_t)s->seed,
	    .seed_high = (uint32_t)(s->seed >> 32),
	    .position_low = (uint32_t)position,
	    .position_high = (uint32_t)(position >> 32),
	    .active = 1,
	};
}

/* --- tallies ----------------------------------------------------------------- */

/* Return the token's row, inserting it if missing; memory is reserved. */
static sample_adjust *tally_row(tally *t, int32_t token)
{
	int32_t low = 0, high = t->count;
	while (low < high) {
		int32_t middle = low + (high - low) / 2;
		if (t->rows[middle].token < token)
			low = middle + 1;
		else
			high = middle;
	}
	sample_adjust *row = &t->rows[low];
	if (low == t->count || row->token != token) {
		memmove(row + 1, row, (size_t)(t->count++ - low) * sizeof *row);
		*row = (sample_adjust){.token = token};
	}
	return row;
}

status tally_reserve(tally *t)
{
	return MEMORY_ROOM(t->rows, t->capacity, t->count + 1) ? STATUS_OK : STATUS_NOMEM;
}

status tally_init(tally *t, const sampling *s)
{
	t->penalises = s->repetition_penalty != 1 || s->presence_penalty != 0 || s->frequency_penalty != 0;
	for (int i = 0; i < s->n_bias; i++) {
		TRY(tally_reserve(t));
		tally_row(t, s->bias[i].token)->bias += s->bias[i].bias;
	}
	return STATUS_OK;
}

void tally_fini(tally *t)
{
	free(t->rows);
	*t = (tally){0};
}

void tally_add(tally *t, int32_t token)
{
	if (t->penalises)
		tally_row(t, token)->count++;
}

/* --- log-probabilities --------------------------------------------------------- */

/* True if token a ranks before b. Only for finite logits. */
static bool ranks_before(const float *x, int32_t a, int32_t b)
{
	return x[a] == x[b] ? a < b : x[a] > x[b];
}

enum { LANES = 4, BLOCK = 256 * LANES /* tokens whose probabilities are summed as floats */ };
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t lane_bits __attribute__((vector_size(LANES * sizeof(int32_t))));

static lanes sampler_choose(lane_bits condition, lanes yes, lanes no)
{
	return (lanes)(((lane_bits)yes & condition) | ((lane_bits)no & ~condition));
}

/* Load the next logits; -inf replaces those that are not finite or past the end. */
static lanes sampler_load(const float *x, int64_t left)
{
	const lanes none = (lanes){0} - INFINITY;
	lanes y = none;
	if (left >= LANES)
		memcpy(&y, x, sizeof y);
	for (int64_t i = 0; left < LANES && i < left; i++)
		y[i] = x[i];
	return sampler_choose(y - y == 0, y, none);
}

/* e^x for x ≤ 0, with relative error 2e-7; 1e-38 below -87. With n the nearest integer to x / log 2, e^x = 2^n · e^f
 * and |f| ≤ log 2 / 2. There a polynomial (that of Cephes' expf) is as exact as a float. */
static lanes sampler_exp(lanes x)
{
	x = sampler_choose(x > -87, x, (lanes){0} - 87);
	const lane_bits n = __builtin_convertvector(x * 1.44269504f - 0.5f, lane_bits);
	const lanes whole = __builtin_convertvector(n, lanes);
	const lanes f = x - whole * 0.693359375f + whole * 2.12194440e-4f;
	lanes p = f * 1.9875691500e-4f + 1.3981999507e-3f;
	p = p * f + 8.3334519073e-3f;
	p = p * f + 4.1665795894e-2f;
	p = p * f + 1.6666665459e-1f;
	p = p * f + 0.5f;
	return (p * f * f + f + 1) * (lanes)((n + 127) << 23);
}

static float sampler_maximum(const float *x, int64_t vocab)
{
	lanes most = (lanes){0} - INFINITY;
	for (int64_t at = 0; at < vocab; at += LANES) {
		const lanes y = sampler_load(x + at, vocab - at);
		most = sampler_choose(y > most, y, most);
	}
	for (int i = 1; i < LANES; i++)
		most[0] = most[i] > most[0] ? most[i] : most[0];
	return most[0];
}

double sampler_normalizer(const float *x, int64_t vocab)
{
	const float most = sampler_maximum(x, vocab);
	double sum = 0;
	if (most == -INFINITY)
		return -INFINITY;
	for (int64_t first = 0; first < vocab; first += BLOCK) {
		lanes part = {0};
		for (int64_t at = first; at < vocab && at < first + BLOCK; at += LANES)
			part += sampler_exp(sampler_load(x + at, vocab - at) - most);
		for (int i = 0; i < LANES; i++)
			sum += (double)part[i];
	}
	return (double)most + log(sum);
}

/* Insertion sort by rank: n_top is small, and most tokens fail the first test. */
void sampler_top(const float *x, int64_t vocab, double normalizer, token_logprob *top, int n_top)
{
	int n = 0;
	float worst = 0; /* logit of the last entry of `top` */
	for (int64_t i = 0; i < vocab && n_top > 0; i++) {
		if (n == n_top && !(x[i] > worst)) /* ties keep the earlier one */
			continue;
		if (!isfinite(x[i]))
			continue;
		int at = n < n_top ? n++ : n - 1;
		for (; at > 0 && ranks_before(x, (int32_t)i, top[at - 1].token); at--)
			top[at] = top[at - 1];
		top[at].token = (int32_t)i;
		worst = x[top[n - 1].token];
	}
	for (int32_t i = 0; i < n; i++)
		top[i] = (token_logprob){top[i].token, (float)(x[top[i].token] - normalizer), i + 1};
	for (int i = n; i < n_top; i++)
		top[i] = (token_logprob){-1, -INFINITY, 0};
}

static int32_t sampler_rank(const float *logits, int64_t vocab, int32_t token)
{
	int32_t before = 0;
	for (int64_t i = 0; i < vocab; i++)
		before += ranks_before(logits, (int32_t)i, token);
	return 1 + before;
}

token_logprob sampler_logprob(const float *logits, int64_t vocab, int32_t token, token_logprob *top, int n_top)
{
	double normalizer = sampler_normalizer(logits, vocab);
	sampler_top(logits, vocab, normalizer, top, n_top);
	return (token_logprob){token, (float)(logits[token] - normalizer), sampler_rank(logits, vocab, token)};
}
