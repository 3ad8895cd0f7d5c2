/* device_sums.h - decides whether the ranks' devices sum gradients themselves, as a group (engine/tensor/backend.h), or
 * the host does, by MPI. MPI forms the group in either case. */
#ifndef ENGINE_RANK_DEVICE_SUMS_H
#define ENGINE_RANK_DEVICE_SUMS_H

#include "engine/rank/mpi_ranks.h"
#include "engine/tensor/backend.h"

enum { DEVICE_SUMS_BYTES = 320 };

/* Make the backends of all ranks a group if possible, which sets r->devices. All ranks call it and get the same result.
 * how [DEVICE_SUMS_BYTES] describes it ("summed by NCCL 2.28.9", "summed through the host: rank 1 …"); "" with a single
 * rank. STATUS_CONFLICT: the ranks have different backends, whose updates differ in their last bits.
 * STATUS_UNAVAILABLE: another rank cannot be reached. */
status device_sums_open(ranks *r, backend *b, char *how, error *err);
/* End the group. cut_short: sums may be in progress and other ranks gone. Otherwise all ranks call it and wait for each
 * other. Legal without a group. */
void device_sums_close(ranks *r, backend *b, bool cut_short);

#endif
