/* cuts.h - random divisions of texts into calls. */
#ifndef TESTS_UNIT_CUDA_CUTS_H
#define TESTS_UNIT_CUDA_CUTS_H

#include "tests/unit/support/random.h"

/* Choose how many tokens of each of n texts a call reads, of the `rest` that each has left. Some calls read none of a
 * text, and some up to 2 × few tokens; the first call reads all of text 1. True if some tokens are left after it. */
static inline bool random_cuts(int32_t *length, const int64_t *rest, int n, int call, int64_t few, uint64_t *seed)
{
	bool left = false;
	for (int i = 0; i < n; i++) {
		const int64_t most = random_next(seed, 0, 2) ? 180 : 2 * few;
		const int64_t wish = call == 0 && i == 1 ? rest[i] : random_next(seed, 0, most);
		length[i] = (int32_t)(wish < rest[i] ? wish : rest[i]);
		left = left || length[i] < rest[i];
	}
	return left;
}

#endif
