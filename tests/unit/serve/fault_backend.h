/* fault_backend.h - a backend that passes every call on to another one, until the N-th call of a kind fails. Nothing is
 * fused, so each kernel is a call. */
#ifndef TESTS_UNIT_SERVE_FAULT_BACKEND_H
#define TESTS_UNIT_SERVE_FAULT_BACKEND_H

#include <stdlib.h>
#include <string.h>

#include "engine/tensor/backend.h"

typedef enum fault_kind {
	FAULT_KERNEL,   /* STATUS_DEVICE */
	FAULT_TRANSFER, /* upload, download, copy, clear, synchronize: STATUS_DEVICE */
	FAULT_ALLOCATE, /* allocate, reserve, extend: STATUS_NOMEM */
	FAULT_MALLOC    /* fails outside this backend: the host's malloc, calloc and realloc */
} fault_kind;

typedef struct fault_backend {
	backend base;
	backend *inner;
	fault_kind kind;
	int64_t left; /* calls of that kind that still succeed; negative: not armed */
	bool lasting; /* all later calls fail too */
	bool refuses; /* a call that fails does not lose the device */
	bool struck;
	int64_t memory;            /* allocations and reservations not yet released */
	bool full;                 /* every allocation and extension fails */
	size_t room;               /* bytes to which a reservation may be extended; 0: any number */
	size_t downloaded, copied; /* bytes */
	unsigned fetches;
	char boxes[BACKEND_FETCHES][BACKEND_FETCH_BYTES];
} fault_backend;

/* Backends created from now on have `fetch`, so that steps are issued ahead. */
static bool fault_fetches;
/* Backends created from now on have `side_by_side`. */
static bool fault_parts;

static inline void fault_arm(fault_backend *f, fault_kind kind, int64_t left, bool lasting)
{
	f->kind = kind;
	f->left = left;
	f->lasting = lasting;
	f->struck = false;
}

static inline bool fault_strikes(fault_backend *f, fault_kind kind)
{
	if (f->left < 0 || kind != f->kind)
		return false;
	if (f->left > 0) {
		f->left--;
		return false;
	}
	f->left = f->lasting ? 0 : -1;
	f->struck = true;
	return true;
}

#define OP(name, ...)                                                                                                  \
	static inline status fault_kernel_##name(backend *b, const op_call *call)                                      \
	{                                                                                                              \
		fault_backend *f = (fault_backend *)b;                                                                 \
		if (fault_strikes(f, FAULT_KERNEL))                                                                    \
			return STATUS_DEVICE;                                                                          \
		return f->inner->kernel[OP_##name](f->inner, call);                                                    \
	}                                                                                                              \
	static inline size_t fault_scratch_##name(const backend *b, const op_call *call)                               \
	{                                                                                                              \
		const fault_backend *f = (const fault_backend *)b;                                                     \
		return f->inner->scratch[OP_##name] ? f->inner->scratch[OP_##name](f->inner, call) : 0;                \
	}
#include "engine/tensor/ops.def"
#undef OP

static inline status fault_allocate(backend *b, size_t bytes, void **out)
{
	fault_backend *f = (fault_backend *)b;
	*out = NULL;
	if (f->full || fault_strikes(f, FAULT_ALLOCATE))
		return STATUS_NOMEM;
	status s = f->inner->allocate(f->inner, bytes, out);
	f->memory += s == STATUS_OK;
	return s;
}

static inline void fault_release(backend *b, void *data)
{
	fault_backend *f = (fault_backend *)b;
	f->memory -= data != NULL;
	f->inner->release(f->inner, data);
}

static inline status fault_upload(backend *b, void *device, const void *host, size_t bytes)
{
	fault_backend *f = (fault_backend *)b;
	return fault_strikes(f, FAULT_TRANSFER) ? STATUS_DEVICE : f->inner->upload(f->inner, device, host, bytes);
}

static inline status fault_download(backend *b, void *host, const void *device, size_t bytes)
{
	fault_backend *f = (fault_backend *)b;
	f->downloaded += bytes;
	return fault_strikes(f, FAULT_TRANSFER) ? STATUS_DEVICE : f->inner->download(f->inner, host, device, bytes);
}

static inline status fault_fetch(backend *b, const void *device, size_t bytes, unsigned *number)
{
	fault_backend *f = (fault_backend *)b;
	*number = f->fetches++;
	f->downloaded += bytes;
	if (fault_strikes(f, FAULT_TRANSFER))
		return STATUS_DEVICE;
	return f->inner->download(f->inner, f->boxes[*number % BACKEND_FETCHES], device, bytes);
}

static inline bool fault_fetched(backend *b, unsigned number)
{
	(void)b;
	(void)number;
	return true;
}

static inline status fault_fetch_take(backend *b, unsigned number, void *host, size_t bytes)
{
	fault_backend *f = (fault_backend *)b;
	memcpy(host, f->boxes[number % BACKEND_FETCHES], bytes);
	return fault_strikes(f, FAULT_TRANSFER) ? STATUS_DEVICE : STATUS_OK;
}

static inline status fault_copy(backend *b, void *to, const void *from, size_t bytes)
{
	fault_backend *f = (fault_backend *)b;
	f->copied += bytes;
	return fault_strikes(f, FAULT_TRANSFER) ? STATUS_DEVICE : f->inner->copy(f->inner, to, from, bytes);
}

static inline status fault_clear(backend *b, void *device, size_t bytes)
{
	fault_backend *f = (fault_backend *)b;
	return fault_strikes(f, FAULT_TRANSFER) ? STATUS_DEVICE : f->inner->clear(f->inner, device, bytes);
}

static inline status fault_synchronize(backend *b)
{
	fault_backend *f = (fault_backend *)b;
	return fault_strikes(f, FAULT_TRANSFER) ? STATUS_DEVICE : f->inner->synchronize(f->inner);
}

static inline status fault_reserve(backend *b, size_t bytes, void **out)
{
	fault_backend *f = (fault_backend *)b;
	*out = NULL;
	if (f->full || fault_strikes(f, FAULT_ALLOCATE))
		return STATUS_NOMEM;
	status s = f->inner->reserve(f->inner, bytes, out);
	f->memory += s == STATUS_OK;
	return s;
}

static inline status fault_extend(backend *b, void *reserved, size_t bytes, size_t *extended)
{
	fault_backend *f = (fault_backend *)b;
	if (f->full || (f->room && bytes > f->room) || fault_strikes(f, FAULT_ALLOCATE))
		return STATUS_NOMEM;
	return f->inner->extend(f->inner, reserved, bytes, extended);
}

static inline status fault_retract(backend *b, void *reserved, size_t backed, size_t bytes, size_t *left)
{
	fault_backend *f = (fault_backend *)b;
	return f->inner->retract(f->inner, reserved, backed, bytes, left);
}

static inline void fault_unreserve(backend *b, void *reserved, size_t bytes)
{
	fault_backend *f = (fault_backend *)b;
	f->memory -= reserved != NULL;
	f->inner->unreserve(f->inner, reserved, bytes);
}

static inline bool fault_busy(backend *b)
{
	fault_backend *f = (fault_backend *)b;
	return f->inner->busy(f->inner);
}

static inline bool fault_is_lost(const backend *b)
{
	return !((const fault_backend *)b)->refuses;
}

static inline status fault_record_begin(backend *b)
{
	fault_backend *f = (fault_backend *)b;
	return f->inner->record_begin(f->inner);
}

static inline status fault_record_end(backend *b, void **out)
{
	fault_backend *f = (fault_backend *)b;
	return f->inner->record_end(f->inner, out);
}

/* Fails as one kernel that was recorded. */
static inline status fault_replay(backend *b, void *recording)
{
	fault_backend *f = (fault_backend *)b;
	return fault_strikes(f, FAULT_KERNEL) ? STATUS_DEVICE : f->inner->replay(f->inner, recording);
}

static inline void fault_forget(backend *b, void *recording)
{
	fault_backend *f = (fault_backend *)b;
	f->inner->forget(f->inner, recording);
}

static inline void fault_use_threads(backend *b, int threads)
{
	(void)b;
	(void)threads;
}

/* Run the parts in reverse: no part may depend on another. */
static inline status fault_side_by_side(backend *b, int n, status (*part)(void *context, int i), void *context)
{
	status failure = STATUS_OK;
	(void)b;
	for (int i = n - 1; i >= 0; i--) {
		status s = part(context, i);
		failure = s == STATUS_OK ? failure : s;
	}
	return failure;
}

static inline void fault_close(backend *b)
{
	backend_close(((fault_backend *)b)->inner);
	free(b);
}

/* Takes ownership of inner. NULL when out of memory. */
static inline fault_backend *fault_backend_new(backend *inner)
{
	fault_backend *f = calloc(1, sizeof *f);
	if (!f)
		return NULL;
	f->inner = inner;
	f->left = -1;
	f->base = (backend){
	    .name = "fault",
	    .host_memory = inner->host_memory,
	    .maxima = inner->maxima,
	    .records = inner->records,
	    .allocate = fault_allocate,
	    .release = fault_release,
	    .upload = fault_upload,
	    .download = fault_download,
	    .copy = fault_copy,
	    .clear = fault_clear,
	    .synchronize = fault_synchronize,
	    .close = fault_close,
	    .threads = fault_parts ? 2 : 0,
	    .use_threads = fault_parts ? fault_use_threads : NULL,
	    .side_by_side = fault_parts ? fault_side_by_side : NULL,
	    .reserve = fault_reserve,
	    .extend = fault_extend,
	    .retract = fault_retract,
	    .unreserve = fault_unreserve,
	    .fetch = fault_fetches ? fault_fetch : NULL,
	    .fetched = fault_fetches ? fault_fetched : NULL,
	    .fetch_take = fault_fetches ? fault_fetch_take : NULL,
	    .busy = inner->busy ? fault_busy : NULL,
	    .lost = fault_is_lost,
	    .record_begin = inner->record_begin ? fault_record_begin : NULL,
	    .record_end = inner->record_end ? fault_record_end : NULL,
	    .replay = inner->replay ? fault_replay : NULL,
	    .forget = inner->forget ? fault_forget : NULL,
	};
#define OP(name, ...)                                                                                                  \
	f->base.kernel[OP_##name] = fault_kernel_##name;                                                               \
	f->base.scratch[OP_##name] = fault_scratch_##name;
#include "engine/tensor/ops.def"
#undef OP
	return f;
}

#endif
