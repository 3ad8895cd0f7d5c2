/* allocations.h - count a program's allocations, or let one fail.
 *
 * Linking this replaces malloc, calloc, realloc and aligned_alloc in the entire program. A sanitizer's allocator still
 * does the work. */
#ifndef TESTS_UNIT_SUPPORT_ALLOCATIONS_H
#define TESTS_UNIT_SUPPORT_ALLOCATIONS_H

#include <stdbool.h>
#include <stdint.h>

/* Allocations so far. */
int64_t allocations_count(void);
/* Allocations made by the program's own code, without those that a library makes for itself. */
int64_t allocations_own(void);
/* Let every call after the next `calls` return NULL; negative: no limit. */
void allocations_limit(int64_t calls);
/* Let one call return NULL: the one after the next `calls`. With `own`, count and fail only calls from the program's
 * own code. allocations_limit(-1) turns this off. */
void allocations_fail(int64_t calls, bool own);
/* True if a call was made to fail since the last allocations_limit or allocations_fail. */
bool allocations_refused(void);

#endif
