/* sample: logits [B, V], setting [B, SAMPLE_WORDS], adjust [A, 3] -> token [B].
 *
 * A row's tokens are weighed in one pass. Without top-k and top-p that is nearly all. With them, the question is only
 * which token is the last, by rank, to be let through: the one at which so many tokens are counted, or so much
 * weight is gathered. One pass sorts counts and weights into bins of a thirty-second of a nat below the largest
 * logit and so finds the bin where it happens; only that bin's tokens go into a heap, which yields them best first.
 * O(V) for anything but a flat distribution, O(V log V) for that. (A heap of the whole vocabulary takes 1.5 to 3 times
 * as long at 32,000 tokens; a quickselect needs the size of the nucleus beforehand; a full sort pays for the tail.)
 *
 * Rows are shared among the threads. */
#include "engine/tensor/ops/sample.h"
#include "engine/base/philox.h"
#include "engine/cpu/kernels/kernels.h"

#include <stdatomic.h>
#include <string.h>

enum { BINS_PER_NAT = 32, BINS = SAMPLE_FAR * BINS_PER_NAT + 1 };
enum { COST = 8 }; /* of a token, in additions */

/* One row, and the scratch of its thread. */
typedef struct row {
	const sample_setting *setting;
	int64_t vocab;
	const float *x;   /* [vocab] logits, adjusted */
	float *adjusted;  /* [vocab] x lies here when something is adjusted */
	uint64_t *weight; /* [vocab] 0: out */
	int32_t *heap;    /* [vocab] ids of one bin */
	uint64_t *masses; /* [BINS] */
	int64_t *counts;  /* [BINS] */
	float max;
} row;

static size_t row_bytes(int64_t vocab)
{
	return (size_t)kernel_parts(vocab, 16) * 16 * (sizeof(uint64_t) + sizeof(float) + sizeof(int32_t)) +
	       (size_t)BINS * (sizeof(uint64_t) + sizeof(int64_t));
}

static row row_in(char *scratch, int64_t vocab)
{
	row r = {.vocab = vocab, .weight = (uint64_t *)scratch};
	int64_t padded = kernel_parts(vocab, 16) * 16;
	r.masses = r.weight + padded;
	r.counts = (int64_t *)(r.masses + BINS);
	r.adjusted = (float *)(r.counts + BINS);
	r.heap = (int32_t *)(r.adjusted + padded);
	return r;
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

static void adjust(row *r, const float *logits, const sample_adjust *rows)
{
	r->x = logits;
	if (r->setting->count <= 0)
		return;
	memcpy(r->adjusted, logits, (size_t)r->vocab * sizeof *logits);
	for (int32_t i = 0; i < r->setting->count; i++) {
		const sample_adjust *a = &rows[r->setting->first + i];
		if (a->token >= 0 && a->token < r->vocab)
			r->adjusted[a->token] = sample_adjusted(logits[a->token], r->setting, a);
	}
	r->x = r->adjusted;
}

/* The largest finite one of n logits; -inf: none is finite. LANES maxima side by side become vector code. */
static float largest(const float *x, int64_t n)
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
static int32_t best(const row *r)
{
	enum { STRETCH = 256 };
	int64_t at = -1;
	float most = -INFINITY;
	for (int64_t i = 0; i < r->vocab; i += STRETCH) {
		float top = largest(r->x + i, kernel_min(r->vocab - i, STRETCH));
		if (top > most) {
			most = top;
			at = i;
		}
	}
	while (at >= 0 && r->x[at] != most)
		at++;
	return (int32_t)at;
}

/* Every token's weight. */
static void weigh(row *r)
{
	const float temperature = r->setting->temperature, max = r->max, *x = r->x;
	const int64_t vocab = r->vocab;
	uint64_t *weight = r->weight;
#pragma omp simd
	for (int64_t i = 0; i < vocab; i++)
		weight[i] = sample_weight(sample_distance(x[i], max, temperature));
}

static uint64_t mass(const row *r)
{
	const int64_t vocab = r->vocab;
	uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
	for (int64_t i = 0; i < vocab; i++)
		sum += r->weight[i];
	return sum;
}

/* Falls with the logit, never rises. */
static int bin_of(const row *r, int64_t i)
{
	return (int)(sample_distance(r->x[i], r->max, r->setting->temperature) * BINS_PER_NAT);
}

/* Leave the first tokens by rank, up to the one at which `count` of them are counted or their weights reach
 * `goal`: at least the first. */
static void cut(row *r, int64_t count, uint64_t goal)
{
	int64_t counted = 0, n = 0;
	uint64_t reached = 0;
	memset(r->counts, 0, BINS * sizeof *r->counts);
	memset(r->masses, 0, BINS * sizeof *r->masses);
	for (int64_t i = 0; i < r->vocab; i++)
		if (r->weight[i] > 0) {
			int bin = bin_of(r, i);
			r->counts[bin]++;
			r->masses[bin] += r->weight[i];
		}
	int bin = 0;
	while (bin < BINS - 1 && counted + r->counts[bin] < count && reached + r->masses[bin] < goal) {
		counted += r->counts[bin];
		reached += r->masses[bin++];
	}
	for (int64_t i = 0; i < r->vocab; i++)
		if (r->weight[i] > 0 && bin_of(r, i) == bin)
			r->heap[n++] = (int32_t)i;
	heap_build(r->heap, n, r->x);
	int32_t last = -1;
	while (n > 0 && (counted == 0 || (counted < count && reached < goal))) {
		last = heap_take(r->heap, n--, r->x);
		counted++;
		reached += r->weight[last];
	}
	const float bound = last < 0 ? -INFINITY : r->x[last], *x = r->x;
	const int64_t vocab = r->vocab;
	uint64_t *weight = r->weight;
#pragma omp simd
	for (int64_t i = 0; i < vocab; i++)
		weight[i] = ((x[i] > bound) | ((x[i] == bound) & (i <= last))) ? weight[i] : 0;
}

static void drop_below(row *r, uint64_t least)
{
	const int64_t vocab = r->vocab;
	uint64_t *weight = r->weight;
#pragma omp simd
	for (int64_t i = 0; i < vocab; i++)
		weight[i] = weight[i] >= least ? weight[i] : 0;
}

/* The first id at which the sum of weights exceeds the target, by stretches. */
static int32_t draw(const row *r, uint64_t target)
{
	enum { STRETCH = 64 };
	uint64_t sum = 0;
	for (int64_t first = 0; first < r->vocab; first += STRETCH) {
		const int64_t end = kernel_min(r->vocab, first + STRETCH);
		uint64_t part = 0;
#pragma omp simd reduction(+ : part)
		for (int64_t i = first; i < end; i++)
			part += r->weight[i];
		if (sum + part > target)
			for (int64_t i = first; i < end; i++) {
				sum += r->weight[i];
				if (sum > target)
					return (int32_t)i;
			}
		sum += part;
	}
	return -1; /* not reached: the target is below the mass */
}

static int32_t sample(row *r, const float *logits, const sample_adjust *rows)
{
	const sample_setting *s = r->setting;
	if (!s->active)
		return -1;
	adjust(r, logits, rows);
	const int32_t top = best(r);
	if (top < 0 || !(s->temperature > 0))
		return top;
	r->max = r->x[top];
	weigh(r);
	if (s->top_k > 0)
		cut(r, s->top_k, UINT64_MAX);
	if (s->top_p < 1)
		cut(r, INT64_MAX, sample_goal(s->top_p, mass(r)));
	if (s->min_p > 0)
		drop_below(r, sample_least(s->min_p));
	philox_block random = philox(sample_seed(s), PHILOX_STREAM_SAMPLE, 0, sample_position(s));
	return draw(r, sample_share(random.word[0] >> 8, mass(r)));
}

/* --- the call ------------------------------------------------------------------- */

size_t KERNEL(sample_scratch)(const backend *b, const op_call *call)
{
	return (size_t)((const cpu *)b)->threads * row_bytes(call->in[0].shape.dim[1]);
}

static void run(const op_call *call, row *r, int64_t i)
{
	r->setting = (const sample_setting *)call->in[1].data + i;
	((int32_t *)call->out[0].data)[i] = sample(r, (const float *)call->in[0].data + i * r->vocab, call->in[2].data);
}

status KERNEL(sample)(backend *b, const op_call *call)
{
	const int64_t rows = call->in[0].shape.dim[0], vocab = call->in[0].shape.dim[1];
	const int threads = (int)kernel_min(kernel_threads(b, rows * vocab * COST), rows);
	if (threads <= 1) { /* a parallel region costs 0.2 µs even with one thread */
		row r = row_in(call->scratch, vocab);
		for (int64_t i = 0; i < rows; i++)
			run(call, &r, i);
		return STATUS_OK;
	}
	_Atomic int64_t next = 0;
#pragma omp parallel for schedule(static, 1) num_threads(threads)
	for (int thread = 0; thread < threads; thread++) {
		row r = row_in((char *)call->scratch + (size_t)thread * row_bytes(vocab), vocab);
		for (;;) {
			const int64_t i = atomic_fetch_add(&next, 1);
			if (i >= rows)
				break;
			run(call, &r, i);
		}
	}
	return STATUS_OK;
}
