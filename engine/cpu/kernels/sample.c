/* sample: logits [B, V], setting [B, SAMPLE_WORDS], adjust [A, 3], maxima? -> token [B].
 *
 * A mask first shortens the row to the tokens that it leaves. The maxima of a row's blocks (maxima.h) give the largest
 * logit and, with top-k, a bound that about k logits reach. They come from linear, or from one pass over the row. Only
 * blocks whose maximum reaches it are read again; a search for the k-th largest logit leaves k tokens, which are weighed
 * exactly and replace the row (sample_list.h). Without top-k all tokens count, and floats are nearly always certain of
 * the outcome (sample_estimate.h); if not, all are weighed exactly. A cut is found by halving the range of floats that
 * contains the last accepted token, because counts and sums are vector code and sorting is not.
 *
 * Times for a row of 8,192 tokens in the second cache, one core of a Xeon with AVX-512, for any distribution: the
 * largest 0.3 µs; top-k 50 1.1 µs, with top-p 1.2 µs; top-k 1,000 15 µs; temperature alone 3.5 µs; top-p alone 10 µs. A
 * row from the third cache takes 1.2 µs more. (A quickselect needs the size of the nucleus beforehand; a heap or a full
 * sort pays for the tail; bins were not vector code: 2.0 µs for top-k 50 with top-p.)
 *
 * Rows are shared among the threads. */
#include "engine/cpu/kernels/sample_estimate.h"

#include <stdatomic.h>

enum { COST = 4 }; /* cost of a token, in additions */

/* One row, and its thread's memory. */
typedef struct row {
	const sample_setting *setting;
	sample_list list;
	sample_memory memory;
	sample_bracket bracket;
	float max;
} row;

/* --- the steps ---------------------------------------------------------------- */

static const float *adjust(const row *r, const float *logits, int64_t vocab, const sample_adjust *rows)
{
	if (r->setting->count <= 0)
		return logits;
	float *adjusted = r->memory.adjusted;
	memcpy(adjusted, logits, (size_t)vocab * sizeof *logits);
	for (int32_t i = 0; i < r->setting->count; i++) {
		const sample_adjust *a = &rows[r->setting->first + i];
		if (a->token >= 0 && a->token < vocab)
			adjusted[a->token] = sample_adjusted(logits[a->token], r->setting, a);
	}
	return adjusted;
}

/* List the tokens that the mask leaves in memory.left, and their logits in memory.adjusted; returns how many there
 * are. */
static int64_t sample_leave_masked(const row *r, const uint32_t *mask, const float *x, int64_t vocab)
{
	int64_t n = 0;
	for (int64_t i = 0; i < vocab; i += SAMPLE_LANES) {
		uint32_t bits = mask[i >> 5] >> (i & 31) & 0xffff;
		if (vocab - i < SAMPLE_LANES)
			bits &= (1u << (vocab - i)) - 1;
		if (bits && vocab - i >= SAMPLE_LANES)
			n = sample_append_bits(x, i, bits, r->memory.adjusted, r->memory.left, n);
		else
			for (int64_t j = i; j < vocab && bits >> (j - i); j++)
				if (bits >> (j - i) & 1) {
					r->memory.adjusted[n] = x[j];
					r->memory.left[n++] = (int32_t)j;
				}
	}
	return n;
}

/* Shorten the list for top-k: to the k tokens that rank first, or to all that may have weight, which end 28 nats below
 * the largest. */
static void sample_shorten(row *r, const float *top)
{
	const int64_t k = r->setting->top_k, blocks = kernel_parts(r->list.n, LINEAR_BLOCK);
	const double max = r->max, nat = r->setting->temperature;
	float bound = sample_bound(top, blocks, k, k / 8, r->max);
	if (!(bound >= max - 27 * nat))
		bound = (float)fmax(max - 29 * nat, -FLT_MAX);
	r->list = sample_collect_blocks(&r->list, top, bound, &r->memory);
	r->list.n = sample_leave(r->list.n, k, r->max, &r->memory, &r->bracket);
}

static uint64_t mass(const row *r)
{
	const uint64_t *weight = r->memory.weight;
	const int64_t n = r->list.n;
	uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
	for (int64_t i = 0; i < n; i++)
		sum += weight[i];
	return sum;
}

/* Leave the first tokens by rank, up to the one at which their weights reach `goal`, which is in the bracket: at least
 * the first. */
static void sample_cut(const row *r, uint64_t goal, sample_bracket b)
{
	const float *x = r->list.x;
	const int64_t n = r->list.n;
	uint64_t *weight = r->memory.weight, reached;
	const int64_t last = sample_find_cut(x, weight, n, b, goal, &reached);
	const float bound = x[last];
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		weight[i] = ((x[i] > bound) | ((x[i] == bound) & (i <= last))) ? weight[i] : 0;
}

static void drop_below(const row *r, uint64_t least)
{
	const int64_t n = r->list.n;
	uint64_t *weight = r->memory.weight;
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		weight[i] = weight[i] >= least ? weight[i] : 0;
}

/* The index of the first token at which the sum of weights exceeds the target, by stretches. */
static int64_t sample_draw(const row *r, uint64_t target)
{
	enum { STRETCH = 64 };
	const uint64_t *weight = r->memory.weight;
	uint64_t sum = 0;
	for (int64_t first = 0; first < r->list.n; first += STRETCH) {
		const int64_t end = kernel_min(r->list.n, first + STRETCH);
		uint64_t part = 0;
#pragma omp simd reduction(+ : part)
		for (int64_t i = first; i < end; i++)
			part += weight[i];
		if (sum + part > target)
			for (int64_t i = first; i < end; i++) {
				sum += weight[i];
				if (sum > target)
					return i;
			}
		sum += part;
	}
	return -1; /* not reached: the target is below the mass */
}

/* Steps 3 to 6 on the list; the index of its token. */
static int64_t weigh_and_draw(const row *r)
{
	const sample_setting *s = r->setting;
	sample_weigh(r->list.x, r->list.n, r->max, s->temperature, r->memory.weight);
	if (s->top_p < 1)
		sample_cut(r, sample_goal(s->top_p, mass(r)), r->bracket);
	if (s->min_p > 0 || s->top_a > 0)
		drop_below(r, sample_bottom(s, s->top_a > 0 ? mass(r) : 0));
	return sample_draw(r, sample_share(sample_random(s), mass(r)));
}

/* maxima: those of the logits' blocks, as linear gives them; NULL: unknown. Returns an index in x. */
static int64_t sample_from(row *r, const float *x, const float *maxima, int64_t n)
{
	const sample_setting *s = r->setting;
	const float *top = maxima ? maxima : maxima_of_blocks(x, n, r->memory.estimate);
	const int32_t best = sample_best(x, n, top);
	if (best < 0 || !(s->temperature > 0) || s->top_k == 1)
		return best;
	r->max = x[best];
	r->list = (sample_list){.x = x, .n = n};
	r->bracket = sample_anywhere;
	int64_t drawn = -1;
	if (s->top_k > 0 && s->top_k < n)
		sample_shorten(r, top);
	else
		drawn = sample_estimated(&r->list, &r->memory, r->max, s, &r->bracket);
	if (drawn < 0)
		drawn = weigh_and_draw(r);
	return r->list.id ? r->list.id[drawn] : drawn;
}

static int32_t sample(row *r, const float *logits, const float *maxima, int64_t vocab, const sample_adjust *rows)
{
	if (!r->setting->active)
		return -1;
	const float *x = adjust(r, logits, vocab, rows);
	const uint32_t *mask = sample_mask(r->setting, rows);
	if (!mask)
		return (int32_t)sample_from(r, x, x == logits ? maxima : NULL, vocab);
	const int64_t n = sample_leave_masked(r, mask, x, vocab); /* in the same order, so the outcome is the same */
	const int64_t found = sample_from(r, r->memory.adjusted, NULL, n);
	return found < 0 ? -1 : r->memory.left[found];
}

/* --- the call ------------------------------------------------------------------- */

size_t KERNEL(sample_scratch)(const backend *b, const op_call *call)
{
	return (size_t)((const cpu *)b)->threads * sample_memory_bytes(call->in[0].shape.dim[1]);
}

static void sample_run(const op_call *call, row *r, int64_t i)
{
	const int64_t vocab = call->in[0].shape.dim[1];
	r->setting = (const sample_setting *)call->in[1].data + i;
	const float *maxima = kernel_optional(call, 3);
	if (maxima)
		maxima += i * kernel_parts(vocab, LINEAR_BLOCK);
	((int32_t *)call->out[0].data)[i] =
	    sample(r, (const float *)call->in[0].data + i * vocab, maxima, vocab, call->in[2].data);
}

status KERNEL(sample)(backend *b, const op_call *call)
{
	const int64_t rows = call->in[0].shape.dim[0], vocab = call->in[0].shape.dim[1];
	const int threads = (int)kernel_min(kernel_threads(b, rows * vocab * COST), rows);
	if (threads <= 1) { /* a parallel region costs 0.2 µs even with one thread */
		row r = {.memory = sample_memory_at(call->scratch, vocab)};
		for (int64_t i = 0; i < rows; i++)
			sample_run(call, &r, i);
		return STATUS_OK;
	}
	_Atomic int64_t next = 0;
#pragma omp parallel for schedule(static, 1) num_threads(threads)
	for (int thread = 0; thread < threads; thread++) {
		char *scratch = (char *)call->scratch + (size_t)thread * sample_memory_bytes(vocab);
		row r = {.memory = sample_memory_at(scratch, vocab)};
		for (;;) {
			const int64_t i = atomic_fetch_add(&next, 1);
			if (i >= rows)
				break;
			sample_run(call, &r, i);
		}
	}
	return STATUS_OK;
}
