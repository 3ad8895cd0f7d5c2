/* maxima.h - the largest finite number of each block of a row, as linear gives it and sample reads it (ops.h).
 *
 * Four blocks at a time share the steps from vectors to numbers: 8 shuffles and no chain of them for each block. */
#ifndef ENGINE_CPU_KERNELS_MAXIMA_H
#define ENGINE_CPU_KERNELS_MAXIMA_H

#include <float.h>
#include <math.h>

#include "engine/cpu/kernels/kernels.h"
#ifdef __AVX512F__
#include <immintrin.h>
#endif

/* -inf where none is finite. */
static inline float maxima_of_block(const float *x, int64_t n)
{
	float most = -INFINITY;
#pragma omp simd reduction(max : most)
	for (int64_t i = 0; i < n; i++)
		most = ((x[i] > most) & (x[i] <= FLT_MAX)) ? x[i] : most;
	return most;
}

#ifdef __AVX512F__
/* Lane maxima of a block's halves. If one operand is NaN, the maximum is the second. */
static inline __m512 maxima_of_halves(__m512 first, __m512 second)
{
	return _mm512_max_ps(second, _mm512_max_ps(first, _mm512_set1_ps(-INFINITY)));
}

/* Maxima of four blocks from their lane maxima. False, writing nothing: one of them is infinite. */
static inline bool maxima_of_lanes(const __m512 m[4], float maxima[4])
{
	const __m512 a = _mm512_max_ps(_mm512_unpacklo_ps(m[0], m[1]), _mm512_unpackhi_ps(m[0], m[1]));
	const __m512 b = _mm512_max_ps(_mm512_unpacklo_ps(m[2], m[3]), _mm512_unpackhi_ps(m[2], m[3]));
	const __m512 c = _mm512_max_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
	const __m512 d = _mm512_max_ps(c, _mm512_shuffle_f32x4(c, c, 0x4e));
	const __m128 e = _mm_max_ps(_mm512_castps512_ps128(d), _mm512_extractf32x4_ps(d, 1));
	if (_mm_movemask_ps(_mm_cmpgt_ps(e, _mm_set1_ps(FLT_MAX))))
		return false;
	_mm_storeu_ps(maxima, e);
	return true;
}

static inline bool maxima_of_four(const float *x, float maxima[4])
{
	__m512 m[4];
	for (int j = 0; j < 4; j++)
		m[j] = maxima_of_halves(_mm512_loadu_ps(x + j * LINEAR_BLOCK),
		                        _mm512_loadu_ps(x + j * LINEAR_BLOCK + LINEAR_BLOCK / 2));
	return maxima_of_lanes(m, maxima);
}
#endif

/* maxima [⌈n / LINEAR_BLOCK⌉] of x [n]; returns them. */
static inline const float *maxima_of_blocks(const float *x, int64_t n, float *maxima)
{
	enum { FOUR = 4 * LINEAR_BLOCK };
	for (int64_t first = 0; first < n; first += FOUR) {
		const int64_t end = kernel_min(n, first + FOUR);
#ifdef __AVX512F__
		if (end == first + FOUR && maxima_of_four(x + first, maxima + first / LINEAR_BLOCK))
			continue;
#endif
		for (int64_t i = first; i < end; i += LINEAR_BLOCK)
			maxima[i / LINEAR_BLOCK] = maxima_of_block(x + i, kernel_min(LINEAR_BLOCK, end - i));
	}
	return maxima;
}

#endif
