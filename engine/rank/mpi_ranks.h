/* mpi_ranks.h - the ranks of a run as processes that MPI has started (engine/train/ranks.h). All of MPI is in
 * mpi_ranks.c. */
#ifndef ENGINE_RANK_MPI_RANKS_H
#define ENGINE_RANK_MPI_RANKS_H

#include <stddef.h>

#include "engine/train/ranks.h"

/* Once in a process; one that MPI has not started is the only rank. STATUS_UNAVAILABLE, STATUS_NOMEM. */
status mpi_ranks_open(ranks **out, error *err);
/* Waits until all ranks do the same. */
void mpi_ranks_close(ranks *r);
/* Ranks on this machine, and which of them this is. */
int mpi_ranks_here(const ranks *r, int *index);
/* Give rank 0's text to all: *text is malloc'ed, in and out, NULL before on the others; NULL after where rank 0 gave
 * NULL. Waits for all ranks. STATUS_NOMEM, STATUS_UNAVAILABLE. */
status mpi_ranks_share(ranks *r, char **text, error *err);
/* Give the `bytes` bytes of each rank to all, in `all` [count][bytes]. Waits for all ranks. STATUS_UNAVAILABLE. */
status mpi_ranks_gather(ranks *r, const void *own, size_t bytes, void *all, error *err);
/* Wait until all ranks do the same. STATUS_UNAVAILABLE. */
status mpi_ranks_wait(ranks *r, error *err);
/* End all ranks, with this exit status. Does not return. */
void mpi_ranks_abort(ranks *r, int exit_status) __attribute__((noreturn));

#endif
