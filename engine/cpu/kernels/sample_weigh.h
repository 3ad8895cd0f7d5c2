/* sample_weigh.h - the weights of many tokens, bit for bit as sample_weight gives them.
 *
 * Compilers turn sample_weight's products of 32-bit words into 64-bit products, three instructions in AVX-512 and more
 * in AVX2. A single instruction multiplies the lower halves of 64-bit lanes. On x86-64 the same steps are therefore
 * repeated here in vectors. */
#ifndef ENGINE_CPU_KERNELS_SAMPLE_WEIGH_H
#define ENGINE_CPU_KERNELS_SAMPLE_WEIGH_H

#include "engine/tensor/ops/sample.h"

#include <string.h>

#ifdef __AVX2__
#include <immintrin.h>

#ifdef __AVX512F__
enum { WEIGH_LANES = 8 };
#define WEIGH_MULTIPLY(a, b) (weigh_words) _mm512_mul_epu32((__m512i)(a), (__m512i)(b))
#define WEIGH_SHIFT(a, n) (weigh_words) _mm512_srlv_epi64((__m512i)(a), (__m512i)(n))
#else
enum { WEIGH_LANES = 4 };
#define WEIGH_MULTIPLY(a, b) (weigh_words) _mm256_mul_epu32((__m256i)(a), (__m256i)(b))
#define WEIGH_SHIFT(a, n) (weigh_words) _mm256_srlv_epi64((__m256i)(a), (__m256i)(n))
#endif

typedef uint64_t weigh_words __attribute__((vector_size(WEIGH_LANES * 8)));

/* constant - a · b / 2^32 */
static inline weigh_words weigh_less(uint64_t constant, weigh_words a, weigh_words b)
{
	return constant - (WEIGH_MULTIPLY(a, b) >> 32);
}

/* sample_weight for t in units of 2^-26. */
static inline weigh_words weigh_fixed(weigh_words fixed)
{
	const weigh_words none = {0}, z = WEIGH_MULTIPLY(fixed, none + 1549082005), n = z >> 56, f = z >> 24;
	weigh_words h = weigh_less(5475002, f, none + 468251);
	h = weigh_less(41142264, f, h);
	h = weigh_less(238330987, f, h);
	h = weigh_less(1031755804, f, h);
	h = weigh_less(2977043973, f, h);
	const weigh_words twice = weigh_less((uint64_t)1 << 32, f, h) << (SAMPLE_BITS - 31);
	return (WEIGH_SHIFT(twice, n) + 1) >> 1;
}
#endif

static inline void sample_weigh(const float *x, int64_t n, float max, float temperature, uint64_t *weight)
{
	int64_t i = 0;
#ifdef __AVX2__
	enum { PART = 16 };
	for (; i + PART <= n; i += PART) {
		uint64_t fixed[PART];
#pragma omp simd
		for (int l = 0; l < PART; l++)
			fixed[l] = (uint32_t)(int32_t)(sample_distance(x[i + l], max, temperature) * 0x1p26f);
		for (int l = 0; l < PART; l += WEIGH_LANES) {
			weigh_words w;
			memcpy(&w, fixed + l, sizeof w);
			w = weigh_fixed(w);
			memcpy(weight + i + l, &w, sizeof w);
		}
	}
#endif
#pragma omp simd
	for (int64_t j = i; j < n; j++)
		weight[j] = sample_weight(sample_distance(x[j], max, temperature));
}

#endif
