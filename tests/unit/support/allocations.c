/* Symbols of the program take precedence over those of the C library and of a sanitizer, so defining malloc here is
 * enough. The sanitizer's interceptor does the work if there is one (otherwise the weak reference is NULL), else the C
 * library does. Do not link this into a program whose threads allocate while a limit is set. */
#include "tests/unit/support/allocations.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *data, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void *__interceptor_malloc(size_t bytes) __attribute__((weak));
void *__interceptor_calloc(size_t count, size_t size) __attribute__((weak));
void *__interceptor_realloc(void *data, size_t bytes) __attribute__((weak));
void *__interceptor_aligned_alloc(size_t alignment, size_t bytes) __attribute__((weak));

/* Set by the linker: the bounds of the program's own code. */
extern const char __executable_start, etext;

static atomic_llong count, own;
static atomic_llong left = -1; /* calls still allowed; negative: no limit */
static atomic_bool once, only_own, any_refused;

/* Not instrumented: it is called before a sanitizer is initialized. */
__attribute__((no_sanitize("address", "undefined"))) static bool refused(const void *caller)
{
	bool is_own = (const char *)caller >= &__executable_start && (const char *)caller < &etext;
	count++;
	own += is_own;
	if (left < 0 || (only_own && !is_own))
		return false;
	if (left > 0) {
		left--;
		return false;
	}
	any_refused = true;
	errno = ENOMEM; /* as the C library does */
	if (once)
		left = -1;
	return true;
}

void *malloc(size_t bytes)
{
	if (refused(__builtin_return_address(0)))
		return NULL;
	return __interceptor_malloc ? __interceptor_malloc(bytes) : __libc_malloc(bytes);
}

void *calloc(size_t n, size_t size)
{
	if (refused(__builtin_return_address(0)))
		return NULL;
	return __interceptor_calloc ? __interceptor_calloc(n, size) : __libc_calloc(n, size);
}

void *realloc(void *data, size_t bytes)
{
	if (refused(__builtin_return_address(0)))
		return NULL;
	return __interceptor_realloc ? __interceptor_realloc(data, bytes) : __libc_realloc(data, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
	if (refused(__builtin_return_address(0)))
		return NULL;
	return __interceptor_aligned_alloc ? __interceptor_aligned_alloc(alignment, bytes)
	                                   : __libc_memalign(alignment, bytes);
}

int64_t allocations_count(void)
{
	return count;
}

int64_t allocations_own(void)
{
	return own;
}

static void start(int64_t calls, bool one, bool of_own)
{
	any_refused = false;
	once = one;
	only_own = of_own;
	left = calls;
}

void allocations_limit(int64_t calls)
{
	bool before = any_refused;
	start(calls, false, false);
	any_refused = calls < 0 && before; /* ending a limit keeps the result */
}

void allocations_fail(int64_t calls, bool of_own)
{
	start(calls, true, of_own);
}

bool allocations_refused(void)
{
	return any_refused;
}
