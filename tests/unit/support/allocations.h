/* allocations.h - count a program's allocations, or let one fail.
 *
 * Linking this replaces malloc, calloc, realloc and aligned_alloc of the whole
 * program; under a sanitizer its own allocator still does the work. */
#ifndef TESTS_UNIT_SUPPORT_ALLOCATIONS_H
#define TESTS_UNIT_SUPPORT_ALLOCATIONS_H

#include <stdint.h>

/* Calls so far. */
int64_t allocations_count(void);
/* Those that the program's own code made, not a library for itself. */
int64_t allocations_own(void);
/* Let every call after the next `calls` return NULL; negative: none fails. */
void allocations_limit(int64_t calls);

#endif
