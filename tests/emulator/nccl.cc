/* NCCL, as far as cuda/collective.cu uses it: sums and broadcasts of floats over processes of one machine through POSIX
 * shared memory.
 * libnccl.so.2 beside the plug-in is a link to the plug-in, which has these functions.
 *
 * A group's memory has a seat for each rank: whether it has joined, its progress, and a box of BOX_FLOATS numbers. A
 * sum passes through the boxes piece by piece; pieces are numbered through all sums of the group:
 *
 *   offer piece k   when all ranks have taken piece k - 1: copy own numbers to the own box
 *   take piece k    when all have offered it: own numbers become the sum of the boxes, in the order of ranks
 *
 * A broadcast does the same, and its numbers become those in the root's box.
 *
 * Each is work of a stream that waits (emulator::wait_on) for the other processes, as a kernel of NCCL does. If one of
 * them is gone it waits until ncclCommAbort. A rank locks a byte of the memory's file; the system drops the lock with
 * the process, and ncclCommGetAsyncError tests for that. Calls that need other ranks return at once: the communicator
 * does not block. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

#include "emulator.h"

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6, IN_PROGRESS = 7 };
enum { MOST_RANKS = 16, BOX_FLOATS = 1 << 18, ID_BYTES = 128, FLOAT = 7, SUM = 0 };

struct ncclUniqueId {
	char name[ID_BYTES];
};

namespace
{

struct seat {
	std::atomic<int> taken, device;
	std::atomic<long> offered, summed; /* pieces */
	float box[BOX_FLOATS];
};
struct table {
	seat seats[MOST_RANKS];
};

struct group {
	int rank, count, file;
	table *t;
	long issued = 0; /* pieces */
	bool aborted = false, joined = false;
	std::string name;

	~group()
	{
		if (t)
			munmap(t, sizeof *t);
		close(file); /* also drops the lock */
	}
	seat &own()
	{
		return t->seats[rank];
	}
	bool all(std::atomic<long> seat::*how_far, long at_least)
	{
		for (int i = 0; i < count; i++)
			if ((t->seats[i].*how_far).load() < at_least)
				return false;
		return true;
	}
	/* True if every rank has joined. */
	bool is_complete()
	{
		bool all = true;
		for (int i = 0; i < count; i++)
			all &= t->seats[i].taken.load() != 0;
		return joined = all;
	}
	bool duplicate()
	{
		for (int i = 0; i < count; i++)
			if (i != rank && t->seats[i].device.load() == own().device.load())
				return true;
		return false;
	}
	bool one_is_gone()
	{
		for (int i = 0; i < count; i++) {
			struct flock lock = {};
			lock.l_type = F_WRLCK;
			lock.l_start = i;
			lock.l_len = 1;
			if (i != rank && fcntl(file, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK)
				return true;
		}
		return false;
	}
};

bool take_seat(group *g, const char *name)
{
	struct flock lock = {};
	g->name = name;
	g->file = shm_open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (g->file < 0 || ftruncate(g->file, sizeof(table)) != 0)
		return false;
	void *at = mmap(nullptr, sizeof(table), PROT_READ | PROT_WRITE, MAP_SHARED, g->file, 0);
	if (at == MAP_FAILED)
		return false;
	g->t = (table *)at;
	lock.l_type = F_WRLCK;
	lock.l_start = g->rank;
	lock.l_len = 1;
	if (fcntl(g->file, F_SETLK, &lock) != 0)
		return false;
	g->own().device = emulator::current_device();
	g->own().taken = 1;
	return true;
}

/* Pieces of a sum, one after another; false if it has to wait. */
struct sum {
	std::shared_ptr<group> g;
	const char *name;
	int root; /* the rank that broadcasts; -1: a sum */
	float *numbers;
	size_t n, done = 0;
	long piece;

	bool go_on()
	{
		for (; done < n && !g->aborted; done += BOX_FLOATS, piece++) {
			seat &own = g->own();
			const size_t floats = std::min(n - done, (size_t)BOX_FLOATS);
			if (own.offered.load() == piece) {
				if (!g->all(&seat::summed, piece))
					return false;
				memcpy(own.box, numbers + done, floats * sizeof(float));
				emulator::count_work(EMULATOR_COPY, name, floats * sizeof(float), 0);
				own.offered = piece + 1;
			}
			if (!g->all(&seat::offered, piece + 1))
				return false;
			if (root >= 0)
				memcpy(numbers + done, g->t->seats[root].box, floats * sizeof(float));
			for (size_t i = 0; i < floats && root < 0; i++) {
				float total = g->t->seats[0].box[i];
				for (int r = 1; r < g->count; r++)
					total += g->t->seats[r].box[i];
				numbers[done + i] = total;
			}
			own.summed = piece + 1;
		}
		return true;
	}
};

} // namespace

struct ncclComm {
	std::shared_ptr<group> g;
	std::vector<cudaStream_t> streams;
};

static int issue(const char *name, int root, void *to, size_t n, ncclComm *comm, cudaStream_t stream)
{
	emulator::need_device(to, n * sizeof(float), name);
	auto s = std::make_shared<sum>();
	s->g = comm->g;
	s->name = name;
	s->root = root;
	s->numbers = (float *)to;
	s->n = n;
	s->piece = comm->g->issued;
	comm->g->issued += (long)((n + BOX_FLOATS - 1) / BOX_FLOATS);
	if (std::find(comm->streams.begin(), comm->streams.end(), stream) == comm->streams.end())
		comm->streams.push_back(stream);
	return emulator::enqueue(stream, [s]() {
		       emulator::need_device(s->numbers, s->n * sizeof(float), s->name);
		       if (!s->go_on())
			       emulator::wait_on();
	       }) == cudaSuccess
	           ? SUCCESS
	           : SYSTEM_ERROR;
}

extern "C" {

int ncclGetVersion(int *version)
{
	*version = 22809;
	return SUCCESS;
}

const char *ncclGetErrorString(int result)
{
	switch (result) {
	case SUCCESS:
		return "no error";
	case SYSTEM_ERROR:
		return "unhandled system error";
	case INVALID_ARGUMENT:
		return "invalid argument";
	case INVALID_USAGE:
		return "invalid usage";
	case REMOTE_ERROR:
		return "remote process exited or there was a network error";
	}
	return "unknown result code";
}

int ncclGetUniqueId(ncclUniqueId *id)
{
	static std::atomic<unsigned> made;
	*id = {};
	snprintf(id->name, sizeof id->name, "/additive-nccl-%d-%u", (int)getpid(), made++);
	return SUCCESS;
}

int ncclCommInitRankConfig(ncclComm **out, int count, ncclUniqueId id, int rank, void *config)
{
	struct declared {
		size_t size;
		unsigned magic, version;
		int blocking;
	} *c = (declared *)config;
	*out = nullptr;
	if (c->size < sizeof *c || c->magic != 0xcafebeef || c->version < 21400 || c->blocking != 0 || count < 1 ||
	    count > MOST_RANKS || rank < 0 || rank >= count)
		return INVALID_ARGUMENT;
	if (emulator::is_planted("group"))
		return SYSTEM_ERROR;
	auto g = std::make_shared<group>();
	g->rank = rank;
	g->count = count;
	g->t = nullptr;
	if (!take_seat(g.get(), id.name))
		return SYSTEM_ERROR;
	*out = new ncclComm{g, {}};
	return IN_PROGRESS;
}

int ncclCommGetAsyncError(ncclComm *comm, int *result)
{
	group &g = *comm->g;
	for (cudaStream_t s : comm->streams)
		emulator::run_ready(s);
	*result = SUCCESS;
	if (!g.joined && !g.is_complete())
		*result = IN_PROGRESS;
	else if (g.count > 1 && g.duplicate())
		*result = INVALID_USAGE;
	else if (g.one_is_gone() && !g.all(&seat::offered, g.issued))
		*result = REMOTE_ERROR;
	if (g.joined)
		shm_unlink(g.name.c_str()); /* it lives as long as it is mapped */
	return SUCCESS;
}

int ncclCommFinalize(ncclComm *)
{
	return SUCCESS;
}

int ncclCommAbort(ncclComm *comm)
{
	comm->g->aborted = true; /* waiting work holds the rest */
	shm_unlink(comm->g->name.c_str());
	delete comm;
	return SUCCESS;
}

int ncclCommDestroy(ncclComm *comm)
{
	return ncclCommAbort(comm);
}

int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, ncclComm *comm, cudaStream_t stream)
{
	if (from != to || type != FLOAT || op != SUM)
		return INVALID_ARGUMENT;
	if (emulator::is_planted("sum"))
		return SYSTEM_ERROR;
	return issue("ncclAllReduce", -1, to, n, comm, stream);
}

int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, ncclComm *comm, cudaStream_t stream)
{
	if (from != to || type != FLOAT || root < 0 || root >= comm->g->count)
		return INVALID_ARGUMENT;
	return issue("ncclBroadcast", root, to, n, comm, stream);
}

int ncclGroupStart(void)
{
	return SUCCESS;
}

/* As of a communicator that does not block. */
int ncclGroupEnd(void)
{
	return IN_PROGRESS;
}

} /* extern "C" */
