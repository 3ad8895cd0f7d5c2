#include "tests/unit/support/random.h"

#include <math.h>

#include "engine/base/philox.h"

/* A stream that no production code draws from. */
enum { STREAM = 0x7e570000 };

/* In (0, 1], so that its logarithm is finite. */
static double uniform(uint32_t word)
{
	return ((double)word + 1) / 4294967296.0;
}

void random_normal(float *x, int64_t count, uint64_t seed, double std)
{
	for (int64_t i = 0; i < count; i++) {
		philox_block block = philox(seed, STREAM, 0, (uint64_t)i);
		double radius = sqrt(-2 * log(uniform(block.word[0])));
		x[i] = (float)(std * radius * cos(2 * M_PI * uniform(block.word[1])));
	}
}

static int64_t between(philox_block block, int64_t low, int64_t high)
{
	uint64_t wide = (uint64_t)block.word[1] << 32 | block.word[0];
	return low + (int64_t)(wide % (uint64_t)(high - low + 1));
}

void random_integers(int32_t *x, int64_t count, uint64_t seed, int32_t low, int32_t high)
{
	for (int64_t i = 0; i < count; i++)
		x[i] = (int32_t)between(philox(seed, STREAM, 1, (uint64_t)i), low, high);
}

int64_t random_next(uint64_t *seed, int64_t low, int64_t high)
{
	return between(philox((*seed)++, STREAM, 2, 0), low, high);
}
