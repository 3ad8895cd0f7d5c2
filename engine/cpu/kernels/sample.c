/* sample: logits [B, V], setting [B, SAMPLE_WORDS], adjust [A, 3] -> token [B].
 *
 * A row is read once for the maxima of blocks of it, which say the largest logit and, with top-k, a bound that about as
 * many logits reach as are wanted; those few are weighed exactly and make up the row from then on (sample_list.h).
 * Without top-k all tokens count, and floats are nearly always certain of the outcome (sample_estimate.h); if not, all
 * are weighed exactly. What an exact cut needs is only which token, by rank, is the last to be let through: bins of
 * equal width between the largest and the least logit in question say in which bin it is, again and again until few are
 * left.
 *
 * A row of 8,192 tokens, one core of a Xeon with AVX-512, whatever the distribution: the largest 0.5 µs, top-k 50 with
 * or without top-p 3 µs, temperature alone 4 µs, top-p alone 12 µs; exact weights and bins of the whole row take 20 to
 * 110. (A quickselect needs the size of the nucleus beforehand; a heap or a full sort pays for the tail.)
 *
 * Rows are shared among the threads. */
#include "engine/cpu/kernels/sample_estimate.h"

#include <stdatomic.h>

enum { COST = 4 }; /* of a token, in additions */

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

/* Shorten the list for top-k: to the k tokens with weight that rank first, and some more; or to all that may have
 * weight, which end 28 nats below the largest. */
static void shorten(row *r, const sample_tops *tops)
{
	const double max = r->max, nat = r->setting->temperature;
	const sample_list whole = r->list;
	float bound = sample_bound(tops, r->setting->top_k, r->max);
	if (!(bound >= max - 27 * nat))
		bound = (float)fmax(max - 29 * nat, -FLT_MAX);
	r->list = (sample_list){.x = r->memory.listed, .id = r->memory.id};
	r->list.n = sample_collect_from(whole.x, whole.n, tops, bound, r->memory.listed, r->memory.id);
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

/* Leave the first tokens by rank, up to the one at which `count` of them are counted or their weights reach
 * `goal`, which is in the bracket: at least the first. */
static void cut(const row *r, int64_t count, uint64_t goal, sample_bracket b)
{
	const float *x = r->list.x;
	const int64_t n = r->list.n;
	uint64_t *weight = r->memory.weight;
	int32_t *item = r->memory.item;
	uint64_t above = 0;
#pragma omp simd reduction(+ : above)
	for (int64_t i = 0; i < n; i++)
		above += x[i] >= b.high ? weight[i] : 0;
	sample_cut c = {.counted = above > 0, .reached = above, .last = -1};
	const int64_t within = sample_collect(x, 0, n, b.low, b.high, r->memory.estimate, item, 0);
	int64_t items = 0;
	for (int64_t i = 0; i < within; i++) {
		item[items] = item[i];
		items += weight[item[i]] > 0;
	}
	c = sample_find_cut(c, x, weight, item, items, count, goal);
	const float bound = c.last < 0 ? -INFINITY : x[c.last];
	const int64_t last = c.last;
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
static int64_t draw(const row *r, uint64_t target)
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
	if (s->top_k > 0)
		cut(r, s->top_k, UINT64_MAX, sample_anywhere);
	if (s->top_p < 1)
		cut(r, INT64_MAX, sample_goal(s->top_p, mass(r)), r->bracket);
	if (s->min_p > 0)
		drop_below(r, sample_least(s->min_p));
	return draw(r, sample_share(sample_random(s), mass(r)));
}

static int32_t sample(row *r, const float *logits, int64_t vocab, const sample_adjust *rows)
{
	const sample_setting *s = r->setting;
	if (!s->active)
		return -1;
	const bool few = s->top_k > 0 && s->top_k <= vocab / 4;
	const float *x = adjust(r, logits, vocab, rows);
	const sample_tops tops = sample_find_tops(x, vocab, few ? s->top_k : 0, r->memory.estimate);
	const int32_t best = sample_best(x, vocab, &tops);
	if (best < 0 || !(s->temperature > 0) || s->top_k == 1)
		return best;
	r->max = x[best];
	r->list = (sample_list){.x = x, .n = vocab};
	r->bracket = sample_anywhere;
	int64_t drawn = -1;
	if (few)
		shorten(r, &tops);
	else if (s->top_k <= 0 || s->top_k >= vocab)
		drawn = sample_estimated(&r->list, &r->memory, r->max, s, &r->bracket);
	if (drawn < 0)
		drawn = weigh_and_draw(r);
	return r->list.id ? r->list.id[drawn] : (int32_t)drawn;
}

/* --- the call ------------------------------------------------------------------- */

size_t KERNEL(sample_scratch)(const backend *b, const op_call *call)
{
	return (size_t)((const cpu *)b)->threads * sample_memory_bytes(call->in[0].shape.dim[1]);
}

static void run(const op_call *call, row *r, int64_t i)
{
	const int64_t vocab = call->in[0].shape.dim[1];
	r->setting = (const sample_setting *)call->in[1].data + i;
	((int32_t *)call->out[0].data)[i] =
	    sample(r, (const float *)call->in[0].data + i * vocab, vocab, call->in[2].data);
}

status KERNEL(sample)(backend *b, const op_call *call)
{
	const int64_t rows = call->in[0].shape.dim[0], vocab = call->in[0].shape.dim[1];
	const int threads = (int)kernel_min(kernel_threads(b, rows * vocab * COST), rows);
	if (threads <= 1) { /* a parallel region costs 0.2 µs even with one thread */
		row r = {.memory = sample_memory_at(call->scratch, vocab)};
		for (int64_t i = 0; i < rows; i++)
			run(call, &r, i);
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
			run(call, &r, i);
		}
	}
	return STATUS_OK;
}
