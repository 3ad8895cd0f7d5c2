/* Device memory. cudaMalloc takes the next addresses of one large reservation and never reuses them, so freed memory
 * stays recognizable. Allocations are separated by an inaccessible page, and end less than 256 bytes before it. New
 * memory is all ones: floats are NaN, indexes far out of range. The pool differs in the bytes that count as taken; its
 * addresses are new each time too. */
#include "emulator.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <unordered_set>

namespace emulator {

enum : size_t { RESERVED = (size_t)4 << 40, PAGE = 4096, TOTAL_MIB = 8 << 10 };

static std::map<uintptr_t, allocation> allocations; /* by base; including freed ones */
static std::unordered_set<allocation *> live;       /* the live ones */
static uintptr_t reserved, next_address;
static struct {
	size_t taken;
	size_t pooled, pool_used; /* taken bytes in the pool, and those of its live allocations */
} counts[DEVICES];
static bool is_open = true;

static bool reserve()
{
	if (reserved)
		return true;
	void *at = mmap(nullptr, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return false;
	reserved = next_address = (uintptr_t)at;
	return true;
}

static size_t pages(size_t bytes)
{
	return (bytes + PAGE - 1) / PAGE * PAGE;
}

static unsigned char *first_page(const allocation &a)
{
	return (unsigned char *)((uintptr_t)a.base / PAGE * PAGE);
}

static size_t page_bytes(const allocation &a)
{
	return pages((uintptr_t)a.base + a.bytes) - (uintptr_t)first_page(a);
}

bool memory_take(long long bytes)
{
	size_t &taken = counts[current_device()].taken;
	if (bytes > 0 && taken + (size_t)bytes > memory_total())
		return false;
	taken += (size_t)bytes;
	return true;
}

size_t memory_left()
{
	return memory_total() - counts[current_device()].taken;
}
size_t memory_total()
{
	const char *mib = getenv("ADDITIVE_EMULATOR_MEMORY");
	return (mib ? strtoul(mib, nullptr, 10) : (size_t)TOTAL_MIB) << 20;
}

/* Bytes rounded up to the unit of counting. */
static size_t whole(size_t bytes)
{
	return (bytes + 255) / 256 * 256;
}

static void add(unsigned char *base, size_t bytes, bool mapped)
{
	allocation *a = &allocations[(uintptr_t)base];
	*a = {base, bytes, current_device(), true, mapped, nullptr};
	live.insert(a);
}

static void remove(allocation *a)
{
	shadow_free(a->marks);
	a->marks = nullptr;
	a->live = false;
	live.erase(a);
}

cudaError_t memory_allocate(void **out, size_t bytes)
{
	*out = nullptr;
	size_t counted = whole(bytes), span = pages(counted);
	if (bytes == 0)
		return cudaSuccess;
	if (bytes > memory_total() || !reserve() || next_address + span + PAGE > reserved + RESERVED || !memory_take((long long)counted))
		return cudaErrorMemoryAllocation;
	if (mprotect((void *)next_address, span, PROT_READ | PROT_WRITE) != 0) {
		memory_take(-(long long)counted);
		return cudaErrorMemoryAllocation;
	}
	unsigned char *base = (unsigned char *)next_address + span - counted;
	(void)madvise((void *)next_address, span, MADV_HUGEPAGE); /* reduces the number of pages to open and close */
	memset((void *)next_address, 0xff, span);
	if (!is_open)
		(void)mprotect((void *)next_address, span, PROT_NONE);
	next_address += span + PAGE;
	add(base, bytes, false);
	*out = base;
	return cudaSuccess;
}

/* Return its bytes to the system; its addresses are never reused. */
static void forget(allocation *a)
{
	(void)mmap(first_page(*a), page_bytes(*a), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	memory_take(-(long long)whole(a->bytes));
	remove(a);
}

cudaError_t memory_free(void *at)
{
	auto a = allocations.find((uintptr_t)at);
	if (a == allocations.end() || a->second.mapped)
		fail("cudaFree: %p was not given by cudaMalloc", at);
	if (!a->second.live)
		fail("cudaFree: %p, %zu bytes, was freed before", at, a->second.bytes);
	forget(&a->second);
	return cudaSuccess;
}

cudaError_t pool_allocate(void **out, size_t bytes)
{
	auto &[taken, pooled, pool_used] = counts[current_device()];
	const size_t again = std::min(pooled, whole(bytes));
	taken -= again;
	cudaError_t e = memory_allocate(out, bytes);
	if (e != cudaSuccess) {
		taken += again;
		return e;
	}
	pooled -= again;
	pool_used += whole(bytes);
	return e;
}

cudaError_t pool_free(void *at)
{
	auto &[taken, pooled, pool_used] = counts[current_device()];
	const size_t before = taken;
	cudaError_t e = memory_free(at);
	pooled += before - taken;
	pool_used -= before - taken;
	taken = before;
	return e;
}

void pool_trim(size_t least)
{
	auto &[taken, pooled, pool_used] = counts[current_device()];
	const size_t all = pooled + pool_used, more = all > least ? std::min(all - least, pooled) : 0;
	taken -= more;
	pooled -= more;
}

void memory_forget_all()
{
	pool_trim(0);
	counts[current_device()].pool_used = 0;
	for (auto &a : allocations)
		if (a.second.live && !a.second.mapped && a.second.device == current_device())
			forget(&a.second);
}

void memory_forget_marks()
{
	for (allocation *a : live) {
		shadow_free(a->marks);
		a->marks = nullptr;
	}
}

void memory_add(void *at, size_t bytes)
{
	/* mappings that were here before */
	allocations.erase(allocations.lower_bound((uintptr_t)at), allocations.lower_bound((uintptr_t)at + bytes));
	add((unsigned char *)at, bytes, true);
	if (!is_open)
		(void)mprotect(at, bytes, PROT_NONE);
}

void memory_remove(void *at)
{
	remove(&allocations.find((uintptr_t)at)->second);
}

allocation *memory_find(const void *at)
{
	auto a = allocations.upper_bound((uintptr_t)at);
	return a == allocations.begin() ? nullptr : &std::prev(a)->second;
}

/* True if the range is live on the thread's device. Mapped pieces may follow each other without a gap and then form one range. */
bool memory_is_live(const void *at, size_t bytes)
{
	uintptr_t from = (uintptr_t)at, end = from + bytes;
	while (from < end) {
		const allocation *a = memory_find((const void *)from);
		if (!a || !a->live || a->device != current_device() || from - (uintptr_t)a->base >= a->bytes)
			return false;
		from = (uintptr_t)a->base + a->bytes;
	}
	return true;
}

void memory_open(bool open)
{
	if (open == is_open)
		return;
	is_open = open;
	for (const allocation *a : live)
		(void)mprotect(first_page(*a), page_bytes(*a), open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void memory_report_leaks()
{
	size_t bytes = 0;
	for (const allocation *a : live)
		bytes += a->bytes;
	if (!live.empty())
		fail("%zu allocations of %zu bytes were never freed", live.size(), bytes);
}

} // namespace emulator
