/* sample_list.h - the row of logits that `sample` works on, and its selections: the largest logits, those within
 * bounds, and the last token by rank that a cut accepts.
 *
 * A row starts as the whole vocabulary. If a threshold leaves few tokens, they become a shorter row with the ids beside
 * the logits, in order of ids. The code that follows is the same for both. */
#ifndef ENGINE_CPU_KERNELS_SAMPLE_LIST_H
#define ENGINE_CPU_KERNELS_SAMPLE_LIST_H

#include "engine/base/philox.h"
#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/math.h"
#include "engine/cpu/kernels/maxima.h"
#include "engine/cpu/kernels/sample_weigh.h"
#ifdef __AVX512F__
#include <immintrin.h>
#endif

enum { SAMPLE_LANES = 16 };

/* Candidate tokens, in order of ids. */
typedef struct sample_list {
	const float *x;    /* [n] logits */
	const int32_t *id; /* [n] ids; NULL: entry i is token i */
	int64_t n;
} sample_list;

/* u of the definition, in units of 2^-24. */
static inline uint32_t sample_random(const sample_setting *s)
{
	return philox(sample_seed(s), PHILOX_STREAM_SAMPLE, 0, sample_position(s)).word[0] >> 8;
}

static inline int64_t sample_count_from(const float *x, int64_t n, float bound)
{
	int32_t count = 0;
#pragma omp simd reduction(+ : count)
	for (int64_t i = 0; i < n; i++)
		count += x[i] >= bound;
	return count;
}

#ifdef __AVX512F__
/* Mask of the LANES numbers with low <= x < high. */
static inline __mmask16 sample_between(const float *x, float low, float high)
{
	const __m512 v = _mm512_loadu_ps(x);
	return _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(v, _mm512_set1_ps(low), _CMP_GE_OQ), v, _mm512_set1_ps(high),
	                               _CMP_LT_OQ);
}
#else
/* True if one of them is. */
static inline bool sample_between(const float *x, float low, float high)
{
	int any = 0;
#pragma omp simd reduction(| : any)
	for (int l = 0; l < SAMPLE_LANES; l++)
		any |= (x[l] >= low) & (x[l] < high);
	return any;
}
#endif

/* Append the tokens among x[i … i + LANES - 1] whose bits are set to to_x and to_id; returns the new count. to_x may be
 * x if n <= i. */
static inline int64_t sample_append_bits(const float *x, int64_t i, uint32_t bits, float *to_x, int32_t *to_id,
                                         int64_t n)
{
#ifdef __AVX512F__
	const __mmask16 in = (__mmask16)bits;
	const __m512i count = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
	const __m512i id = _mm512_add_epi32(_mm512_set1_epi32((int32_t)i), count);
	_mm512_storeu_ps(to_x + n, _mm512_maskz_compress_ps(in, _mm512_loadu_ps(x + i)));
	_mm512_storeu_si512(to_id + n, _mm512_maskz_compress_epi32(in, id));
	return n + __builtin_popcount(in);
#else
	for (int l = 0; l < SAMPLE_LANES; l++) {
		to_x[n] = x[i + l];
		to_id[n] = (int32_t)(i + l);
		n += bits >> l & 1;
	}
	return n;
#endif
}

/* Append those with low <= x < high. */
static inline int64_t sample_append(const float *x, int64_t i, float low, float high, float *to_x, int32_t *to_id,
                                    int64_t n)
{
#ifdef __AVX512F__
	return sample_append_bits(x, i, sample_between(x + i, low, high), to_x, to_id, n);
#else
	for (int l = 0; l < SAMPLE_LANES; l++) {
		to_x[n] = x[i + l];
		to_id[n] = (int32_t)(i + l);
		n += (x[i + l] >= low) & (x[i + l] < high);
	}
	return n;
#endif
}

/* Append those of x[first … end - 1] with low <= x < high. to_x and to_id need room for 16 more than fit the
 * condition. */
static inline int64_t sample_collect(const float *x, int64_t first, int64_t end, float low, float high, float *to_x,
                                     int32_t *to_id, int64_t n)
{
	int64_t i = first;
	for (; i + SAMPLE_LANES <= end; i += SAMPLE_LANES)
		if (sample_between(x + i, low, high))
			n = sample_append(x, i, low, high, to_x, to_id, n);
	for (; i < end; i++) {
		to_x[n] = x[i];
		to_id[n] = (int32_t)i;
		n += (x[i] >= low) & (x[i] < high);
	}
	return n;
}

/* --- blocks ------------------------------------------------------------------- */

/* Index of `requested` in x from `first` on; it exists. */
static inline int64_t sample_find(const float *x, int64_t first, int64_t n, float requested)
{
	int64_t i = first;
	for (; i + SAMPLE_LANES <= n; i += SAMPLE_LANES) {
		int any = 0;
#pragma omp simd reduction(| : any)
		for (int l = 0; l < SAMPLE_LANES; l++)
			any |= x[i + l] == requested;
		if (any)
			break;
	}
	while (x[i] != requested)
		i++;
	return i;
}

/* The finite logit that ranks first; -1: none is finite. top: the blocks' maxima. */
static inline int32_t sample_best(const float *x, int64_t n, const float *top)
{
	const int64_t blocks = kernel_parts(n, LINEAR_BLOCK);
	float most = -INFINITY;
#pragma omp simd reduction(max : most)
	for (int64_t i = 0; i < blocks; i++)
		most = top[i] > most ? top[i] : most;
	if (most == -INFINITY)
		return -1;
	return (int32_t)sample_find(x, sample_find(top, 0, blocks, most) * LINEAR_BLOCK, n, most);
}

/* --- cuts --------------------------------------------------------------------- */

/* Floats as whole numbers of the same order, between which a search halves; and back. Both zeros are 0. */
static inline int64_t sample_order(float x)
{
	const int32_t bits = (int32_t)math_bits(x + 0.0f);
	return bits ^ (bits < 0 ? INT32_MAX : 0);
}

static inline float sample_ordered(int64_t order)
{
	return math_float((uint32_t)(order ^ (order < 0 ? INT32_MAX : 0)));
}

/* Return a bound that at least k of n numbers reach, and at most `slack` more unless these are equal; -inf: fewer are
 * finite. None is above max. */
static inline float sample_bound(const float *x, int64_t n, int64_t k, int64_t slack, float max)
{
	float least = max;
#pragma omp simd reduction(min : least)
	for (int64_t i = 0; i < n; i++)
		least = ((x[i] < least) & (x[i] >= -FLT_MAX)) ? x[i] : least;
	int64_t count = sample_count_from(x, n, least), low = sample_order(least), high = sample_order(max) + 1;
	if (count < k)
		return -INFINITY;
	while (count > k + slack && high - low > 1) {
		const int64_t middle = low + (high - low) / 2;
		const int64_t above = sample_count_from(x, n, sample_ordered(middle));
		if (above >= k) {
			low = middle;
			count = above;
		} else {
			high = middle;
		}
	}
	return sample_ordered(low);
}

/* Bounds low <= x < high that contain the last token passed by top-p. */
typedef struct sample_bracket {
	float low, high;
} sample_bracket;

static const sample_bracket sample_anywhere = {-INFINITY, INFINITY};

/* Weights that are let through by a bound, and how many logits reach it. */
typedef struct sample_reach {
	uint64_t mass;
	int64_t count;
} sample_reach;

static inline sample_reach sample_reach_from(const float *x, const uint64_t *weight, int64_t n, float bound)
{
	uint64_t mass = 0;
#pragma omp simd reduction(+ : mass)
	for (int64_t i = 0; i < n; i++)
		mass += x[i] >= bound ? weight[i] : 0;
	return (sample_reach){mass, sample_count_from(x, n, bound)};
}

/* The index of the token, among n in the order of ids, at which by rank the sum of weights reaches `goal`, at least the
 * first; -1: it does not. The token is in the bracket, which is halved until it has one logit, or equal ones. *mass:
 * the sum.
 */
static inline int64_t sample_find_cut(const float *x, const uint64_t *weight, int64_t n, sample_bracket b,
                                      uint64_t goal, uint64_t *mass)
{
	int64_t low = sample_order(b.low), high = sample_order(b.high), last = -1;
	sample_reach from = sample_reach_from(x, weight, n, b.low), to = sample_reach_from(x, weight, n, b.high);
	goal = goal > 0 ? goal : 1;
	*mass = from.mass;
	if (from.mass < goal)
		return -1;
	while (from.count - to.count > 1 && high - low > 1) {
		const int64_t middle = low + (high - low) / 2;
		const sample_reach half = sample_reach_from(x, weight, n, sample_ordered(middle));
		if (half.mass >= goal) {
			low = middle;
			from = half;
		} else {
			high = middle;
			to = half;
		}
	}
	const float least = sample_ordered(low), most = sample_ordered(high);
	*mass = to.mass;
	for (int64_t i = 0; i < n && *mass < goal; i++)
		if (x[i] >= least && x[i] < most) {
			*mass += weight[i];
			last = i;
		}
	return last;
}

/* --- one row's memory ---------------------------------------------------------- */

/* A thread's memory for one row: `vocab` of each and 16 more, which sample_collect may overwrite. */
typedef struct sample_memory {
	uint64_t *weight;
	float *adjusted, *listed, *estimate;
	int32_t *id, *item, *left; /* left: the tokens that a mask leaves */
} sample_memory;

static inline int64_t sample_padded(int64_t vocab)
{
	return (kernel_parts(vocab, SAMPLE_LANES) + 1) * SAMPLE_LANES;
}

static inline size_t sample_memory_bytes(int64_t vocab)
{
	return (size_t)sample_padded(vocab) * (sizeof(uint64_t) + 3 * sizeof(float) + 3 * sizeof(int32_t));
}

static inline sample_memory sample_memory_at(void *scratch, int64_t vocab)
{
	const int64_t padded = sample_padded(vocab);
	sample_memory m = {.weight = scratch};
	m.adjusted = (float *)(m.weight + padded);
	m.listed = m.adjusted + padded;
	m.estimate = m.listed + padded;
	m.id = (int32_t *)(m.estimate + padded);
	m.item = m.id + padded;
	m.left = m.item + padded;
	return m;
}

/* The list of all tokens with a logit of at least `low`, from their blocks, of which `top` has the maxima. */
static inline sample_list sample_collect_blocks(const sample_list *all, const float *top, float low,
                                                const sample_memory *m)
{
	const int64_t whole = all->n / LINEAR_BLOCK;
	int32_t *block = m->item;
	const int64_t blocks =
	    sample_collect(top, 0, kernel_parts(all->n, LINEAR_BLOCK), low, INFINITY, (float *)m->weight, block, 0);
	sample_list few = {.x = m->listed, .id = m->id};
	for (int64_t i = 0; i < blocks; i++)
		for (int64_t l = 0; l <= LINEAR_BLOCK; l += SAMPLE_LANES) /* three lines: rows need not be aligned */
			__builtin_prefetch(all->x + block[i] * (int64_t)LINEAR_BLOCK + l);
	for (int64_t i = 0; i < blocks; i++) {
		const int64_t first = block[i] * (int64_t)LINEAR_BLOCK;
		if (block[i] == whole)
			few.n = sample_collect(all->x, first, all->n, low, INFINITY, m->listed, m->id, few.n);
		for (int64_t l = 0; block[i] < whole && l < LINEAR_BLOCK; l += SAMPLE_LANES)
			few.n = sample_append(all->x, first + l, low, INFINITY, m->listed, m->id, few.n);
	}
	return few;
}

/* Keep the entries of m->listed and m->id from `low` to below `high`. */
static inline int64_t sample_narrow(int64_t n, float low, float high, const sample_memory *m)
{
	const int64_t left = sample_collect(m->listed, 0, n, low, high, m->listed, m->item, 0);
	for (int64_t i = 0; i < left; i++)
		m->id[i] = m->id[m->item[i]];
	return left;
}

/* Leave, of n tokens in m->listed and m->id, the k that rank first, which the bracket then holds; filled up to a
 * multiple of LANES with tokens that have no weight. Returns how many there are. */
static inline int64_t sample_leave(int64_t n, int64_t k, float max, const sample_memory *m, sample_bracket *b)
{
	b->high = sample_ordered(sample_order(max) + 1);
	if (n > k) {
		b->low = sample_bound(m->listed, n, k, 0, max);
		n = sample_narrow(n, b->low, INFINITY, m);
	}
	for (int64_t i = n - 1; n > k; i--) /* the last of those that are equal to the bound */
		if (m->listed[i] == b->low) {
			n--;
			memmove(m->listed + i, m->listed + i + 1, (size_t)(n - i) * sizeof(float));
			memmove(m->id + i, m->id + i + 1, (size_t)(n - i) * sizeof(int32_t));
		}
	for (; n % SAMPLE_LANES; n++)
		m->listed[n] = -INFINITY;
	return n;
}

#endif
