/* allocations.h - count a program's allocations, or let one fail.
 *
 * Linking this replaces malloc, calloc, realloc and aligned_alloc of the whole
 * program; under a sanitizer its own allocator still does the work. */
#ifndef TESTS_UNIT_SUPPORT_ALLOCATIONS_H
#define TESTS_UNIT_SUPPORT_ALLOCATIONS_H

#include <stdbool.h>
#include <stdint.h>

/* Calls so far. */
int64_t allocations_count(void);
/* Those that the program's own code made, not a library for itself. */
int64_t allocations_own(void);
/* Let every call after the next `calls` return NULL; negative: none fails. */
void allocations_limit(int64_t calls);
/* Let one call return NULL, the one after the next `calls`; with `own`, of those that the program's own code makes.
 * allocations_limit(-1) ends it. */
void allocations_fail(int64_t calls, bool own);
/* Has a call returned NULL on purpose since allocations_limit or allocations_fail was called last? */
bool allocations_refused(void);

#endif
