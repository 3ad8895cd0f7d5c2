#include "engine/train/blanks.h"

#include <math.h>

#include "engine/base/philox.h"

int64_t blanks_count(double x)
{
	int64_t n = (int64_t)fmin(fabs(x), BLANKS_MOST);
	return n > 0 ? n : 1;
}

blanks blanks_draw(uint64_t seed, int64_t epoch, int64_t place, int64_t words)
{
	philox_block random[2];
	for (int i = 0; i < 2; i++)
		random[i] = philox(seed, PHILOX_STREAM_BLANKS, (uint32_t)epoch, 2 * (uint64_t)place + (uint64_t)i);
	/* Box-Muller; 1 - u is in (0, 1], so its logarithm is finite. */
	double u = 1 - (double)philox_uniform(random[0].word[0]), turn = (double)philox_uniform(random[0].word[1]);
	double x = (double)(words / 3) * sqrt(-2 * log(u)) * cos(2 * M_PI * turn);
	blanks b = {.n = blanks_count(x)};
	for (int64_t i = 0; i < b.n; i++)
		b.words[i] = philox_below(random[1].word[i], words > 2 ? words - 1 : 1);
	return b;
}

bool blanks_hide(const blanks *b, int64_t word)
{
	bool hidden = false;
	for (int64_t i = 0; i < b->n; i++)
		hidden |= b->words[i] == word;
	return hidden;
}

int64_t blanks_append(int32_t *out, int64_t count, int32_t id, bool hidden, int32_t blank)
{
	if (hidden && count > 0 && out[count - 1] == blank)
		return count;
	out[count] = hidden ? blank : id;
	return count + 1;
}
