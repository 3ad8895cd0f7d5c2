/* backend.h - a device that can run ops: the seam between plans and hardware.
 *
 * A backend is a table of functions and one kernel per op. The CPU backend is
 * linked in; others are plug-ins: a shared object beside the binary exporting
 *     const backend_plugin additive_backend_plugin;
 * refused when its abi differs from BACKEND_ABI, a hash of what both sides share (interface.py).
 *
 * Work is issued in order on one implicit stream. On the CPU every call is
 * complete when it returns; elsewhere only after synchronize (download
 * synchronises itself, upload is done with the host's bytes when it returns). One
 * thread uses a backend at a time. Two backends of one device are two streams: each may read what the
 * other has written once that one has synchronised.
 *
 * Cells marked "NULL:" may be missing; callers have a way without them. */
#ifndef ENGINE_TENSOR_BACKEND_H
#define ENGINE_TENSOR_BACKEND_H

#include "engine/base/error.h"
#include "engine/tensor/op.h"
#include "gen/backend_abi.h"

typedef struct backend backend;

/* Run one op. Returns STATUS_DEVICE when the device is lost. */
typedef status (*backend_kernel)(backend *b, const op_call *call);
/* Scratch bytes a kernel needs for this call, whose addresses are set (NULL function: none). */
typedef size_t (*backend_scratch)(const backend *b, const op_call *call);

/* Bytes of a `fetch`, at most, and how many may be under way. */
enum { BACKEND_FETCH_BYTES = 16 << 10, BACKEND_FETCHES = 8 };
/* Calls that a plan shows to `fuse` at a time, at most. */
enum { BACKEND_FUSE_MAX = 32 };
/* Bytes of the name of a group, for collective_id. */
enum { BACKEND_GROUP_BYTES = 128 };
/* What a plan runs as one: the calls that `fuse` said it covers. */
typedef status (*backend_fused_kernel)(backend *b, const op_call *const *calls);

/* A possible member of a group: equal libraries reach each other, and a device can be in it once. */
typedef struct backend_site {
	char summed_by[32];       /* "NCCL 2.28.9" */
	unsigned char device[16]; /* no other device on any machine has these bytes */
} backend_site;

struct backend {
	const char *name; /* "cpu", "cuda" */
	char device[96];  /* "AMD EPYC …, 2 threads, avx512" */
	bool host_memory; /* device addresses can be read by the host */
	bool bf16;        /* kernels take DTYPE_BF16 where ops.h says "real" */
	bool maxima;      /* linear gives maxima */
	backend_kernel kernel[OP_COUNT];
	backend_scratch scratch[OP_COUNT];

	/* From now on a kernel shares its loops among at most this many threads of the host, 1 to `threads`, which is
	 * where it begins. Changes no bit of a result, and scratch for more threads is enough for fewer. NULL, with
	 * threads 0: a device, or a backend that has one thread anyway. */
	int threads;
	void (*use_threads)(backend *b, int threads);
	/* Run part 0 … n - 1, in this order but at the same time on as many threads of the host as there are: calls of
	 * kernels that have nothing in common but what they read. Returns when all are complete, with a failure if
	 * there was one. NULL where use_threads is. */
	status (*side_by_side)(backend *b, int n, status (*part)(void *context, int i), void *context);

	/* 64-byte aligned, zeroed. */
	status (*allocate)(backend *b, size_t bytes, void **out);
	/* NULL is legal. Work issued before on this backend may still use the memory; another's must have been waited
	 * for. */
	void (*release)(backend *b, void *data);
	status (*upload)(backend *b, void *device, const void *host, size_t bytes);
	status (*download)(backend *b, void *host, const void *device, size_t bytes);
	status (*copy)(backend *b, void *to, const void *from, size_t bytes);
	status (*clear)(backend *b, void *device, size_t bytes);
	/* Use no pages larger than `step` bytes for memory from allocate or reserve that has not been written. If a
	 * step is a large page or more, use large pages, also for what has been written. NULL: pages are fixed. */
	void (*by_small_pages)(backend *b, void *data, size_t bytes, size_t step);
	status (*synchronize)(backend *b);
	void (*close)(backend *b); /* frees b */

	/* Addresses for `bytes` bytes without memory behind them, so that what grows never moves. extend gives memory,
	 * zeroed, to at least the first `bytes` of a reservation; *extended: how many have it now (they may be more
	 * than were reserved). STATUS_NOMEM leaves it as it was. */
	status (*reserve)(backend *b, size_t bytes, void **out);
	status (*extend)(backend *b, void *reserved, size_t bytes, size_t *extended);
	void (*unreserve)(backend *b, void *reserved, size_t bytes); /* bytes as reserved; NULL is legal */

	/* Is issued work still running? NULL: never. A device that was lost is not busy. */
	bool (*busy)(backend *b);

	/* A download that waits for nothing issued after it. fetch issues it, behind the work issued before, and gives
	 * its number; fetched says whether the bytes are there (those of a lost device are); fetch_take waits for them
	 * and hands them over, and must come before BACKEND_FETCHES more have been issued. NULL, all three: a backend
	 * that is never busy. */
	status (*fetch)(backend *b, const void *device, size_t bytes, unsigned *number);
	bool (*fetched)(backend *b, unsigned number);
	status (*fetch_take)(backend *b, unsigned number, void *host, size_t bytes);

	/* Work issued between record_begin and record_end is recorded, not run; replay runs it with the addresses
	 * and parameters it was recorded with. Only kernels may be issued meanwhile (no upload: its bytes are gone at
	 * the replay), and each has run once before with the same shapes. NULL: this backend does not record.
	 * record_end also ends a recording that failed (*out NULL, its status). replay may fail too, and has issued
	 * nothing then. Only STATUS_DEVICE means that the device is lost; after anything else the work is issued
	 * directly, or, STATUS_BUSY, recorded anew at once: the backend does it by simpler means then.
	 * forget(NULL) is legal; a recording is not replayed when its addresses are gone. */
	status (*record_begin)(backend *b);
	status (*record_end)(backend *b, void **out);
	status (*replay)(backend *b, void *recording);
	void (*forget)(backend *b, void *recording);

	/* Can the first of these consecutive calls be one kernel? The number of calls that *out covers, at least 2, or
	 * 0. `dead` has bit i set when only these calls read output 0 of call i, so that it need not be written.
	 * Results must be those of the calls one by one, or what these are before they are rounded on the way: a value
	 * that is not written need not be rounded to its type. The same calls give the same bits. NULL: nothing is
	 * fused.
	 *
	 * Equal addresses are the same value, which is how calls are seen to be linked. A plan asks twice: before
	 * memory is placed (data then only distinguishes values: it is 64-byte aligned, NULL where absent, and must not
	 * be touched), and with the real addresses, when 0 is a good answer too. The kernel gets the calls of the
	 * second time. It may count on this: what any of its calls writes (dead outputs too, and what is updated in
	 * place) shares memory with nothing else that they read or write. So the group's inputs stay intact, and
	 * outputs may be written in any order. scratch is one for all calls, of as many bytes as the largest of them
	 * asked for. */
	int (*fuse)(const backend *b, const op_id *ids, const op_call *const *calls, int n, unsigned dead,
	            backend_fused_kernel *out);

	/* Sums over a group of processes, each with one backend, of a device of its own, in it. A backend is in one
	 * group at most, and the thread that uses the backend calls all of these. NULL, all: there are no such groups.
	 *
	 * collective_find: can this backend be in a group? STATUS_UNAVAILABLE says what is missing.
	 * collective_id: a name for a new group, BACKEND_GROUP_BYTES bytes, which the caller gives to all members.
	 * collective_open: become member `rank` of `count`. All members call it; returns when all have, or with
	 * STATUS_UNAVAILABLE when not all have within so many seconds; the backend is in no group then.
	 * collective_sum: replace each of n numbers on the device by the sum over all members of `share` times it, of
	 * equal bits in all members. It begins when what was issued before has run, and runs beside what is issued
	 * later, which leaves the numbers alone until collective_poll says that all sums are complete. All members
	 * issue the same sums in the same order; the same order of the same members gives the same bits. Not while
	 * recording. May wait, as long as collective_open, where sums of such a size were not made before.
	 * collective_poll: are all sums complete that were begun? Never waits.
	 * collective_close: leave the group. `cut_short`: at once; a sum under way ends, its numbers are undefined.
	 * Else all sums are complete on all members, and all members close. Legal without a group; closing the backend
	 * does it, cut short.
	 *
	 * STATUS_UNAVAILABLE of sum and poll: another member cannot be reached; the group is of no use any more, and
	 * collective_close with `cut_short` is next. A member that is gone may also just leave sums incomplete for
	 * good: who waits has to learn of it elsewhere. */
	status (*collective_find)(backend *b, backend_site *out, error *err);
	status (*collective_id)(backend *b, unsigned char *id, error *err);
	status (*collective_open)(backend *b, const unsigned char *id, int rank, int count, int seconds, error *err);
	status (*collective_sum)(backend *b, float *numbers, int64_t n, float share);
	status (*collective_poll)(backend *b, bool *complete);
	void (*collective_close)(backend *b, bool cut_short);
};

/* How a plug-in's device is opened. */
typedef struct backend_options {
	int device;      /* which of several, from 0 */
	bool wrap;       /* behind the last device comes the first */
	bool background; /* its work gives way to that of the others on the device */
} backend_options;

typedef struct backend_plugin {
	int abi;
	const char *name;
	status (*open)(backend **out, const backend_options *o, error *err);
} backend_plugin;

/* Open "cpu", "cuda" or "auto" (the plug-in when it and a device are there,
 * else the CPU). threads: 0 = all cores. The CPU opener is handed in, since this
 * folder knows no backend. options: for a plug-in; NULL: device 0. STATUS_UNAVAILABLE says what was missing. */
typedef status (*backend_opener)(backend **out, int threads, error *err);
status backend_open(backend **out, const char *name, const backend_options *options, backend_opener cpu, int threads,
                    error *err);
void backend_close(backend *b);

#endif
