/* sampler.c - from logits to a token.
 *
 * The distribution is weighed in one pass, w_i = exp((x_i - max) / T), so the likeliest
 * token weighs 1 and nothing overflows. Without top-k and top-p that is nearly all. With
 * them, the question is only which token is the last, by rank, to be let through: the one at
 * which so many tokens are counted, or so much weight is gathered. One pass sorts counts and weights into bins of
 * a thirty-second of a nat below the largest logit and so finds the bin where it happens; only that bin's tokens
 * go into a heap, which yields them best first. O(V) for anything but a flat distribution,
 * O(V log V) for that, and exact. (A heap of the whole vocabulary takes 1.5 to 3 times as long at 32,000
 * tokens; a quickselect needs the size of the nucleus beforehand; a full sort pays for the tail.)
 *
 * The draw walks the survivors in the order of their ids on every path, so that a filter
 * which removes nothing changes nothing. Rank: larger logit first, then lower id. */
#include "engine/serve/sampler.h"

#include <float.h>
#include <math.h>

#include "engine/base/memory.h"
#include "engine/base/philox.h"

struct sampler {
	int64_t vocab;
	float *logit;  /* [vocab] after penalties and bias */
	float *weight; /* [vocab] relative to the likeliest; 0 where not finite */
	int32_t *heap; /* [vocab] ids of one bin */
};

/* Bins of the logits below the largest, in units of the temperature. The last one has no end. */
enum { BINS = 1024, BINS_PER_NAT = 32 };

void sampling_default(sampling *s)
{
	*s = (sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
}

status sampling_check(const sampling *s, int64_t vocab, error *err)
{
	if (!(s->temperature >= 0 && isfinite(s->temperature)))
		return error_set(err, STATUS_INVALID, "temperature", "must be a finite number of at least 0");
	if (!(s->top_p >= 0 && s->top_p <= 1))
		return error_set(err, STATUS_INVALID, "top_p", "must be between 0 and 1");
	if (!(s->min_p >= 0 && s->min_p <= 1))
		return error_set(err, STATUS_INVALID, "min_p", "must be between 0 and 1");
	if (s->top_k < 0)
		return error_set(err, STATUS_INVALID, "top_k", "must be at least 0");
	if (!(s->repetition_penalty > 0 && isfinite(s->repetition_penalty)))
		return error_set(err, STATUS_INVALID, "repetition_penalty", "must be a finite number above 0");
	if (!isfinite(s->presence_penalty))
		return error_set(err, STATUS_INVALID, "presence_penalty", "must be a finite number");
	if (!isfinite(s->frequency_penalty))
		return error_set(err, STATUS_INVALID, "frequency_penalty", "must be a finite number");
	for (int i = 0; i < s->n_bias; i++) {
		if (s->bias[i].token < 0 || s->bias[i].token >= vocab)
			return error_set(err, STATUS_INVALID, "logit_bias", "token %d is not in the vocabulary of %lld",
			                 (int)s->bias[i].token, (long long)vocab);
		if (!isfinite(s->bias[i].bias))
			return error_set(err, STATUS_INVALID, "logit_bias", "must be finite numbers");
	}
	return STATUS_OK;
}

bool sampling_penalises(const sampling *s)
{
	return s->repetition_penalty != 1 || s->presence_penalty != 0 || s->frequency_penalty != 0;
}

status sampler_new(sampler **out, int64_t vocab)
{
	*out = NULL;
	if (vocab < 1 || vocab > INT32_MAX)
		return STATUS_INVALID;
	sampler *s = memory_new(1, sizeof *s);
	if (!s)
		return STATUS_NOMEM;
	s->vocab = vocab;
	s->logit = memory_new((size_t)vocab, sizeof *s->logit);
	s->weight = memory_new((size_t)vocab, sizeof *s->weight);
	s->heap = memory_new((size_t)vocab, sizeof *s->heap);
	if (!s->logit || !s->weight || !s->heap) {
		sampler_free(s);
		return STATUS_NOMEM;
	}
	*out = s;
	return STATUS_OK;
}

void sampler_free(sampler *s)
{
	if (!s)
		return;
	free(s->logit);
	free(s->weight);
	free(s->heap);
	free(s);
}

/* Does a rank before b? Only for finite logits. */
static bool ranks_before(const float *x, int32_t a, int32_t b)
{
	return x[a] == x[b] ? a < b : x[a] > x[b];
}

/* --- the heap: the best id at [0] ------------------------------------------- */

static void heap_sink(int32_t *heap, int64_t n, int64_t i, const float *x)
{
	int32_t id = heap[i];
	for (;;) {
		int64_t child = 2 * i + 1;
		if (child >= n)
			break;
		if (child + 1 < n && ranks_before(x, heap[child + 1], heap[child]))
			child++;
		if (!ranks_before(x, heap[child], id))
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = id;
}

static void heap_build(int32_t *heap, int64_t n, const float *x)
{
	for (int64_t i = n / 2 - 1; i >= 0; i--)
		heap_sink(heap, n, i, x);
}

/* Remove the best of n ids. */
static int32_t heap_take(int32_t *heap, int64_t n, const float *x)
{
	int32_t best = heap[0];
	heap[0] = heap[n - 1];
	heap_sink(heap, n - 1, 0, x);
	return best;
}

/* --- the steps ---------------------------------------------------------------- */

/* Penalties and bias into s->logit; the logits themselves when there are none. */
static const float *sampler_adjust(sampler *s, const sampling *how, const float *logits, const uint32_t *counts)
{
	bool penalise = counts && sampling_penalises(how);
	if (!penalise && how->n_bias == 0)
		return logits;
	for (int64_t i = 0; i < s->vocab; i++) {
		float x = logits[i];
		if (penalise && counts[i] > 0) {
			x = x > 0 ? x / how->repetition_penalty : x * how->repetition_penalty;
			x -= how->presence_penalty + how->frequency_penalty * (float)counts[i];
		}
		s->logit[i] = x;
	}
	for (int i = 0; i < how->n_bias; i++)
		s->logit[how->bias[i].token] += how->bias[i].bias;
	return s->logit;
}

/* The largest finite one of n logits; -inf: none is finite. LANES maxima side by side become vector code. */
static float sampler_largest(const float *x, int64_t n)
{
	enum { LANES = 16 };
	float top[LANES], most = -INFINITY;
	for (int l = 0; l < LANES; l++)
		top[l] = -INFINITY;
	int64_t i = 0;
	for (; i + LANES <= n; i += LANES) {
#pragma omp simd
		for (int l = 0; l < LANES; l++)
			top[l] = x[i + l] > top[l] && x[i + l] <= FLT_MAX ? x[i + l] : top[l];
	}
	for (; i < n; i++)
		top[0] = x[i] > top[0] && x[i] <= FLT_MAX ? x[i] : top[0];
	for (int l = 0; l < LANES; l++)
		most = top[l] > most ? top[l] : most;
	return most;
}

/* The finite logit that ranks first; -1: none is finite. Only the stretch that holds it is searched. */
static int32_t sampler_best(const sampler *s, const float *x)
{
	enum { STRETCH = 256 };
	int64_t at = -1;
	float most = -INFINITY;
	for (int64_t i = 0; i < s->vocab; i += STRETCH) {
		float top = sampler_largest(x + i, s->vocab - i < STRETCH ? s->vocab - i : STRETCH);
		if (top > most) {
			most = top;
			at = i;
		}
	}
	while (at >= 0 && x[at] != most)
		at++;
	return (int32_t)at;
}

/* The adjusted logits of one token to come, weighed. */
typedef struct weighed {
	const float *logit;  /* [vocab] */
	const float *weight; /* [vocab] */
	int64_t vocab;
	float max, temperature;
	int32_t last; /* only tokens that rank no lower than this one are left; -1: all */
	double mass;  /* the sum of the weights of those that are left */
} weighed;

static weighed sampler_weigh(sampler *s, const float *x, float max, float temperature)
{
	double mass = 0;
	for (int64_t i = 0; i < s->vocab; i++) {
		s->weight[i] = isfinite(x[i]) ? expf((x[i] - max) / temperature) : 0;
		mass += s->weight[i];
	}
	return (weighed){x, s->weight, s->vocab, max, temperature, -1, mass};
}

static bool is_left(const weighed *w, int64_t i)
{
	return w->weight[i] > 0 && (w->last < 0 || !ranks_before(w->logit, w->last, (int32_t)i));
}

/* Falls with the logit, never rises: differences and quotients are rounded monotonically. */
static int bin_of(const weighed *w, int64_t i)
{
	return (int)fminf((w->max - w->logit[i]) / w->temperature * BINS_PER_NAT, BINS - 1);
}

/* Leave the first tokens by rank, up to the one at which `count` of them are counted or their weights reach
 * `mass`: at least the first. */
static void sampler_cut(sampler *s, weighed *w, int64_t count, double mass)
{
	int64_t counts[BINS] = {0}, counted = 0, n = 0;
	double masses[BINS] = {0}, reached = 0;
	for (int64_t i = 0; i < w->vocab; i++)
		if (is_left(w, i)) {
			int bin = bin_of(w, i);
			counts[bin]++;
			masses[bin] += w->weight[i];
		}
	int bin = 0;
	while (bin < BINS - 1 && counted + counts[bin] < count && reached + masses[bin] < mass) {
		counted += counts[bin];
		reached += masses[bin++];
	}
	for (int64_t i = 0; i < w->vocab; i++)
		if (is_left(w, i) && bin_of(w, i) == bin)
			s->heap[n++] = (int32_t)i;
	heap_build(s->heap, n, w->logit);
	while (n > 0 && (counted == 0 || (counted < count && reached < mass))) {
		w->last = heap_take(s->heap, n--, w->logit);
		counted++;
		reached += w->weight[w->last];
	}
	w->mass = reached;
}

/* One uniform draw among those that are left and weigh at least `least`. */
static int32_t sampler_draw(const weighed *w, float least, float uniform)
{
	double total = w->mass, sum = 0;
	if (w->last >= 0 || least > 0) {
		total = 0;
		for (int64_t i = 0; i < w->vocab; i++)
			if (is_left(w, i) && w->weight[i] >= least)
				total += w->weight[i];
	}
	int32_t chosen = -1;
	for (int64_t i = 0; i < w->vocab && !(chosen >= 0 && sum > uniform * total); i++)
		if (is_left(w, i) && w->weight[i] >= least) {
			chosen = (int32_t)i;
			sum += w->weight[i];
		}
	return chosen;
}

/* Top-k, then top-p of what is left, then min-p. */
static int32_t sampler_sample(sampler *s, const sampling *how, const float *x, int32_t best, uint64_t position)
{
	weighed w = sampler_weigh(s, x, x[best], how->temperature);
	if (how->top_k > 0)
		sampler_cut(s, &w, how->top_k, INFINITY);
	if (how->top_p < 1)
		sampler_cut(s, &w, INT64_MAX, (double)how->top_p * w.mass);
	philox_block random = philox(how->seed, PHILOX_STREAM_SAMPLE, 0, position);
	return sampler_draw(&w, how->min_p, philox_uniform(random.word[0]));
}

/* log Σ exp over the finite logits; `best` is one of the largest. */
static double sampler_normalizer(const sampler *s, const float *x, int32_t best)
{
	double sum = 1; /* the best itself */
	for (int64_t i = 0; i < s->vocab; i++)
		if (isfinite(x[i]) && i != best)
			sum += expf(x[i] - x[best]);
	return x[best] + log(sum);
}

/* The n_top first by rank, by insertion: n_top is small and most tokens fail the first test. */
static void sampler_top(const sampler *s, const float *x, double normalizer, token_logprob *top, int n_top)
{
	int n = 0;
	for (int64_t i = 0; i < s->vocab && n_top > 0; i++) {
		if (!isfinite(x[i]) || (n == n_top && !ranks_before(x, (int32_t)i, top[n - 1].token)))
			continue;
		int at = n < n_top ? n++ : n - 1;
		for (; at > 0 && ranks_before(x, (int32_t)i, top[at - 1].token); at--)
			top[at] = top[at - 1];
		top[at].token = (int32_t)i;
	}
	for (int i = 0; i < n; i++)
		top[i].logprob = (float)(x[top[i].token] - normalizer);
	for (int i = n; i < n_top; i++)
		top[i] = (token_logprob){-1, -INFINITY};
}

token_logprob sampler_pick(sampler *s, const sampling *how, const float *logits, const uint32_t *counts,
                           uint64_t position, token_logprob *top, int n_top)
{
	token_logprob picked = {-1, -INFINITY};
	const float *x = sampler_adjust(s, how, logits, counts);
	int32_t best = sampler_best(s, x);
	picked.token = best >= 0 && how->temperature > 0 ? sampler_sample(s, how, x, best, position) : best;
	if (top) {
		int32_t likeliest = sampler_best(s, logits);
		double normalizer = likeliest >= 0 ? sampler_normalizer(s, logits, likeliest) : 0;
		sampler_top(s, logits, normalizer, top, n_top);
		if (picked.token >= 0)
			picked.logprob = (float)(logits[picked.token] - normalizer);
	}
	return picked;
}
