/* memory.h - zeroed, overflow-checked allocation. */
#ifndef ENGINE_BASE_MEMORY_H
#define ENGINE_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* `count` zeroed elements of `size` bytes; NULL when the product overflows or
 * memory is short. Free with free(). (calloc checks the product.) */
static inline void *memory_new(size_t count, size_t size)
{
	return calloc(count ? count : 1, size ? size : 1);
}

/* *out = a * b; false on overflow or a negative factor. */
static inline bool memory_product(int64_t a, int64_t b, int64_t *out)
{
	return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, out);
}

#endif
