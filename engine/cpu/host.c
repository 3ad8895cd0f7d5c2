#include "engine/cpu/host.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined MADV_HUGEPAGE && !defined MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* since Linux 6.1; older systems refuse it, and glibc 2.36 has no name for it */
#endif

/* Blocks of at least this size request huge pages: long passes over memory are up to a fifth faster. */
enum { HUGE_PAGE = 2 << 20, HOST_PAGE = 65536 /* a multiple of every system's */ };

static status host_allocate(backend *b, size_t bytes, void **out)
{
	(void)b;
	*out = NULL;
	if (bytes > SIZE_MAX - 3 * HUGE_PAGE)
		return STATUS_NOMEM;
	/* At least one line, so that an empty tensor has an address, too. The address of the allocation is stored
	 * before the data. Large memory from calloc is untouched and is zeroed page by page on use, not here. */
	size_t alignment = bytes < HUGE_PAGE ? HOST_ALIGNMENT : HUGE_PAGE;
	size_t rounded = (bytes / alignment + 1) * alignment;
	char *whole = calloc(1, rounded + alignment);
	if (!whole)
		return STATUS_NOMEM;
	char *data = whole + alignment - (uintptr_t)whole % alignment;
#ifdef MADV_HUGEPAGE
	if (alignment == HUGE_PAGE)
		(void)madvise(data, rounded, MADV_HUGEPAGE); /* only a request: memory without huge pages works too */
#endif
	((void **)data)[-1] = whole;
	*out = data;
	return STATUS_OK;
}

static void host_by_small_pages(backend *b, void *data, size_t bytes, size_t step)
{
	const size_t page = step < HUGE_PAGE ? HOST_PAGE : HUGE_PAGE, skipped = -(uintptr_t)data % page;
	(void)b;
	if (bytes <= skipped || (step >= HUGE_PAGE && bytes - skipped < HUGE_PAGE))
		return;
#ifdef MADV_NOHUGEPAGE
	(void)madvise((char *)data + skipped, bytes - skipped, step < HUGE_PAGE ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
#endif
#ifdef MADV_COLLAPSE
	if (step >= HUGE_PAGE)
		(void)madvise((char *)data + skipped, (bytes - skipped) / HUGE_PAGE * HUGE_PAGE, MADV_COLLAPSE);
#endif
}

static void host_release(backend *b, void *data)
{
	(void)b;
	if (data)
		free(((void **)data)[-1]);
}

/* Upload, download and copy are the same operation here. */
static status host_copy(backend *b, void *to, const void *from, size_t bytes)
{
	(void)b;
	if (bytes)
		memmove(to, from, bytes);
	return STATUS_OK;
}

static status host_clear(backend *b, void *device, size_t bytes)
{
	(void)b;
	if (bytes)
		memset(device, 0, bytes);
	return STATUS_OK;
}

/* Round up to whole pages, at least one; 0: overflow. */
static size_t host_pages(size_t bytes)
{
	return bytes > SIZE_MAX - HOST_PAGE ? 0
	                                    : (bytes / HOST_PAGE + (bytes % HOST_PAGE > 0 || bytes == 0)) * HOST_PAGE;
}

static void *host_addresses(size_t bytes)
{
	void *data = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return data == MAP_FAILED ? NULL : data;
}

/* A large reservation begins at a huge page: one page more is mapped, and the excess before and after is returned. */
static status host_reserve(backend *b, size_t bytes, void **out)
{
	(void)b;
	size_t whole = host_pages(bytes);
	*out = NULL;
	if (whole < HUGE_PAGE || whole > SIZE_MAX - HUGE_PAGE) {
		*out = whole ? host_addresses(whole) : NULL;
		return *out ? STATUS_OK : STATUS_NOMEM;
	}
	char *data = host_addresses(whole + HUGE_PAGE);
	if (!data)
		return STATUS_NOMEM;
	size_t before = (HUGE_PAGE - (uintptr_t)data % HUGE_PAGE) % HUGE_PAGE;
	if (before)
		munmap(data, before);
	if (before < HUGE_PAGE)
		munmap(data + before + whole, HUGE_PAGE - before);
	*out = data + before;
#ifdef MADV_HUGEPAGE
	(void)madvise(*out, whole, MADV_HUGEPAGE);
#endif
	return STATUS_OK;
}

static status host_extend(backend *b, void *reserved, size_t bytes, size_t *extended)
{
	(void)b;
	size_t whole = host_pages(bytes);
	if (mprotect(reserved, whole, PROT_READ | PROT_WRITE) != 0)
		return STATUS_NOMEM;
	*extended = whole;
	return STATUS_OK;
}

/* The pages keep what by_small_pages has set. */
static status host_retract(backend *b, void *reserved, size_t backed, size_t bytes, size_t *left)
{
	(void)b;
	const size_t kept = host_pages(bytes), whole = host_pages(backed);
	*left = backed;
	if (kept >= whole)
		return STATUS_OK;
	char *from = (char *)reserved + kept;
	if (madvise(from, whole - kept, MADV_DONTNEED) != 0 || mprotect(from, whole - kept, PROT_NONE) != 0)
		return STATUS_NOMEM;
	*left = kept;
	return STATUS_OK;
}

static void host_unreserve(backend *b, void *reserved, size_t bytes)
{
	(void)b;
	if (reserved)
		munmap(reserved, host_pages(bytes));
}

static status host_synchronize(backend *b)
{
	(void)b;
	return STATUS_OK;
}

void host_init(backend *b)
{
	b->host_memory = true;
	b->allocate = host_allocate;
	b->by_small_pages = host_by_small_pages;
	b->release = host_release;
	b->upload = host_copy;
	b->download = host_copy;
	b->copy = host_copy;
	b->clear = host_clear;
	b->synchronize = host_synchronize;
	b->reserve = host_reserve;
	b->extend = host_extend;
	b->retract = host_retract;
	b->unreserve = host_unreserve;
}
