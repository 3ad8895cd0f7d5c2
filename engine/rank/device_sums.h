/* device_sums.h - choose whether the ranks' devices add gradients themselves, as a group (engine/tensor/backend.h), or
 * the host does, by MPI. MPI forms the group in both cases. */
#ifndef ENGINE_RANK_DEVICE_SUMS_H
#define ENGINE_RANK_DEVICE_SUMS_H

#include "engine/rank/mpi_ranks.h"
#include "engine/tensor/backend.h"

enum { DEVICE_SUMS_BYTES = 320 };

/* Make the backends of all ranks a group where that can be; then r->devices. All ranks call it, and all have the same
 * answer: how, DEVICE_SUMS_BYTES bytes, says which and why ("summed by NCCL 2.28.9", "summed through the host: rank 1
 * …"); "" where there is one rank. STATUS_CONFLICT: the ranks have different backends, whose updates differ in their
 * last bits. STATUS_UNAVAILABLE: another rank cannot be reached. */
status device_sums_open(ranks *r, backend *b, char *how, error *err);
/* End the group. cut_short: sums may be under way, and other ranks may be gone. Else all ranks call it and wait for
 * each other. Legal without a group. */
void device_sums_close(ranks *r, backend *b, bool cut_short);

#endif
