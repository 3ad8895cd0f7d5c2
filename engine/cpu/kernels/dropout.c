/* dropout: y = x / (1 - p) where a random word says so, else 0.
 *
 * A Philox block gives the words of four neighbouring elements and depends only on its
 * index, so LANES blocks are made side by side in vector registers. The test
 * philox_uniform(word) >= p is made on integers: the uniform is word >> 8 in units of 2^-24. */
#include "engine/base/philox.h"
#include "engine/cpu/kernels/kernels.h"

#include <math.h>
#include <string.h>

enum { LANES = 16, PART = 4 * LANES, COST = 8 };

/* The words of PART elements from 4·block on. */
static inline void words(uint64_t seed, uint32_t stream, uint32_t step, uint64_t block, uint32_t out[PART])
{
#pragma omp simd
	for (int l = 0; l < LANES; l++) {
		philox_block r = philox(seed, stream, step, block + (uint64_t)l);
		out[4 * l] = r.word[0];
		out[4 * l + 1] = r.word[1];
		out[4 * l + 2] = r.word[2];
		out[4 * l + 3] = r.word[3];
	}
}

status KERNEL(dropout)(backend *b, const op_call *call)
{
	const dropout_params *p = call->params;
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
	int64_t n = shape_count(call->out[0].shape);
	uint32_t rng[4];
	memcpy(rng, call->in[1].data, sizeof rng);
	const uint64_t seed = (uint64_t)rng[1] << 32 | rng[0];
	const uint32_t kept = (uint32_t)ceil((double)p->p * 0x1p24);
	const float factor = 1.0f / (1.0f - p->p);
	const uint64_t before = rng[3] * (uint64_t)((n + 3) / 4); /* blocks of the parts of a batch before this */
	int64_t parts = kernel_parts(n, PART);
	const int threads = kernel_threads(b, n * COST);
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t part = 0; part < parts; part++) {
		uint32_t word[PART];
		words(seed, p->stream, rng[2], before + (uint64_t)(part * LANES), word);
		int64_t first = part * PART, count = kernel_min(PART, n - first);
#pragma omp simd
		for (int64_t i = 0; i < count; i++)
			y[first + i] = word[i] >> 8 >= kept ? factor * x[first + i] : 0.0f;
	}
	return STATUS_OK;
}
