/* codes.h - 8-bit codes (engine/tensor/ops/quantize.h) as floats, and exact sums of their products. */
#ifndef ENGINE_CPU_KERNELS_CODES_H
#define ENGINE_CPU_KERNELS_CODES_H

#include <string.h>

#include "engine/cpu/kernels/product.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

/* A vector of codes as floats. Compilers make single bytes of a vector conversion. */
static inline product_vector codes_widen(const int8_t *code)
{
#if defined(__AVX512F__)
	return (product_vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)code)));
#elif defined(__AVX2__)
	return (product_vector)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)code)));
#else
	product_vector x = {0};
	for (int l = 0; l < PRODUCT_VECTOR; l++)
		x[l] = (float)code[l];
	return x;
#endif
}

/* to [width] = step · codes */
static inline void codes_decode(const int8_t *code, float step, int64_t width, float *to)
{
	int64_t d = 0;
	for (; d + PRODUCT_VECTOR <= width; d += PRODUCT_VECTOR)
		*(product_vector *)(to + d) = step * codes_widen(code + d);
	for (; d < width; d++)
		to[d] = step * (float)code[d];
}

/* dot [4] = Σ_d q[d] key[d], q and the keys codes, d < width ≤ SOFTMAX_MOST_CODES */
static inline void codes_dots(const int16_t *q, const int8_t *const key[4], int64_t width, int32_t *dot)
{
	int64_t d = 0;
#if defined(__AVX512BW__)
	__m512i sum[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(),
	                  _mm512_setzero_si512()};
	for (; d + 32 <= width; d += 32) {
		const __m512i x = _mm512_loadu_si512(q + d);
		for (int i = 0; i < 4; i++) {
			const __m512i k = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(key[i] + d)));
			sum[i] = _mm512_add_epi32(sum[i], _mm512_madd_epi16(x, k));
		}
	}
	if (d < width) {
		const __mmask32 present = (1u << (width - d)) - 1;
		const __m512i x = _mm512_maskz_loadu_epi16(present, q + d);
		for (int i = 0; i < 4; i++) {
			const __m512i k = _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(present, key[i] + d));
			sum[i] = _mm512_add_epi32(sum[i], _mm512_madd_epi16(x, k));
		}
		d = width;
	}
	__m128i part[4];
	for (int i = 0; i < 4; i++) {
		const __m256i half =
		    _mm256_add_epi32(_mm512_castsi512_si256(sum[i]), _mm512_extracti64x4_epi64(sum[i], 1));
		part[i] = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
	}
#elif defined(__AVX2__)
	__m256i sum[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
	                  _mm256_setzero_si256()};
	for (; d + 16 <= width; d += 16) {
		const __m256i x = _mm256_loadu_si256((const __m256i *)(q + d));
		for (int i = 0; i < 4; i++) {
			const __m256i k = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(key[i] + d)));
			sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(x, k));
		}
	}
	__m128i part[4];
	for (int i = 0; i < 4; i++)
		part[i] = _mm_add_epi32(_mm256_castsi256_si128(sum[i]), _mm256_extracti128_si256(sum[i], 1));
#endif
#ifdef __AVX2__
	const __m128i all = _mm_hadd_epi32(_mm_hadd_epi32(part[0], part[1]), _mm_hadd_epi32(part[2], part[3]));
	_mm_storeu_si128((__m128i *)dot, all);
#else
	memset(dot, 0, 4 * sizeof *dot);
#endif
	for (int i = 0; i < 4; i++)
		for (int64_t e = d; e < width; e++)
			dot[i] += q[e] * key[i][e];
}

#endif
