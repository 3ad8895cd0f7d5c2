/* memory.h - zeroed, overflow-checked allocation, and arrays that grow. */
#ifndef ENGINE_BASE_MEMORY_H
#define ENGINE_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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

/* Give *array room for `needed` elements of `size` bytes, at least doubling *capacity, an integer of `width` bytes.
 * False when memory is short: nothing changes then. */
static inline bool memory_room(void *array, void *capacity, size_t width, size_t needed, size_t size)
{
	int32_t *narrow = width == sizeof(int32_t) ? (int32_t *)capacity : NULL;
	size_t *wide = (size_t *)capacity;
	const int64_t grown = 2 * (int64_t)needed + 8;
	int64_t bytes;
	void *old, *data;
	if (needed <= (narrow ? (size_t)*narrow : *wide))
		return true;
	if ((narrow && grown > INT32_MAX) || !memory_product(grown, (int64_t)size, &bytes))
		return false;
	memcpy(&old, array, sizeof old);
	data = realloc(old, (size_t)bytes);
	if (!data)
		return false;
	memcpy(array, &data, sizeof data);
	if (narrow)
		*narrow = (int32_t)grown;
	else
		*wide = (size_t)grown;
	return true; /* cppcheck-suppress memleak */
}
/* Likewise; array and capacity are lvalues. */
#define MEMORY_ROOM(array, capacity, needed)                                                                           \
	memory_room(&(array), &(capacity), sizeof(capacity), (size_t)(needed), sizeof *(array))

#endif
