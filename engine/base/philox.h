/* philox.h - counter-based random numbers (Philox4x32-10; Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
 * easy as 1, 2, 3", SC 2011).
 *
 * A draw is a pure function of (seed, stream, counter). There is no state to save. A dropout mask or a sampled token is
 * the same on every backend, at any batch size and in any order. The streams in use:
 *
 *    dropout     stream = dropout site (0, 1, …), counter = (step, element / 4)
 *    sampling    stream = PHILOX_STREAM_SAMPLE, counter = (0, token position)
 *    init        stream = PHILOX_STREAM_INIT + parameter index
 *    shuffling   stream = PHILOX_STREAM_SHUFFLE, counter = (epoch, index)
 *    masking     stream = PHILOX_STREAM_MASK + try, counter = (epoch, record's index · its length + token)
 *    spans       stream = PHILOX_STREAM_SPAN, counter = (epoch, record's index · its length + item);
 *                word 0 is for the items that are kept, word 1 for those that are left out
 *    blanking    stream = PHILOX_STREAM_BLANKS, counter = (epoch, 2 · record's index + 0 or 1)
 *    evaluating  stream = PHILOX_STREAM_FAITHFULNESS + draw, counter = (position, text << 32 | token);
 *                word 0 is for the soft draw, word 1 for the random order;
 *                and PHILOX_STREAM_BOOTSTRAP, counter = (sample, draw) */
#ifndef ENGINE_BASE_PHILOX_H
#define ENGINE_BASE_PHILOX_H

#include <stdint.h>

#include "engine/base/device_function.h"

enum {
	PHILOX_STREAM_SAMPLE = 0x40000000,
	PHILOX_STREAM_SHUFFLE = 0x50000000,
	PHILOX_STREAM_MASK = 0x58000000,
	PHILOX_STREAM_SPAN = 0x59000000,
	PHILOX_STREAM_BLANKS = 0x5c000000,
	PHILOX_STREAM_INIT = 0x60000000,
	PHILOX_STREAM_FAITHFULNESS = 0x70000000,
	PHILOX_STREAM_BOOTSTRAP = 0x71000000,
};

typedef struct philox_block {
	uint32_t word[4];
} philox_block;

/* Four random words for (seed, stream, step, index). */
DEVICE_FUNCTION philox_block philox(uint64_t seed, uint32_t stream, uint32_t step, uint64_t index)
{
	uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = stream, c3 = step;
	uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
	for (int round = 0; round < 10; round++) {
		uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
		uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
		c0 = n0, c1 = (uint32_t)p1, c2 = n2, c3 = (uint32_t)p0;
		k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
	}
	return (philox_block){{c0, c1, c2, c3}};
}

/* A word as a float in [0, 1): its top 24 bits, so every value is exact. */
DEVICE_FUNCTION float philox_uniform(uint32_t word)
{
	return (float)(word >> 8) * 0x1p-24f;
}

/* A word as an integer below n, n < 2^32. */
DEVICE_FUNCTION int64_t philox_below(uint32_t word, int64_t n)
{
	return (int64_t)((uint64_t)word * (uint64_t)n >> 32);
}

#endif
