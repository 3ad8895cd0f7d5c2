/* mt19937.h - the Mersenne Twister (Matsumoto and Nishimura, "Mersenne Twister: a 623-dimensionally equidistributed
 * uniform pseudorandom number generator", 1998), for what must agree with numbers that another program drew; everything
 * else is drawn by philox.h. A sequence: each draw depends on all draws before it. */
#ifndef ENGINE_BASE_MT19937_H
#define ENGINE_BASE_MT19937_H

#include <stdint.h>

enum { MT19937_WORDS = 624 };

typedef struct mt19937 {
	uint32_t word[MT19937_WORDS];
	int next; /* word to be drawn */
} mt19937;

void mt19937_seed(mt19937 *m, uint32_t seed);
uint32_t mt19937_next(mt19937 *m);
/* (word + ½) / 2³²: above 0 and below 1. */
double mt19937_uniform(mt19937 *m);
/* N(0, 1) by Marsaglia's polar method, of whose two numbers the second is not used: two words, or more. */
double mt19937_normal(mt19937 *m);
/* From 0 to n - 1, n > 0, each as likely: of 64 bits, the upper word first. */
uint64_t mt19937_below(mt19937 *m, uint64_t n);

#endif
