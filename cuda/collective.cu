/* Sums over processes by NCCL, on their own stream:
 *
 *   stream   … kernels that write x │ share · x ●          what is issued next …
 *   sums                                        └▶ all-reduce of x ●    collective_poll queries the last of these
 *
 * The library is loaded when a group is opened, so the plug-in loads without it: libnccl.so.2 as the dynamic loader
 * finds it, or the file in ADDITIVE_NCCL (0: none). The declarations below are those of 2.14, which later versions
 * keep; if there is a header, nvcc compares.
 *
 * The communicator does not block. A call that has to wait for other members returns IN_PROGRESS and continues in a
 * thread of the library; after a timeout it is aborted. A kernel that waits for a lost member can be ended only by
 * ncclCommAbort.
 *
 * Equal sums give equal bits. NCCL chooses ring or tree, protocol and channels by the number of bytes and the topology
 * alone, and that choice fixes the order in which each number is added. The share is multiplied first, by a kernel of
 * ours, since operators that multiply (ncclRedOpCreatePreMulSum) exclude sums within a switch. Bytes: 8 for each
 * number, unless the share is 1.
 *
 * A gather is a group of broadcasts, one by each member, since the members' parts may have different lengths. */
#include "cuda/backend.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/kernels.h"

extern "C" {
#include "engine/base/clock.h"
#include "engine/base/log.h"
}

/* --- the library ------------------------------------------------------------------------ */

enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, NCCL_SUM = 0, NCCL_FLOAT = 7 };
enum : unsigned { NCCL_MAGIC = 0xcafebeef, NCCL_DECLARED = 21400 };

typedef void *nccl_comm;
typedef struct nccl_id {
	char bytes[BACKEND_GROUP_BYTES];
} nccl_id;
typedef struct nccl_config {
	size_t size;
	unsigned magic, version;
	int blocking;
} nccl_config;

#if defined(__CUDACC__) && __has_include(<nccl.h>)
#include <nccl.h>
static_assert(sizeof(nccl_id) == sizeof(ncclUniqueId) && sizeof(nccl_comm) == sizeof(ncclComm_t), "");
static_assert((int)NCCL_SUCCESS == (int)ncclSuccess, "");
static_assert((int)NCCL_IN_PROGRESS == (int)ncclInProgress && (int)NCCL_SUM == (int)ncclSum, "");
static_assert((int)NCCL_FLOAT == (int)ncclFloat32, "");
static_assert(offsetof(nccl_config, blocking) == offsetof(ncclConfig_t, blocking), "");
#endif

/* FUNCTION(name, result, parameters); name without "nccl". */
#define NCCL_FUNCTIONS(FUNCTION)                                                                                       \
	FUNCTION(GetVersion, int, (int *version))                                                                      \
	FUNCTION(GetErrorString, const char *, (int result))                                                           \
	FUNCTION(GetUniqueId, int, (nccl_id * id))                                                                     \
	FUNCTION(CommInitRankConfig, int, (nccl_comm * comm, int count, nccl_id id, int rank, nccl_config *config))    \
	FUNCTION(CommGetAsyncError, int, (nccl_comm comm, int *result))                                                \
	FUNCTION(CommFinalize, int, (nccl_comm comm))                                                                  \
	FUNCTION(CommDestroy, int, (nccl_comm comm))                                                                   \
	FUNCTION(CommAbort, int, (nccl_comm comm))                                                                     \
	FUNCTION(GroupStart, int, (void))                                                                              \
	FUNCTION(GroupEnd, int, (void))                                                                                \
	FUNCTION(Broadcast, int,                                                                                       \
	         (const void *from, void *to, size_t n, int type, int root, nccl_comm comm, cudaStream_t stream))      \
	FUNCTION(AllReduce, int,                                                                                       \
	         (const void *from, void *to, size_t n, int type, int op, nccl_comm comm, cudaStream_t stream))

typedef struct nccl_library {
#define FUNCTION(name, result, parameters) result(*name) parameters;
	NCCL_FUNCTIONS(FUNCTION)
#undef FUNCTION
} nccl_library;

static nccl_library nccl; /* per process, like its code */
static pthread_mutex_t nccl_mutex = PTHREAD_MUTEX_INITIALIZER;

static bool find_functions(void *handle, nccl_library *out)
{
	bool all = true;
#define FUNCTION(name, result, parameters) all &= (*(void **)&out->name = dlsym(handle, "nccl" #name)) != NULL;
	NCCL_FUNCTIONS(FUNCTION)
#undef FUNCTION
	return all;
}

/* Text of dlerror without the leading folder. */
static const char *load_error(void)
{
	const char *words = dlerror(), *colon = words ? strstr(words, ": ") : NULL;
	return colon ? colon + 2 : words ? words : "unknown reason";
}

/* Load the library. The handle is kept for the life of the process, since the library has threads. */
static status load_nccl(error *err)
{
	const char *named = getenv("ADDITIVE_NCCL");
	nccl_library found;
	if (named && strcmp(named, "0") == 0)
		return error_set(err, STATUS_UNAVAILABLE, NULL, "ADDITIVE_NCCL is 0");
	const bool by_name = !named || !*named || strcmp(named, "1") == 0;
	void *handle = dlopen(by_name ? "libnccl.so.2" : named, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		return error_set(err, STATUS_UNAVAILABLE, NULL, "libnccl.so.2 cannot be loaded: %s", load_error());
	if (!find_functions(handle, &found)) {
		dlclose(handle);
		return error_set(err, STATUS_UNAVAILABLE, NULL, "libnccl.so.2 is older than NCCL 2.14");
	}
	pthread_mutex_lock(&nccl_mutex);
	nccl = found;
	pthread_mutex_unlock(&nccl_mutex);
	return STATUS_OK;
}

/* --- a group ------------------------------------------------------------------------------ */

enum { NAP_NS = 100000, NS_PER_SECOND = 1000000000 };

typedef struct cuda_group {
	nccl_comm comm;
	int count; /* members */
	cudaStream_t stream;
	cudaEvent_t written, summed; /* the last sum's inputs are written; the sum is complete */
	bool started;                /* a sum is not yet known to be complete */
	int seconds;                 /* timeout for other members */
} cuda_group;

/* Wait until a call that may continue by itself is done; what: its purpose, for the error. */
static status settle(cuda_group *g, int result, const char *what, error *err)
{
	const struct timespec nap = {0, NAP_NS};
	const uint64_t began = clock_ns();
	while (result == NCCL_IN_PROGRESS && clock_ns() - began < (uint64_t)g->seconds * NS_PER_SECOND) {
		nanosleep(&nap, NULL);
		const int asked = nccl.CommGetAsyncError(g->comm, &result);
		result = asked == NCCL_SUCCESS ? result : asked;
	}
	if (result == NCCL_SUCCESS)
		return STATUS_OK;
	return error_set(err, STATUS_UNAVAILABLE, NULL, "NCCL: %s: %s", what,
	                 result == NCCL_IN_PROGRESS ? "the others do not answer" : nccl.GetErrorString(result));
}

static status open_stream(cuda_backend *c, cuda_group *g)
{
	int least = 0, greatest = 0;
	TRY(cuda_status(c, cudaDeviceGetStreamPriorityRange(&least, &greatest)));
	TRY(cuda_status(c, cudaStreamCreateWithPriority(&g->stream, cudaStreamNonBlocking, greatest)));
	TRY(cuda_status(c, cudaEventCreateWithFlags(&g->written, cudaEventDisableTiming)));
	return cuda_status(c, cudaEventCreateWithFlags(&g->summed, cudaEventDisableTiming));
}

static status cuda_collective_find(backend *b, backend_site *out, error *err)
{
	cuda_backend *c = cuda_of(b);
	cudaDeviceProp prop;
	int version = 0;
	*out = {};
	TRY(load_nccl(err));
	TRY(cuda_enter(c));
	TRY(cuda_status(c, cudaGetDeviceProperties(&prop, c->device)));
	(void)nccl.GetVersion(&version);
	snprintf(out->summed_by, sizeof out->summed_by, "NCCL %d.%d.%d", version / 10000, version / 100 % 100,
	         version % 100);
	static_assert(sizeof out->device == sizeof prop.uuid, "");
	memcpy(out->device, &prop.uuid, sizeof out->device);
	return STATUS_OK;
}

static status cuda_collective_id(backend *b, unsigned char *id, error *err)
{
	nccl_id name;
	TRY(load_nccl(err));
	TRY(cuda_enter(cuda_of(b)));
	const int result = nccl.GetUniqueId(&name);
	if (result != NCCL_SUCCESS)
		return error_set(err, STATUS_UNAVAILABLE, NULL, "NCCL: a new group: %s", nccl.GetErrorString(result));
	memcpy(id, &name, sizeof name);
	return STATUS_OK;
}

static void cuda_collective_close(backend *b, bool cut_short)
{
	cuda_backend *c = cuda_of(b);
	cuda_group *g = c->group;
	const struct timespec nap = {0, NAP_NS};
	if (!g)
		return;
	(void)cuda_enter(c);
	if (g->comm && !cut_short && settle(g, nccl.CommFinalize(g->comm), "the end", NULL) == STATUS_OK)
		(void)nccl.CommDestroy(g->comm);
	else if (g->comm)
		(void)nccl.CommAbort(g->comm);
	/* An aborted sum may still write for a moment. */
	for (uint64_t began = clock_ns(); g->stream && cudaStreamQuery(g->stream) == cudaErrorNotReady;)
		if (clock_ns() - began >= (uint64_t)g->seconds * NS_PER_SECOND || nanosleep(&nap, NULL) != 0)
			break;
	(void)cudaGetLastError();
	if (g->summed)
		(void)cudaEventDestroy(g->summed);
	if (g->written)
		(void)cudaEventDestroy(g->written);
	if (g->stream)
		(void)cudaStreamDestroy(g->stream);
	free(g);
	c->group = NULL;
}

static status cuda_collective_open(backend *b, const unsigned char *id, int rank, int count, int seconds, error *err)
{
	cuda_backend *c = cuda_of(b);
	nccl_id name;
	nccl_config config = {sizeof config, NCCL_MAGIC, NCCL_DECLARED, 0};
	if (c->group)
		return STATUS_INTERNAL;
	TRY(load_nccl(err));
	TRY(cuda_enter(c));
	cuda_group *g = c->group = (cuda_group *)calloc(1, sizeof *g);
	if (!g)
		return STATUS_NOMEM;
	g->seconds = seconds;
	g->count = count;
	memcpy(&name, id, sizeof name);
	status s = open_stream(c, g);
	if (s == STATUS_OK)
		s = settle(g, nccl.CommInitRankConfig(&g->comm, count, name, rank, &config), "joining", err);
	if (s != STATUS_OK)
		cuda_collective_close(b, true);
	return s;
}

/* --- sums --------------------------------------------------------------------------------- */

static status failed(cuda_backend *c, const error *err)
{
	log_line(LOG_ERROR, "CUDA device %d: %s", c->device, error_message(err));
	return err->status;
}

static status scale(backend *b, float *numbers, int64_t n, float factor)
{
	const scale_params params = {factor};
	const tensor t = {numbers, DTYPE_F32, SHAPE1(n)};
	op_call call = {};
	call.params = &params;
	call.n_in = call.n_out = 1;
	call.in[0] = call.out[0] = t;
	return cuda_scale(b, &call);
}

/* Let the group's stream wait for the work issued so far. */
static status follow_stream(cuda_backend *c, cuda_group *g)
{
	TRY(cuda_enter(c));
	c->after_kernel = false;
	TRY(cuda_status(c, cudaEventRecord(g->written, c->stream)));
	TRY(cuda_status(c, cudaStreamWaitEvent(g->stream, g->written, 0)));
	g->started = true;
	return STATUS_OK;
}

static status issued(cuda_backend *c, cuda_group *g, int result, const char *what)
{
	error err = ERROR_INIT;
	if (settle(g, result, what, &err) != STATUS_OK)
		return failed(c, &err);
	return cuda_status(c, cudaEventRecord(g->summed, g->stream));
}

static status cuda_collective_sum(backend *b, float *numbers, int64_t n, float share)
{
	cuda_backend *c = cuda_of(b);
	cuda_group *g = c->group;
	if (!g || c->recording)
		return STATUS_INTERNAL;
	if (share != 1)
		TRY(scale(b, numbers, n, share));
	TRY(follow_stream(c, g));
	return issued(c, g, nccl.AllReduce(numbers, numbers, (size_t)n, NCCL_FLOAT, NCCL_SUM, g->comm, g->stream),
	              "a sum");
}

static int broadcast_all(cuda_group *g, float *numbers, const int64_t *at)
{
	int result = nccl.GroupStart();
	for (int i = 0; i < g->count && result == NCCL_SUCCESS; i++) {
		float *own = numbers + at[i];
		const size_t n = (size_t)(at[i + 1] - at[i]);
		const int r = n ? nccl.Broadcast(own, own, n, NCCL_FLOAT, i, g->comm, g->stream) : NCCL_SUCCESS;
		result = r == NCCL_IN_PROGRESS ? NCCL_SUCCESS : r;
	}
	const int ended = nccl.GroupEnd();
	return result == NCCL_SUCCESS ? ended : result;
}

static status cuda_collective_gather(backend *b, float *numbers, const int64_t *at)
{
	cuda_backend *c = cuda_of(b);
	cuda_group *g = c->group;
	if (!g || c->recording)
		return STATUS_INTERNAL;
	TRY(follow_stream(c, g));
	return issued(c, g, broadcast_all(g, numbers, at), "a gather");
}

/* The event is queried before the error: a sum that ended before an error is right. */
static status cuda_collective_poll(backend *b, bool *complete)
{
	cuda_backend *c = cuda_of(b);
	cuda_group *g = c->group;
	error err = ERROR_INIT;
	int result = NCCL_SUCCESS;
	*complete = false;
	if (!g)
		return STATUS_INTERNAL;
	TRY(cuda_enter(c));
	const cudaError_t e = g->started ? cudaEventQuery(g->summed) : cudaSuccess;
	if (e != cudaErrorNotReady)
		TRY(cuda_status(c, e));
	const int asked = nccl.CommGetAsyncError(g->comm, &result);
	result = asked == NCCL_SUCCESS ? result : asked;
	if (result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS) {
		error_set(&err, STATUS_UNAVAILABLE, NULL, "NCCL: %s", nccl.GetErrorString(result));
		return failed(c, &err);
	}
	*complete = e == cudaSuccess;
	g->started &= !*complete;
	return STATUS_OK;
}

void cuda_collective_fill(backend *b)
{
	b->collective_find = cuda_collective_find;
	b->collective_id = cuda_collective_id;
	b->collective_open = cuda_collective_open;
	b->collective_sum = cuda_collective_sum;
	b->collective_gather = cuda_collective_gather;
	b->collective_poll = cuda_collective_poll;
	b->collective_close = cuda_collective_close;
}
