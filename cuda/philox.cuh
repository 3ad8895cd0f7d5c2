/* philox.cuh - engine/base/philox.h on the device: the same words. Ten rounds of two wide products and two three-way
 * exclusive ors for four elements. */
#ifndef CUDA_PHILOX_CUH
#define CUDA_PHILOX_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* The four words of philox(seed, stream, step, index). */
__device__ __forceinline__ void philox_words(uint32_t word[4], uint32_t k0, uint32_t k1, uint32_t stream, uint32_t step,
                                             uint64_t index)
{
	uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = stream, c3 = step;
#pragma unroll
	for (int round = 0; round < 10; round++) {
		uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
		uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
		c0 = n0, c1 = (uint32_t)p1, c2 = n2, c3 = (uint32_t)p0;
		k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
	}
	word[0] = c0, word[1] = c1, word[2] = c2, word[3] = c3;
}

#endif
