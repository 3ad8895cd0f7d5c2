/* backend.h - a device that can run ops: the interface between plans and hardware.
 *
 * A backend is a table of functions and one kernel per op. The CPU backend is linked in. Others are plug-ins: a shared
 * object beside the binary that exports
 *     const backend_plugin additive_backend_plugin;
 * It is refused if its abi differs from BACKEND_ABI, a hash of the shared headers (interface.py).
 *
 * Work is issued in order on one implicit stream. On the CPU every call is complete when it returns; on others only
 * after synchronize. A download synchronises itself, and an upload has read the host's bytes when it returns. One
 * thread uses a backend at a time. Two backends of one device are two streams: each may read the other's results after
 * the other has synchronised.
 *
 * Cells marked "NULL:" may be missing; callers handle that. */
#ifndef ENGINE_TENSOR_BACKEND_H
#define ENGINE_TENSOR_BACKEND_H

#include "engine/base/error.h"
#include "engine/tensor/op.h"
#include "gen/backend_abi.h"

typedef struct backend backend;

/* Run one op. STATUS_DEVICE: the device failed the call, and may be lost (backend_is_lost). */
typedef status (*backend_kernel)(backend *b, const op_call *call);
/* Bytes of scratch that a kernel needs for this call, whose addresses are set (NULL function: none). */
typedef size_t (*backend_scratch)(const backend *b, const op_call *call);

/* Maximum size of a `fetch`, and maximum number in progress. */
enum { BACKEND_FETCH_BYTES = 16 << 10, BACKEND_FETCHES = 8 };
/* Maximum number of calls that a plan passes to `fuse` at a time. */
enum { BACKEND_FUSE_MAX = 32 };
/* Size of a group's name, for collective_id. */
enum { BACKEND_GROUP_BYTES = 128 };
/* Run a group of calls that `fuse` covers with one kernel. */
typedef status (*backend_fused_kernel)(backend *b, const op_call *const *calls);

/* A possible member of a group. Members need equal libraries, and a device can be in a group once. */
typedef struct backend_site {
	char summed_by[32];       /* "NCCL 2.28.9" */
	unsigned char device[16]; /* no other device on any machine has these bytes */
} backend_site;

struct backend {
	const char *name;      /* "cpu", "cuda" */
	char device[96];       /* "AMD EPYC …, 2 threads, avx512" */
	bool host_memory;      /* device addresses can be read by the host */
	bool bf16;             /* kernels take DTYPE_BF16 where ops.h says "real" */
	bool maxima;           /* linear gives maxima */
	bool records;          /* record_begin works: a plan is slow until its second run */
	int64_t prompt_tokens; /* tokens in all rows that fill a device in a step of prompts; 0: a host */
	backend_kernel kernel[OP_COUNT];
	backend_scratch scratch[OP_COUNT];

	/* Limit the number of host threads among which a kernel divides its loops, from now on: 1 to `threads`, the
	 * initial value. The bits of results do not change, and scratch for more threads suffices for fewer. NULL, with
	 * threads 0: a device, or a backend with one thread. */
	int threads;
	void (*use_threads)(backend *b, int threads);
	/* Run parts 0 … n - 1 on the available host threads, started in this order. A part is a sequence of kernel
	 * calls; different parts share only data that they read. Returns when all are complete, with a failure if there
	 * was one. NULL if use_threads is. */
	status (*side_by_side)(backend *b, int n, status (*part)(void *context, int i), void *context);

	/* 64-byte aligned, zeroed. */
	status (*allocate)(backend *b, size_t bytes, void **out);
	/* NULL is legal. Work issued before on this backend may still use the memory; work on other backends must be
	 * complete. */
	void (*release)(backend *b, void *data);
	status (*upload)(backend *b, void *device, const void *host, size_t bytes);
	status (*download)(backend *b, void *host, const void *device, size_t bytes);
	status (*copy)(backend *b, void *to, const void *from, size_t bytes);
	status (*clear)(backend *b, void *device, size_t bytes);
	/* Use no pages larger than `step` bytes for memory from allocate or reserve that has not been written. If a
	 * step is a large page or more, use large pages, even for memory that has been written. NULL: pages are
	 * fixed. */
	void (*by_small_pages)(backend *b, void *data, size_t bytes, size_t step);
	status (*synchronize)(backend *b);
	void (*close)(backend *b); /* frees b */

	/* For training: from now on, time the algorithms for a matrix product when its shape first occurs outside of a
	 * recording, and use the fastest. That call waits for the device. Choices are kept in a file in `folder`, which
	 * is created when needed. Later runs and other processes with an equal device, driver and library use the same
	 * choices, so they get the same bits. NULL: there is nothing to choose. */
	void (*choose_fastest)(backend *b, const char *folder);

	/* Reserve `bytes` bytes of addresses without memory, so that growing data never moves. extend backs at least
	 * the first `bytes` bytes of a reservation with zeroed memory; *extended: the number backed now, which may
	 * exceed the reservation. On STATUS_NOMEM nothing changes. */
	status (*reserve)(backend *b, size_t bytes, void **out);
	status (*extend)(backend *b, void *reserved, size_t bytes, size_t *extended);
	/* Give up memory beyond the first `bytes` bytes of a reservation that has `backed`; *left: the number backed
	 * now, which may be more. Waits for the work issued before. */
	status (*retract)(backend *b, void *reserved, size_t backed, size_t bytes, size_t *left);
	void (*unreserve)(backend *b, void *reserved, size_t bytes); /* bytes as given to reserve; NULL is legal */

	/* True if issued work is still running. NULL: never. A lost device is not busy. */
	bool (*busy)(backend *b);
	/* True if the device is lost: its memory is gone, and every later call returns STATUS_DEVICE. Otherwise a call
	 * that returned STATUS_DEVICE was refused: it has done nothing or, if it issues several kernels, part of its
	 * work. Earlier and later calls are not affected. NULL: after STATUS_DEVICE the device is lost. */
	bool (*lost)(const backend *b);

	/* A download that does not wait for work issued after it. fetch issues it after earlier work and returns its
	 * number. fetched tells whether the bytes have arrived (true for a lost device). fetch_take waits for them and
	 * copies them out; it must be called before BACKEND_FETCHES more fetches are issued. All three are NULL for a
	 * backend that is never busy. */
	status (*fetch)(backend *b, const void *device, size_t bytes, unsigned *number);
	bool (*fetched)(backend *b, unsigned number);
	status (*fetch_take)(backend *b, unsigned number, void *host, size_t bytes);

	/* Work issued between record_begin and record_end is recorded, not run; replay runs it with the addresses and
	 * parameters of the recording. Only kernels may be issued meanwhile, each of which has run once before with the
	 * same shapes. Uploads may not: their bytes are gone at the replay. NULL: this backend does not record.
	 *
	 * record_end also ends a recording that failed (*out NULL, its status). replay may fail too, and has issued
	 * nothing then. STATUS_DEVICE ends the run. After STATUS_BUSY the work is recorded again at once, and the
	 * backend then uses simpler means. After any other error it is issued directly. forget(NULL) is legal; a
	 * recording must not be replayed after its addresses are freed. */
	status (*record_begin)(backend *b);
	status (*record_end)(backend *b, void **out);
	status (*replay)(backend *b, void *recording);
	void (*forget)(backend *b, void *recording);

	/* Return the number of leading calls that *out covers with one kernel, at least 2, or 0. `dead` has bit i set
	 * if only these calls read output 0 of call i, so that it need not be written. Results must equal those of
	 * single calls, or be their values before intermediate rounding: a value that is not written need not be
	 * rounded to its type. The same calls give the same bits. NULL: nothing is fused.
	 *
	 * Calls are linked by equal addresses, which mean the same value. A plan calls this twice. The first call comes
	 * before memory is placed: data then only identifies values (64-byte aligned, NULL if absent) and must not be
	 * accessed. The second call has the real addresses, and may return 0 too. The kernel gets the calls of the
	 * second time.
	 *
	 * The kernel may rely on this: memory that any of its calls writes (including dead outputs and in-place
	 * updates) overlaps nothing else that they read or write. The group's inputs therefore stay intact, and outputs
	 * may be written in any order. All calls share one scratch, as large as the largest that one of them needs. */
	int (*fuse)(const backend *b, const op_id *ids, const op_call *const *calls, int n, unsigned dead,
	            backend_fused_kernel *out);

	/* Sums over a group of processes, each with one backend on its own device. A backend is in one group at most,
	 * and the thread that uses the backend makes all of these calls. All are NULL if the backend has no groups.
	 *
	 * collective_find: check that this backend can be in a group; STATUS_UNAVAILABLE names the missing part.
	 *
	 * collective_id: create a name for a new group, BACKEND_GROUP_BYTES bytes, which the caller distributes to all
	 * members.
	 *
	 * collective_open: become member `rank` of `count`. All members call it. Returns when all have, or with
	 * STATUS_UNAVAILABLE if not all have after the given number of seconds; the backend is in no group then.
	 *
	 * collective_sum: replace each of n numbers on the device by the sum over all members of `share` times it, with
	 * equal bits in all members. It starts when earlier work has run, and runs beside later work, which must not
	 * use the numbers until collective_poll reports that all sums are complete. All members issue the same sums in
	 * the same order; the same order of the same members gives the same bits. Not while recording. May block as
	 * long as collective_open for the first sum of a size.
	 *
	 * collective_gather: copy the numbers of each member to all: member i's are numbers[at[i]] to
	 * numbers[at[i + 1] - 1]. at: count + 1 offsets, read before the call returns. Otherwise as a sum.
	 *
	 * collective_poll: true if all sums and gathers issued so far are complete. Never waits.
	 *
	 * collective_close: leave the group. `cut_short`: at once; a sum in progress ends, and its numbers are
	 * undefined. Otherwise all sums are complete on all members, and all members close. Legal without a group;
	 * closing the backend does it, cut short.
	 *
	 * STATUS_UNAVAILABLE of sum, gather and poll: another member cannot be reached. The group is then unusable, and
	 * the next call is collective_close with `cut_short`. A lost member may also leave sums incomplete without an
	 * error, so callers must detect the loss by other means. */
	status (*collective_find)(backend *b, backend_site *out, error *err);
	status (*collective_id)(backend *b, unsigned char *id, error *err);
	status (*collective_open)(backend *b, const unsigned char *id, int rank, int count, int seconds, error *err);
	status (*collective_sum)(backend *b, float *numbers, int64_t n, float share);
	status (*collective_gather)(backend *b, float *numbers, const int64_t *at);
	status (*collective_poll)(backend *b, bool *complete);
	void (*collective_close)(backend *b, bool cut_short);
};

/* Options for opening a plug-in's device. */
typedef struct backend_options {
	int device;      /* number of the device, from 0 */
	bool wrap;       /* numbers past the last device wrap around to the first */
	bool background; /* its work has lower priority than other work on the device */
} backend_options;

typedef struct backend_plugin {
	int abi;
	const char *name;
	status (*open)(backend **out, const backend_options *o, error *err);
} backend_plugin;

/* Open "cpu", "cuda" or "auto" (the plug-in if it and a device are available, else the CPU). threads: 0 = all cores.
 * The CPU opener is a parameter, since this folder knows no backend. options: for a plug-in; NULL: device 0.
 * STATUS_UNAVAILABLE names the missing part. */
typedef status (*backend_opener)(backend **out, int threads, error *err);
status backend_open(backend **out, const char *name, const backend_options *options, backend_opener cpu, int threads,
                    error *err);
void backend_close(backend *b);
/* After a call of b has returned STATUS_DEVICE: true if the device is lost, false if it refused only that call. */
bool backend_is_lost(const backend *b);

#endif
