/* backend.h - a device that can run ops: the seam between plans and hardware.
 *
 * A backend is a table of functions and one kernel per op. The CPU backend is
 * linked in; others are plug-ins: a shared object beside the binary exporting
 *     const backend_plugin additive_backend_plugin;
 * refused when its abi differs from BACKEND_ABI.
 *
 * Work is issued in order on one implicit stream. On the CPU every call is
 * complete when it returns; elsewhere only after synchronize (download
 * synchronises itself). One thread uses a backend at a time. */
#ifndef ENGINE_TENSOR_BACKEND_H
#define ENGINE_TENSOR_BACKEND_H

#include "engine/base/error.h"
#include "engine/tensor/op.h"

enum { BACKEND_ABI = 2 };

typedef struct backend backend;

/* Run one op. Returns STATUS_DEVICE when the device is lost. */
typedef status (*backend_kernel)(backend *b, const op_call *call);
/* Scratch bytes a kernel needs for this call, whose addresses are set (NULL function: none). */
typedef size_t (*backend_scratch)(const backend *b, const op_call *call);

struct backend {
	const char *name;      /* "cpu", "cuda" */
	char device[96];       /* "AMD EPYC …, 2 threads, avx512" */
	bool host_memory;      /* device addresses can be read by the host */
	backend_kernel kernel[OP_COUNT];
	backend_scratch scratch[OP_COUNT];

	/* 64-byte aligned, zeroed. */
	status (*allocate)(backend *b, size_t bytes, void **out);
	void (*release)(backend *b, void *data); /* NULL is legal */
	status (*upload)(backend *b, void *device, const void *host, size_t bytes);
	status (*download)(backend *b, void *host, const void *device, size_t bytes);
	status (*copy)(backend *b, void *to, const void *from, size_t bytes);
	status (*clear)(backend *b, void *device, size_t bytes);
	status (*synchronize)(backend *b);
	void (*close)(backend *b); /* frees b */
};

typedef struct backend_plugin {
	int abi;
	const char *name;
	status (*open)(backend **out, error *err);
} backend_plugin;

/* Open "cpu", "cuda" or "auto" (the plug-in when it and a device are there,
 * else the CPU). threads: 0 = all cores. The CPU opener is handed in, since this
 * folder knows no backend. STATUS_UNAVAILABLE says what was missing. */
typedef status (*backend_opener)(backend **out, int threads, error *err);
status backend_open(backend **out, const char *name, backend_opener cpu, int threads, error *err);
void backend_close(backend *b);

#endif
