/* host.h - memory of a backend whose device is the host.
 *
 * The reference and the fast CPU backend share these cells of the backend
 * table: memory is ordinary memory, every call is complete when it returns. */
#ifndef ENGINE_CPU_HOST_H
#define ENGINE_CPU_HOST_H

#include "engine/tensor/backend.h"

enum { HOST_ALIGNMENT = 64 }; /* a cache line, and the widest vector register */

/* Fill the memory and synchronize cells of b, and set host_memory. Names, kernels
 * and close are the caller's. */
void host_init(backend *b);

/* backend.side_by_side of the CPU. Loops within a part have one thread. */
status parts_run(backend *b, int n, status (*part)(void *context, int i), void *context);

#endif
