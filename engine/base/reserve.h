/* reserve.h - memory for libraries that do not survive a failed allocation.
 *
 * jansson ignores some failed allocations and then prints an incomplete or malformed document; libuv aborts on some.
 * Both get their memory here: from the C library, and when that fails, from a fixed reserve in the program's image. The
 * reserve is whole again once all of its blocks have been freed. It covers a short shortage, during which larger
 * requests are refused. An endless shortage uses it up, and then allocations fail.
 *
 * All functions may be called from any thread. */
#ifndef ENGINE_BASE_RESERVE_H
#define ENGINE_BASE_RESERVE_H

#include <stdbool.h>
#include <stddef.h>

enum { RESERVE_BYTES = 1 << 20, RESERVE_MAX_BLOCK = 64 << 10 };

/* As malloc, calloc, realloc and free. A block of more than RESERVE_MAX_BLOCK comes from the C library only. */
void *reserve_malloc(size_t bytes);
void *reserve_calloc(size_t count, size_t size);
void *reserve_realloc(void *data, size_t bytes);
void reserve_free(void *data);

/* True if an allocation has failed on this thread since reserve_forget, the reserve included. */
bool reserve_failed(void);
void reserve_forget(void);
/* Set what reserve_failed returns, after a caller has saved it and called reserve_forget. */
void reserve_remember(void);

#endif
