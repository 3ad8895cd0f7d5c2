/* The driver's virtual memory. Addresses are reserved without memory, memory is created without an address, and the two
 * are mapped and opened for access. Memory is an unnamed file, so that it keeps its bytes when it is mapped
 * elsewhere. */
#include <cuda.h>
#include <cuda_runtime.h>

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "emulator.h"

namespace {

using guard = std::lock_guard<std::recursive_mutex>;

enum : size_t { GRANULE = 2 << 20 };

struct memory {
	int device;
	int file;
	size_t bytes;
	int users; /* the handle, and every mapping */
	bool released;
};
struct mapping {
	size_t bytes;
	CUmemGenericAllocationHandle handle;
	bool open;
};

struct reservation {
	int device;
	size_t bytes;
};

std::map<CUdeviceptr, reservation> reservations;
std::map<CUmemGenericAllocationHandle, memory> memories;
std::map<CUdeviceptr, mapping> mappings;
CUmemGenericAllocationHandle last_handle;

bool granular(unsigned long long x)
{
	return x != 0 && x % GRANULE == 0;
}

void drop(CUmemGenericAllocationHandle handle)
{
	memory &m = memories[handle];
	if (--m.users > 0)
		return;
	close(m.file);
	emulator::memory_take(-(long long)m.bytes);
	memories.erase(handle);
}

bool inside_reservation(CUdeviceptr at, size_t bytes)
{
	auto r = reservations.upper_bound(at);
	return r != reservations.begin() && at + bytes <= (--r)->first + r->second.bytes;
}

bool is_device(const CUmemLocation &l)
{
	return l.type == CU_MEM_LOCATION_TYPE_DEVICE && l.id == emulator::current_device();
}

} // namespace

void emulator::driver_reset()
{
	const int here = current_device();
	for (auto m = mappings.begin(); m != mappings.end();) {
		auto [at, old] = *m++;
		if (memories[old.handle].device == here)
			(void)cuMemUnmap(at, old.bytes);
	}
	for (auto r = reservations.begin(); r != reservations.end();) {
		auto [at, old] = *r++;
		if (old.device == here)
			(void)cuMemAddressFree(at, old.bytes);
	}
	for (auto m = memories.begin(); m != memories.end();) {
		auto [handle, old] = *m++;
		if (old.device == here)
			(void)cuMemRelease(handle);
	}
}

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags)
{
	if (!granularity || !prop || !is_device(prop->location))
		return CUDA_ERROR_INVALID_VALUE;
	*granularity = GRANULE;
	return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr, unsigned long long flags)
{
	const guard hold(emulator::runtime_lock());
	if (!out || !granular(bytes) || flags || alignment > GRANULE)
		return CUDA_ERROR_INVALID_VALUE;
	size_t all = bytes + GRANULE; /* with room to align */
	void *at = mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUdeviceptr first = ((CUdeviceptr)at + GRANULE - 1) / GRANULE * GRANULE, end = (CUdeviceptr)at + all;
	if (first > (CUdeviceptr)at)
		munmap(at, first - (CUdeviceptr)at);
	if (end > first + bytes)
		munmap((void *)(first + bytes), end - first - bytes);
	reservations[first] = {emulator::current_device(), bytes};
	*out = first;
	return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes)
{
	const guard hold(emulator::runtime_lock());
	auto r = reservations.find(at);
	if (r == reservations.end() || r->second.bytes != bytes)
		return CUDA_ERROR_INVALID_VALUE;
	auto m = mappings.lower_bound(at);
	if (m != mappings.end() && m->first < at + bytes)
		return CUDA_ERROR_INVALID_VALUE;
	munmap((void *)at, bytes);
	reservations.erase(r);
	return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)
{
	const guard hold(emulator::runtime_lock());
	if (!out || !prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || !is_device(prop->location) || flags || !granular(bytes))
		return CUDA_ERROR_INVALID_VALUE;
	cudaError_t e = emulator::may_allocate();
	if (e != cudaSuccess)
		return (CUresult)e; /* both interfaces use the same numbers */
	if (!emulator::memory_take((long long)bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	int file = memfd_create("device memory", MFD_CLOEXEC);
	void *at = MAP_FAILED;
	if (file >= 0 && ftruncate(file, (off_t)bytes) == 0)
		at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (at == MAP_FAILED) {
		if (file >= 0)
			close(file);
		emulator::memory_take(-(long long)bytes);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	memset(at, 0xff, bytes);
	munmap(at, bytes);
	*out = ++last_handle;
	memories[*out] = {emulator::current_device(), file, bytes, 1, false};
	return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	const guard hold(emulator::runtime_lock());
	auto m = memories.find(handle);
	if (m == memories.end() || m->second.released)
		return CUDA_ERROR_INVALID_VALUE;
	m->second.released = true;
	drop(handle);
	return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	const guard hold(emulator::runtime_lock());
	auto m = memories.find(handle);
	if (m == memories.end() || m->second.released || flags || offset != 0 || bytes != m->second.bytes || at % GRANULE != 0 ||
	    !inside_reservation(at, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	auto next = mappings.lower_bound(at);
	if ((next != mappings.end() && next->first < at + bytes) ||
	    (next != mappings.begin() && std::prev(next)->first + std::prev(next)->second.bytes > at))
		return CUDA_ERROR_ALREADY_MAPPED;
	if (mmap((void *)at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, m->second.file, 0) == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->second.users++;
	mappings[at] = {bytes, handle, false};
	return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr at, size_t bytes)
{
	const guard hold(emulator::runtime_lock());
	CUdeviceptr end = at + bytes;
	for (CUdeviceptr p = at; p < end; p += mappings[p].bytes)
		if (!mappings.count(p) || p + mappings[p].bytes > end)
			return CUDA_ERROR_INVALID_VALUE;
	while (at < end) {
		mapping m = mappings[at];
		(void)mmap((void *)at, m.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
		mappings.erase(at);
		if (m.open)
			emulator::memory_remove((void *)at);
		drop(m.handle);
		at += m.bytes;
	}
	return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *desc, size_t count)
{
	const guard hold(emulator::runtime_lock());
	if (!desc || count != 1 || !is_device(desc->location) || desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
		return CUDA_ERROR_INVALID_VALUE;
	CUdeviceptr end = at + bytes;
	for (CUdeviceptr p = at; p < end; p += mappings[p].bytes)
		if (!mappings.count(p) || p + mappings[p].bytes > end)
			return CUDA_ERROR_INVALID_VALUE;
	for (; at < end; at += mappings[at].bytes) {
		mapping &m = mappings[at];
		if (mprotect((void *)at, m.bytes, PROT_READ | PROT_WRITE) != 0)
			return CUDA_ERROR_OUT_OF_MEMORY;
		if (!m.open)
			emulator::memory_add((void *)at, m.bytes);
		m.open = true;
	}
	return CUDA_SUCCESS;
}

} /* extern "C" */

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned version, unsigned long long,
                                             cudaDriverEntryPointQueryResult *result)
{
#define ENTRY(name) {#name, (void *)name}
	static const struct {
		const char *name;
		void *function;
	} entries[] = {ENTRY(cuMemGetAllocationGranularity), ENTRY(cuMemAddressReserve), ENTRY(cuMemAddressFree),
	               ENTRY(cuMemCreate), ENTRY(cuMemRelease), ENTRY(cuMemMap), ENTRY(cuMemUnmap), ENTRY(cuMemSetAccess),
	               ENTRY(cuDeviceGet), ENTRY(cuDeviceGetDevResource), ENTRY(cuDevSmResourceSplitByCount),
	               ENTRY(cuDevResourceGenerateDesc), ENTRY(cuGreenCtxCreate), ENTRY(cuGreenCtxStreamCreate),
	               ENTRY(cuGreenCtxDestroy)};
#undef ENTRY
	*out = nullptr;
	cudaDriverEntryPointQueryResult answer = cudaDriverEntryPointSymbolNotFound;
	for (const auto &e : entries)
		if (strcmp(symbol, e.name) == 0) {
			answer = version >= 10020 ? cudaDriverEntryPointSuccess : cudaDriverEntryPointVersionNotSufficent;
			*out = version >= 10020 ? e.function : nullptr;
		}
	if (result)
		*result = answer;
	return cudaSuccess;
}
