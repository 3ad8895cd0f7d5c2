/* random.h - reproducible test data: Philox, so a draw depends only on its seed. */
#ifndef TESTS_UNIT_SUPPORT_RANDOM_H
#define TESTS_UNIT_SUPPORT_RANDOM_H

#include <stdint.h>

/* Normal with mean 0 (Box and Muller 1958). */
void random_normal(float *x, int64_t count, uint64_t seed, double std);
/* Integers from low to high, both included. */
void random_integers(int32_t *x, int64_t count, uint64_t seed, int32_t low, int32_t high);
/* One integer from low to high, both included; advances *seed. */
int64_t random_next(uint64_t *seed, int64_t low, int64_t high);

#endif
