/* mpi_ranks.h - the ranks of a run as MPI processes (engine/train/ranks.h). Only mpi_ranks.c uses MPI. */
#ifndef ENGINE_RANK_MPI_RANKS_H
#define ENGINE_RANK_MPI_RANKS_H

#include <stddef.h>

#include "engine/train/ranks.h"

/* Call once per process. A process that MPI has not started is the only rank. STATUS_UNAVAILABLE, STATUS_NOMEM. */
status mpi_ranks_open(ranks **out, error *err);
/* Wait until all ranks call it. */
void mpi_ranks_close(ranks *r);
/* Return the number of ranks on this machine and set *index to this one's. */
int mpi_ranks_here(const ranks *r, int *index);
/* Send rank 0's text to all ranks. *text is from malloc on entry (rank 0) and on return (all); NULL if rank 0's is.
 * Waits for all ranks. STATUS_NOMEM, STATUS_UNAVAILABLE. */
status mpi_ranks_share(ranks *r, char **text, error *err);
/* Send the `bytes` bytes of each rank to all, into `all` [count][bytes]. Waits for all ranks. STATUS_UNAVAILABLE. */
status mpi_ranks_gather(ranks *r, const void *own, size_t bytes, void *all, error *err);
/* Wait until all ranks call it. STATUS_UNAVAILABLE. */
status mpi_ranks_wait(ranks *r, error *err);
/* Wait until all ranks call it, at most for `seconds`. Legal while sums are in progress. */
void mpi_ranks_meet(ranks *r, int seconds);
/* End all ranks with this exit status. Does not return. */
void mpi_ranks_abort(ranks *r, int exit_status) __attribute__((noreturn));

#endif
