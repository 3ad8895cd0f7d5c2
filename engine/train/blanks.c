#include "engine/train/blanks.h"

#include <math.h>

#include "engine/base/philox.h"

int64_t blanks_count(double x)
{
	int64_t n = (int64_t)fmin(fabs(x), BLANKS_MOST);
	return n > 0 ? n : 1;
}

int64_t blanks_apply(int64_t words, const int64_t *positions, int64_t n, int64_t *out)
{
	int64_t count = 0;
	for (int64_t word = 0; word < words; word++) {
		int64_t is = word;
		for (int64_t i = 0; i < n; i++)
			is = positions[i] == word ? BLANK : is;
		if (is != BLANK || count == 0 || out[count - 1] != BLANK)
			out[count++] = is;
	}
	return count;
}

int64_t blanks_draw(uint64_t seed, int64_t epoch, int64_t place, int64_t words, int64_t *out)
{
	philox_block random[2];
	int64_t positions[BLANKS_MOST];
	for (int i = 0; i < 2; i++)
		random[i] = philox(seed, PHILOX_STREAM_BLANKS, (uint32_t)epoch, 2 * (uint64_t)place + (uint64_t)i);
	/* Box and Muller; 1 - u lies in (0, 1], so its logarithm is finite. */
	double u = 1 - (double)philox_uniform(random[0].word[0]), turn = (double)philox_uniform(random[0].word[1]);
	double x = (double)(words / 3) * sqrt(-2 * log(u)) * cos(2 * M_PI * turn);
	int64_t n = blanks_count(x), last = words > 2 ? words - 1 : 1;
	for (int64_t i = 0; i < n; i++)
		positions[i] = (int64_t)((uint64_t)random[1].word[i] * (uint64_t)last >> 32);
	return blanks_apply(words, positions, n, out);
}
