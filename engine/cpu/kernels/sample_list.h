/* sample_list.h - the row of logits that `sample` works on, and its selections: the largest logits, those within
 * bounds, and the last token by rank that a cut lets through.
 *
 * A row starts as the whole vocabulary. Where a threshold says that few tokens are in question, they become a shorter
 * row with the tokens' ids beside their logits, in the order of ids, so that all that follows is the same code. */
#ifndef ENGINE_CPU_KERNELS_SAMPLE_LIST_H
#define ENGINE_CPU_KERNELS_SAMPLE_LIST_H

#include "engine/base/philox.h"
#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/sample_weigh.h"
#ifdef __AVX512F__
#include <immintrin.h>
#endif

enum { SAMPLE_LANES = 16, SAMPLE_BINS = 64 };

/* Tokens in question, in the order of their ids. */
typedef struct sample_list {
	const float *x;    /* [n] logits */
	const int32_t *id; /* [n]; NULL: token i lies at i */
	int64_t n;
} sample_list;

/* u of the definition, in units of 2^-24. */
static inline uint32_t sample_random(const sample_setting *s)
{
	return philox(sample_seed(s), PHILOX_STREAM_SAMPLE, 0, sample_position(s)).word[0] >> 8;
}

/* The maxima of interleaved blocks: top[g · LANES + l] of x[g · stretch + l + j · LANES] for j < depth; not finite:
 * left out, -inf when that leaves none. */
typedef struct sample_tops {
	float *top; /* [n] */
	int64_t n, depth;
} sample_tops;

/* About max(512, 8 k) blocks: enough of them that the k-th largest maximum is seldom far below the k-th largest logit.
 */
static inline int64_t sample_depth(int64_t n, int64_t k)
{
	const int64_t depth = n / (k > 64 ? 8 * k : 512);
	return depth < 1 ? 1 : kernel_min(depth, 64);
}

static inline sample_tops sample_find_tops(const float *x, int64_t n, int64_t k, float *top)
{
	sample_tops t = {.top = top, .depth = sample_depth(n, k)};
	const int64_t stretch = t.depth * SAMPLE_LANES;
	for (int64_t first = 0; first < n; first += stretch, t.n += SAMPLE_LANES) {
		const int64_t end = kernel_min(n, first + stretch);
		float most[SAMPLE_LANES];
		for (int l = 0; l < SAMPLE_LANES; l++)
			most[l] = -INFINITY;
		int64_t i = first;
		for (; i + SAMPLE_LANES <= end; i += SAMPLE_LANES) {
#pragma omp simd
			for (int l = 0; l < SAMPLE_LANES; l++)
				most[l] = ((x[i + l] > most[l]) & (x[i + l] <= FLT_MAX)) ? x[i + l] : most[l];
		}
		for (int l = 0; i < end; i++, l++)
			most[l] = ((x[i] > most[l]) & (x[i] <= FLT_MAX)) ? x[i] : most[l];
		memcpy(top + t.n, most, sizeof most);
	}
	return t;
}

static inline int64_t sample_count_from(const float *x, int64_t n, float bound)
{
	int32_t count = 0;
#pragma omp simd reduction(+ : count)
	for (int64_t i = 0; i < n; i++)
		count += x[i] >= bound;
	return count;
}

/* Is one of LANES logits at least `bound`? */
static inline bool sample_any_from(const float *x, float bound)
{
#ifdef __AVX512F__
	return _mm512_cmp_ps_mask(_mm512_loadu_ps(x), _mm512_set1_ps(bound), _CMP_GE_OQ) != 0;
#else
	int any = 0;
#pragma omp simd reduction(| : any)
	for (int l = 0; l < SAMPLE_LANES; l++)
		any |= x[l] >= bound;
	return any;
#endif
}

/* The finite logit that ranks first; -1: none is finite. */
static inline int32_t sample_best(const float *x, int64_t n, const sample_tops *t)
{
	float most = -INFINITY;
#pragma omp simd reduction(max : most)
	for (int64_t i = 0; i < t->n; i++)
		most = t->top[i] > most ? t->top[i] : most;
	if (most == -INFINITY)
		return -1;
	int64_t block = 0;
	while (!sample_any_from(t->top + block, most))
		block += SAMPLE_LANES;
	int64_t i = block * t->depth;
	for (; i + SAMPLE_LANES <= n; i += SAMPLE_LANES) {
		int any = 0;
#pragma omp simd reduction(| : any)
		for (int l = 0; l < SAMPLE_LANES; l++)
			any |= x[i + l] == most;
		if (any)
			break;
	}
	while (x[i] != most)
		i++;
	return (int32_t)i;
}

/* A bound that at least k logits reach, few more unless many are equal; -inf: there are not so many maxima. */
static inline float sample_bound(const sample_tops *t, int64_t k, float max)
{
	enum { ROUNDS = 24 };
	float low = max;
#pragma omp simd reduction(min : low)
	for (int64_t i = 0; i < t->n; i++)
		low = t->top[i] < low && t->top[i] >= -FLT_MAX ? t->top[i] : low;
	int64_t count = sample_count_from(t->top, t->n, low);
	if (count < k)
		return -INFINITY;
	float high = max;
	for (int round = 0; round < ROUNDS && count > k + k / 4; round++) {
		const float middle = 0.5f * low + 0.5f * high;
		const int64_t above = sample_count_from(t->top, t->n, middle);
		if (above >= k) {
			low = middle;
			count = above;
		} else {
			high = middle;
		}
	}
	return low;
}

/* Append the tokens of x[first … end - 1] with low <= x < high to to_x and to_id, which have room for 16 more
 * than there can be; returns the new count. */
static inline int64_t sample_collect(const float *x, int64_t first, int64_t end, float low, float high, float *to_x,
                                     int32_t *to_id, int64_t n)
{
	int64_t i = first;
	for (; i + SAMPLE_LANES <= end; i += SAMPLE_LANES) {
#ifdef __AVX512F__
		const __m512 v = _mm512_loadu_ps(x + i);
		const __mmask16 in = _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(v, _mm512_set1_ps(low), _CMP_GE_OQ), v,
		                                             _mm512_set1_ps(high), _CMP_LT_OQ);
		if (in) {
			const __m512i count = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
			const __m512i id = _mm512_add_epi32(_mm512_set1_epi32((int32_t)i), count);
			_mm512_storeu_ps(to_x + n, _mm512_maskz_compress_ps(in, v));
			_mm512_storeu_si512(to_id + n, _mm512_maskz_compress_epi32(in, id));
			n += __builtin_popcount(in);
		}
#else
		int any = 0;
#pragma omp simd reduction(| : any)
		for (int l = 0; l < SAMPLE_LANES; l++)
			any |= (x[i + l] >= low) & (x[i + l] < high);
		for (int l = 0; any && l < SAMPLE_LANES; l++) {
			to_x[n] = x[i + l];
			to_id[n] = (int32_t)(i + l);
			n += (x[i + l] >= low) & (x[i + l] < high);
		}
#endif
	}
	for (; i < end; i++) {
		to_x[n] = x[i];
		to_id[n] = (int32_t)i;
		n += (x[i] >= low) & (x[i] < high);
	}
	return n;
}

/* The same for all of n, without the stretches whose maxima are below. */
static inline int64_t sample_collect_from(const float *x, int64_t n, const sample_tops *t, float low, float *to_x,
                                          int32_t *to_id)
{
	const int64_t stretch = t->depth * SAMPLE_LANES;
	int64_t found = 0;
	for (int64_t first = 0, block = 0; first < n; first += stretch, block += SAMPLE_LANES)
		if (sample_any_from(t->top + block, low))
			found =
			    sample_collect(x, first, kernel_min(n, first + stretch), low, INFINITY, to_x, to_id, found);
	return found;
}

/* The bounds low <= x < high between which the last token lies that top-p lets through. */
typedef struct sample_bracket {
	float low, high;
} sample_bracket;

static const sample_bracket sample_anywhere = {-INFINITY, INFINITY};

/* --- the cut ------------------------------------------------------------------ */

/* What lies before the place where a cut is looked for, by rank. */
typedef struct sample_cut {
	int64_t counted;
	uint64_t reached;
	int64_t last; /* index of the last token that is let through; -1: not found yet */
} sample_cut;

static inline bool sample_cut_done(const sample_cut *c, int64_t count, uint64_t goal)
{
	return c->counted > 0 && (c->counted >= count || c->reached >= goal);
}

static inline void sample_cut_take(sample_cut *c, const uint64_t *weight, int32_t item)
{
	c->last = item;
	c->counted++;
	c->reached += weight[item];
}

/* Take one of the n items after the other, best first; equal logits are in the order of ids already. */
static inline void sample_cut_few(sample_cut *c, const float *x, const uint64_t *weight, int32_t *item, int64_t n,
                                  int64_t count, uint64_t goal)
{
	for (int64_t i = 0; i < n && !sample_cut_done(c, count, goal); i++) {
		int64_t best = i;
		for (int64_t j = i + 1; j < n; j++)
			best = x[item[j]] > x[item[best]] ? j : best;
		const int32_t taken = item[best];
		memmove(item + i + 1, item + i, (size_t)(best - i) * sizeof *item);
		sample_cut_take(c, weight, taken);
	}
}

/* Reduce the items to those of the bin in which the cut lies; bins of equal width from the largest logit to the least.
 */
static inline int64_t sample_cut_bin(sample_cut *c, const float *x, const uint64_t *weight, int32_t *item, int64_t n,
                                     float max, float min, int64_t count, uint64_t goal)
{
	const double scale = (SAMPLE_BINS - 1) / ((double)max - min);
	int64_t counts[SAMPLE_BINS] = {0}, left = 0;
	uint64_t masses[SAMPLE_BINS] = {0};
	for (int64_t i = 0; i < n; i++) {
		const int bin = (int)(((double)max - x[item[i]]) * scale);
		counts[bin]++;
		masses[bin] += weight[item[i]];
	}
	int bin = 0;
	while (bin < SAMPLE_BINS - 1 && c->counted + counts[bin] < count && c->reached + masses[bin] < goal) {
		c->counted += counts[bin];
		c->reached += masses[bin++];
	}
	for (int64_t i = 0; i < n; i++) {
		const int32_t it = item[i];
		item[left] = it;
		left += (int)(((double)max - x[it]) * scale) == bin;
	}
	return left;
}

/* Find, among n items in the order of ids, the token at which by rank `count` are counted or `goal` is reached, what
 * lies before them included; the last one where neither happens. Each round leaves a bin, which lacks the largest
 * logit or the least; a few items are sorted, and equal ones are in order. */
static inline sample_cut sample_find_cut(sample_cut c, const float *x, const uint64_t *weight, int32_t *item, int64_t n,
                                         int64_t count, uint64_t goal)
{
	enum { FEW = 8 };
	while (n > FEW) {
		float max = -INFINITY, min = INFINITY;
		for (int64_t i = 0; i < n; i++) {
			max = x[item[i]] > max ? x[item[i]] : max;
			min = x[item[i]] < min ? x[item[i]] : min;
		}
		if (max == min) {
			for (int64_t i = 0; i < n && !sample_cut_done(&c, count, goal); i++)
				sample_cut_take(&c, weight, item[i]);
			return c;
		}
		n = sample_cut_bin(&c, x, weight, item, n, max, min, count, goal);
	}
	sample_cut_few(&c, x, weight, item, n, count, goal);
	return c;
}

/* --- one row's memory ---------------------------------------------------------- */

/* A thread's memory for one row: `vocab` of each and 16 more, which sample_collect may overwrite. */
typedef struct sample_memory {
	uint64_t *weight;
	float *adjusted, *listed, *estimate;
	int32_t *id, *item;
} sample_memory;

static inline int64_t sample_padded(int64_t vocab)
{
	return (kernel_parts(vocab, SAMPLE_LANES) + 1) * SAMPLE_LANES;
}

static inline size_t sample_memory_bytes(int64_t vocab)
{
	return (size_t)sample_padded(vocab) * (sizeof(uint64_t) + 3 * sizeof(float) + 2 * sizeof(int32_t));
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
	return m;
}

#endif
