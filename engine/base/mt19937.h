/* mt19937.h - the Mersenne Twister, for results that must agree with another program's random numbers.
 *
 * Matsumoto and Nishimura, "Mersenne Twister: a 623-dimensionally equidistributed uniform pseudorandom number
 * generator", 1998. All other random numbers come from philox.h. Each draw depends on all draws before it. */
#ifndef ENGINE_BASE_MT19937_H
#define ENGINE_BASE_MT19937_H

#include <stdint.h>

enum { MT19937_WORDS = 624 };

typedef struct mt19937 {
	uint32_t word[MT19937_WORDS];
	int next; /* index of the next word */
} mt19937;

void mt19937_seed(mt19937 *m, uint32_t seed);
uint32_t mt19937_next(mt19937 *m);
/* (word + ½) / 2³²: greater than 0 and less than 1. */
double mt19937_uniform(mt19937 *m);
/* Sample N(0, 1) with Marsaglia's polar method; the second number of each pair is discarded. Consumes two words or
 * more. */
double mt19937_normal(mt19937 *m);
/* Uniform integer from 0 to n - 1, n > 0, from 64 bits, the upper word first. */
uint64_t mt19937_below(mt19937 *m, uint64_t n);

#endif
