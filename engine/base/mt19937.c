/* The words are a linear recurrence over 624 words of which all are renewed at once; a draw scrambles the next one. */
#include "engine/base/mt19937.h"

#include <math.h>

enum { SHIFT = 397 };

void mt19937_seed(mt19937 *m, uint32_t seed)
{
	m->word[0] = seed;
	for (uint32_t i = 1; i < MT19937_WORDS; i++) {
		const uint32_t last = m->word[i - 1];
		m->word[i] = 1812433253U * (last ^ last >> 30) + i;
	}
	m->next = MT19937_WORDS;
}

uint32_t mt19937_next(mt19937 *m)
{
	if (m->next == MT19937_WORDS) {
		for (int i = 0; i < MT19937_WORDS; i++) {
			const uint32_t joined =
			    (m->word[i] & 0x80000000U) | (m->word[(i + 1) % MT19937_WORDS] & 0x7fffffffU);
			m->word[i] =
			    m->word[(i + SHIFT) % MT19937_WORDS] ^ joined >> 1 ^ (joined & 1 ? 0x9908b0dfU : 0);
		}
		m->next = 0;
	}
	uint32_t x = m->word[m->next++];
	x ^= x >> 11;
	x ^= x << 7 & 0x9d2c5680U;
	x ^= x << 15 & 0xefc60000U;
	return x ^ x >> 18;
}

double mt19937_uniform(mt19937 *m)
{
	return ((double)mt19937_next(m) + 0.5) * 0x1p-32;
}

double mt19937_normal(mt19937 *m)
{
	double x, square;
	do {
		x = 2 * mt19937_uniform(m) - 1;
		const double y = 2 * mt19937_uniform(m) - 1;
		square = x * x + y * y;
	} while (square > 1 || square == 0);
	return x * sqrt(-2 * log(square) / square);
}

uint64_t mt19937_below(mt19937 *m, uint64_t n)
{
	uint64_t x;
	do {
		x = (uint64_t)mt19937_next(m) << 32;
		x |= mt19937_next(m);
	} while (x >= UINT64_MAX / n * n);
	return x % n;
}
