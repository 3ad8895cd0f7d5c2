/* ranks.h - the processes that share a run (data parallel training), seen from one of them.
 *
 * Each of `count` ranks has the whole model and trains on its share of every batch. Gradients are summed over all
 * ranks, so all make the same update: weights and progress are equal everywhere. Every rank evaluates all of the
 * validation records. The implementation decides how ranks communicate; the trainer depends on no library for it.
 *
 * With train_options.shard_optimizer each rank keeps the optimiser's states of its share of the weights only and
 * updates only these. The ranks then exchange the weights. All bits are those of a run without the option.
 *
 * A run gives the losses of one process with the same batch_size, except for the order of sums. It continues from a
 * checkpoint with any number of ranks. */
#ifndef ENGINE_TRAIN_RANKS_H
#define ENGINE_TRAIN_RANKS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"

typedef struct ranks ranks;

struct ranks {
	int rank, count; /* 0 to count - 1 */
	/* wants_stop: set by any rank to stop all. The sum of each step distributes it, and then all have `stop` after
	 * the same step. wants_save and `save`: in the same way, for a checkpoint. */
	bool wants_stop, stop, wants_save, save;
	/* The ranks' backends are a group (collective_open of backend.h) that sums numbers in device memory. Otherwise
	 * all sums are of host memory. */
	bool devices;
	/* Start to replace each of n numbers in host memory by its sum over all ranks, with equal bits on each. All
	 * ranks start the same sums in the same order and leave the numbers unchanged until poll reports completion.
	 * STATUS_UNAVAILABLE: another rank cannot be reached. */
	status (*begin_sum)(ranks *r, float *numbers, int64_t n);
	/* Start to copy the numbers of each rank in host memory to all: rank i's are numbers[at[i]] to
	 * numbers[at[i + 1] - 1]. at: count + 1 offsets, read before the call returns. Otherwise as begin_sum. */
	status (*begin_gather)(ranks *r, float *numbers, const int64_t *at);
	/* Set *complete if all sums and gathers that were started are complete. Never waits. They may advance only
	 * during this call. */
	status (*poll)(ranks *r, bool *complete);
};

#endif
