/* ranks.h - the processes that share a run: data parallel training, seen from one of them.
 *
 * Each of `count` ranks holds the whole model and trains on its share of every batch. Gradients are added up over all
 * of them, so that all make the same update: weights, progress and what follows from these is equal everywhere, and
 * nothing else is exchanged. How ranks reach each other is for the implementation; the trainer depends on no library
 * for it. */
#ifndef ENGINE_TRAIN_RANKS_H
#define ENGINE_TRAIN_RANKS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"

typedef struct ranks ranks;

struct ranks {
	int rank, count; /* 0 to count - 1 */
	/* Set by any rank: let all stop. Each step's sum brings it to all, which then have `stop` after the same step.
	 */
	bool wants_stop, stop;
	/* The ranks' backends are a group (collective_open of backend.h): numbers in their memory are added up there.
	 * Else all sums are of host memory. */
	bool devices;
	/* Begin to replace each of n numbers in host memory by its sum over all ranks, of equal bits on each. All ranks
	 * begin the same sums in the same order, and leave the numbers alone until poll says that they are complete.
	 * STATUS_UNAVAILABLE: another rank cannot be reached. */
	status (*begin_sum)(ranks *r, float *numbers, int64_t n);
	/* Are all sums complete that were begun? Never waits. They may go on in calls of this alone. */
	status (*poll)(ranks *r, bool *complete);
};

#endif
