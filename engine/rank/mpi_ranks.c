#include "engine/rank/mpi_ranks.h"

#include <limits.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/memory.h"

typedef struct mpi_ranks {
	ranks ranks;
	MPI_Request *requests; /* for sums and gathers in progress */
	int n, room;
	int here, index; /* number of ranks on this machine; index of this one */
	MPI_Comm end;    /* for mpi_ranks_meet: ranks may have started different sums on the other one */
} mpi_ranks;

static status begin_sum(ranks *r, float *numbers, int64_t n)
{
	mpi_ranks *m = (mpi_ranks *)r;
	if (!MEMORY_ROOM(m->requests, m->room, m->n + 1))
		return STATUS_NOMEM;
	if (n > INT_MAX)
		return STATUS_TOO_LARGE;
	const int result =
	    MPI_Iallreduce(MPI_IN_PLACE, numbers, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &m->requests[m->n]);
	m->n += result == MPI_SUCCESS;
	return result == MPI_SUCCESS ? STATUS_OK : STATUS_UNAVAILABLE;
}

/* A broadcast by each rank, which limits a rank's numbers to INT_MAX and not their total. */
static status begin_gather(ranks *r, float *numbers, const int64_t *at)
{
	mpi_ranks *m = (mpi_ranks *)r;
	for (int i = 0; i < r->count; i++) {
		const int64_t n = at[i + 1] - at[i];
		if (!MEMORY_ROOM(m->requests, m->room, m->n + 1))
			return STATUS_NOMEM;
		if (n > INT_MAX)
			return STATUS_TOO_LARGE;
		if (MPI_Ibcast(numbers + at[i], (int)n, MPI_FLOAT, i, MPI_COMM_WORLD, &m->requests[m->n]) !=
		    MPI_SUCCESS)
			return STATUS_UNAVAILABLE;
		m->n++;
	}
	return STATUS_OK;
}

static status poll(ranks *r, bool *complete)
{
	mpi_ranks *m = (mpi_ranks *)r;
	int all = 0;
	if (MPI_Testall(m->n, m->requests, &all, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
		return STATUS_UNAVAILABLE;
	*complete = all;
	m->n = all ? 0 : m->n;
	return STATUS_OK;
}

static bool find_neighbours(mpi_ranks *m)
{
	MPI_Comm machine;
	if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine) != MPI_SUCCESS)
		return false;
	const bool ok =
	    MPI_Comm_size(machine, &m->here) == MPI_SUCCESS && MPI_Comm_rank(machine, &m->index) == MPI_SUCCESS;
	MPI_Comm_free(&machine);
	return ok;
}

status mpi_ranks_open(ranks **out, error *err)
{
	*out = NULL;
	mpi_ranks *m = memory_new(1, sizeof *m);
	if (!m)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	m->ranks = (ranks){.begin_sum = begin_sum, .begin_gather = begin_gather, .poll = poll};
	if (MPI_Init(NULL, NULL) != MPI_SUCCESS ||
	    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN) != MPI_SUCCESS ||
	    MPI_Comm_rank(MPI_COMM_WORLD, &m->ranks.rank) != MPI_SUCCESS ||
	    MPI_Comm_size(MPI_COMM_WORLD, &m->ranks.count) != MPI_SUCCESS ||
	    MPI_Comm_dup(MPI_COMM_WORLD, &m->end) != MPI_SUCCESS || !find_neighbours(m)) {
		free(m);
		return error_set(err, STATUS_UNAVAILABLE, NULL, "MPI cannot be initialised");
	}
	*out = &m->ranks;
	return STATUS_OK;
}

void mpi_ranks_close(ranks *r)
{
	mpi_ranks *m = (mpi_ranks *)r;
	MPI_Comm_free(&m->end);
	MPI_Finalize();
	free(m->requests);
	free(m);
}

int mpi_ranks_here(const ranks *r, int *index)
{
	const mpi_ranks *m = (const mpi_ranks *)r;
	*index = m->index;
	return m->here;
}

status mpi_ranks_share(ranks *r, char **text, error *err)
{
	long long bytes = *text ? (long long)strlen(*text) + 1 : 0;
	if (MPI_Bcast(&bytes, 1, MPI_LONG_LONG, 0, MPI_COMM_WORLD) != MPI_SUCCESS || bytes > INT_MAX)
		return error_set(err, STATUS_UNAVAILABLE, NULL, "rank 0 cannot be reached");
	if (bytes == 0)
		return STATUS_OK;
	if (r->rank != 0)
		*text = memory_new(1, (size_t)bytes);
	if (!*text)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	return MPI_Bcast(*text, (int)bytes, MPI_CHAR, 0, MPI_COMM_WORLD) == MPI_SUCCESS
	           ? STATUS_OK
	           : error_set(err, STATUS_UNAVAILABLE, NULL, "rank 0 cannot be reached");
}

status mpi_ranks_gather(ranks *r, const void *own, size_t bytes, void *all, error *err)
{
	(void)r;
	if (bytes > INT_MAX ||
	    MPI_Allgather(own, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD) != MPI_SUCCESS)
		return error_set(err, STATUS_UNAVAILABLE, NULL, "another rank cannot be reached");
	return STATUS_OK;
}

status mpi_ranks_wait(ranks *r, error *err)
{
	(void)r;
	if (MPI_Barrier(MPI_COMM_WORLD) != MPI_SUCCESS)
		return error_set(err, STATUS_UNAVAILABLE, NULL, "another rank cannot be reached");
	return STATUS_OK;
}

void mpi_ranks_meet(ranks *r, int seconds)
{
	mpi_ranks *m = (mpi_ranks *)r;
	const uint64_t end = clock_ns() + (uint64_t)seconds * 1000000000;
	int met = 0;
	MPI_Request request;
	if (MPI_Ibarrier(m->end, &request) != MPI_SUCCESS)
		return;
	while (MPI_Test(&request, &met, MPI_STATUS_IGNORE) == MPI_SUCCESS && !met && clock_ns() < end)
		usleep(1000);
}

void mpi_ranks_abort(ranks *r, int exit_status)
{
	(void)r;
	MPI_Abort(MPI_COMM_WORLD, exit_status);
	_exit(exit_status);
}
