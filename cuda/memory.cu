/* Device memory, and copies between host and device.
 *
 * allocate: from the device's pool, in the order of the stream. Released memory is reused once the work issued before
 * has run, and returns to the device when memory is short. Neither the host nor another stream waits for it.
 *
 * upload: through a ring of pinned memory, SLOTS × SLOT_BYTES; the host fills a slot and the device copies from it. A
 * slot's event is recorded when it is full, and awaited when the ring comes round to the slot.
 *
 * download: through two pinned halves; the host empties one while the device fills the other.
 *
 * fetch: into a pinned box, one of a few used in turn, each with an event. So a fetch never waits for work issued
 * later.
 *
 * reserve: addresses without memory, by the driver's virtual memory management; extend maps memory to more of them.
 * retract unmaps whole mappings.
 *
 * exchange: one reservation, which grows to the largest call's size. Recordings have its address.
 *
 * Bytes moved: an upload crosses the host's memory twice (read, write) and the bus once. */
#include "cuda/driver.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum : size_t { SLOT_BYTES = 4 << 20, HALF_BYTES = 2 << 20, LINE = 64, MOST_ADDRESSES = (size_t)1 << 46 };
enum { SLOTS = 4, DRIVER_VERSION = 12000 };
static const double POOL_SHARE = 7.0 / 8;

/* A reservation: [address, address + bytes), of which the first `extended` have memory. starts: where its mappings
 * begin; later ones than MAPPINGS count as part of the last. */
enum { MAPPINGS = 48 };
typedef struct reservation {
	struct reservation *next;
	CUdeviceptr address;
	size_t bytes, extended;
	size_t starts[MAPPINGS];
	int mappings;
} reservation;

typedef struct cuda_memory {
	cudaMemPool_t pool; /* the device's, shared by its backends */

	unsigned char *ring;          /* [SLOTS][SLOT_BYTES] */
	cudaEvent_t slot_done[SLOTS]; /* the device has read the slot's data */
	int slot;                     /* being filled */
	size_t used;                  /* bytes in use in it */

	unsigned char *halves; /* [2][HALF_BYTES] */
	cudaEvent_t half_done[2];

	unsigned char *boxes; /* [BACKEND_FETCHES][BACKEND_FETCH_BYTES] */
	cudaEvent_t box_done[BACKEND_FETCHES];
	unsigned fetches; /* number issued so far */

	CUmemAllocationProp prop; /* for memory mapped into reservations */
	size_t granularity;
	reservation *reservations;

	void *exchange; /* a reservation, or NULL */
	size_t exchange_bytes;
	unsigned exchange_uses; /* since it was cleared */

	decltype(&cuMemGetAllocationGranularity) get_granularity;
	decltype(&cuMemAddressReserve) address_reserve;
	decltype(&cuMemAddressFree) address_free;
	decltype(&cuMemCreate) create;
	decltype(&cuMemRelease) release;
	decltype(&cuMemMap) map;
	decltype(&cuMemUnmap) unmap;
	decltype(&cuMemSetAccess) set_access;
} cuda_memory;

/* Calls that a recording cannot contain. */
static status enter_unrecorded(cuda_backend *c)
{
	c->after_kernel = false;
	return c->recording ? STATUS_INTERNAL : cuda_enter(c);
}

/* --- allocations ------------------------------------------------------------------------ */

/* Return memory that the pool keeps after its release to the device. */
static status empty_pool(cuda_backend *c)
{
	TRY(cuda_status(c, cudaStreamSynchronize(c->stream)));
	return cuda_status(c, cudaMemPoolTrimTo(c->memory->pool, 0));
}

static status cuda_allocate(backend *b, size_t bytes, void **out)
{
	cuda_backend *c = cuda_of(b);
	*out = NULL;
	TRY(enter_unrecorded(c));
	if (bytes > c->memory_bytes)
		return STATUS_NOMEM;
	bytes += !bytes; /* an empty tensor has an address too */
	status s = cuda_status(c, cudaMallocAsync(out, bytes, c->stream));
	if (s == STATUS_NOMEM) {
		TRY(empty_pool(c));
		s = cuda_status(c, cudaMallocAsync(out, bytes, c->stream));
	}
	if (s == STATUS_OK)
		s = cuda_status(c, cudaMemsetAsync(*out, 0, bytes, c->stream));
	if (s != STATUS_OK)
		*out = NULL;
	return s;
}

static void cuda_release(backend *b, void *data)
{
	cuda_backend *c = cuda_of(b);
	assert(!c->recording);
	c->after_kernel = c->after_kernel && !data;
	if (data && cuda_enter(c) == STATUS_OK)
		(void)cuda_status(c, cudaFreeAsync(data, c->stream));
}

/* --- copies ------------------------------------------------------------------------------- */

static status next_slot(cuda_backend *c)
{
	cuda_memory *m = c->memory;
	TRY(cuda_status(c, cudaEventRecord(m->slot_done[m->slot], c->stream)));
	m->slot = (m->slot + 1) % SLOTS;
	m->used = 0;
	return cuda_status(c, cudaEventSynchronize(m->slot_done[m->slot])); /* at once if never recorded */
}

static status cuda_upload(backend *b, void *device, const void *host, size_t bytes)
{
	cuda_backend *c = cuda_of(b);
	cuda_memory *m = c->memory;
	TRY(enter_unrecorded(c));
	for (size_t at = 0; at < bytes;) {
		if (m->used == SLOT_BYTES)
			TRY(next_slot(c));
		size_t room = SLOT_BYTES - m->used, n = bytes - at < room ? bytes - at : room;
		unsigned char *staged = m->ring + (size_t)m->slot * SLOT_BYTES + m->used;
		memcpy(staged, (const char *)host + at, n);
		TRY(cuda_status(c, cudaMemcpyAsync((char *)device + at, staged, n, cudaMemcpyHostToDevice, c->stream)));
		m->used += (n + LINE - 1) / LINE * LINE;
		at += n;
	}
	return STATUS_OK;
}

static status cuda_download(backend *b, void *host, const void *device, size_t bytes)
{
	cuda_backend *c = cuda_of(b);
	cuda_memory *m = c->memory;
	TRY(enter_unrecorded(c));
	for (size_t issued = 0, done = 0; done < bytes;) {
		for (; issued < bytes && issued < done + 2 * HALF_BYTES; issued += HALF_BYTES) {
			size_t half = issued / HALF_BYTES % 2,
			       n = bytes - issued < HALF_BYTES ? bytes - issued : HALF_BYTES;
			TRY(cuda_status(c, cudaMemcpyAsync(m->halves + half * HALF_BYTES, (const char *)device + issued,
			                                   n, cudaMemcpyDeviceToHost, c->stream)));
			TRY(cuda_status(c, cudaEventRecord(m->half_done[half], c->stream)));
		}
		size_t half = done / HALF_BYTES % 2, n = bytes - done < HALF_BYTES ? bytes - done : HALF_BYTES;
		TRY(cuda_status(c, cudaEventSynchronize(m->half_done[half])));
		memcpy((char *)host + done, m->halves + half * HALF_BYTES, n);
		done += n;
	}
	return STATUS_OK;
}

static status cuda_fetch(backend *b, const void *device, size_t bytes, unsigned *number)
{
	cuda_backend *c = cuda_of(b);
	cuda_memory *m = c->memory;
	assert(bytes <= BACKEND_FETCH_BYTES);
	TRY(enter_unrecorded(c));
	*number = m->fetches++;
	unsigned box = *number % BACKEND_FETCHES;
	TRY(cuda_status(c, cudaMemcpyAsync(m->boxes + box * BACKEND_FETCH_BYTES, device, bytes, cudaMemcpyDeviceToHost,
	                                   c->stream)));
	return cuda_status(c, cudaEventRecord(m->box_done[box], c->stream));
}

static bool cuda_fetched(backend *b, unsigned number)
{
	cuda_backend *c = cuda_of(b);
	if (cuda_enter(c) != STATUS_OK)
		return true;
	cudaError_t e = cudaEventQuery(c->memory->box_done[number % BACKEND_FETCHES]);
	if (e == cudaErrorNotReady)
		return false;
	(void)cuda_status(c, e);
	return true;
}

static status cuda_fetch_take(backend *b, unsigned number, void *host, size_t bytes)
{
	cuda_backend *c = cuda_of(b);
	const unsigned box = number % BACKEND_FETCHES;
	assert(c->memory->fetches - number <= BACKEND_FETCHES);
	TRY(cuda_enter(c));
	TRY(cuda_status(c, cudaEventSynchronize(c->memory->box_done[box])));
	memcpy(host, c->memory->boxes + box * BACKEND_FETCH_BYTES, bytes);
	return STATUS_OK;
}

static status cuda_copy(backend *b, void *to, const void *from, size_t bytes)
{
	cuda_backend *c = cuda_of(b);
	TRY(cuda_enter(c));
	TRY(cuda_program_end(c));
	c->after_kernel = c->after_kernel && !bytes;
	return bytes ? cuda_status(c, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, c->stream))
	             : STATUS_OK;
}

static status cuda_clear(backend *b, void *device, size_t bytes)
{
	cuda_backend *c = cuda_of(b);
	TRY(cuda_enter(c));
	TRY(cuda_program_end(c));
	c->after_kernel = c->after_kernel && !bytes;
	return bytes ? cuda_status(c, cudaMemsetAsync(device, 0, bytes, c->stream)) : STATUS_OK;
}

/* --- reservations --------------------------------------------------------------------------- */

static size_t whole_granules(const cuda_memory *m, size_t bytes)
{
	return (bytes + m->granularity - 1) / m->granularity * m->granularity;
}

/* Address of the link to the reservation at this address; it contains NULL if there is none. */
static reservation **find_reservation(cuda_memory *m, const void *reserved)
{
	reservation **at = &m->reservations;
	while (*at && (*at)->address != (CUdeviceptr)(uintptr_t)reserved)
		at = &(*at)->next;
	return at;
}

static status cuda_reserve(backend *b, size_t bytes, void **out)
{
	cuda_backend *c = cuda_of(b);
	cuda_memory *m = c->memory;
	*out = NULL;
	TRY(enter_unrecorded(c));
	if (bytes > MOST_ADDRESSES)
		return STATUS_NOMEM;
	reservation *r = (reservation *)calloc(1, sizeof *r);
	if (!r)
		return STATUS_NOMEM;
	r->bytes = whole_granules(m, bytes + !bytes);
	status s = cuda_driver_status(c, m->address_reserve(&r->address, r->bytes, 0, 0, 0));
	if (s != STATUS_OK) {
		free(r);
		return s;
	}
	r->next = m->reservations;
	m->reservations = r;
	*out = (void *)(uintptr_t)r->address;
	return STATUS_OK;
}

/* Map memory for `bytes` addresses from `at`. */
static status map_memory(cuda_backend *c, CUdeviceptr at, size_t bytes)
{
	cuda_memory *m = c->memory;
	CUmemGenericAllocationHandle handle;
	status s = cuda_driver_status(c, m->create(&handle, bytes, &m->prop, 0));
	if (s == STATUS_NOMEM) { /* as in allocate */
		TRY(empty_pool(c));
		s = cuda_driver_status(c, m->create(&handle, bytes, &m->prop, 0));
	}
	TRY(s);
	s = cuda_driver_status(c, m->map(at, bytes, 0, handle, 0));
	(void)m->release(handle); /* the mapping keeps the memory */
	TRY(s);
	CUmemAccessDesc access = {};
	access.location = m->prop.location;
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	s = cuda_driver_status(c, m->set_access(at, bytes, &access, 1));
	if (s != STATUS_OK)
		(void)m->unmap(at, bytes);
	return s;
}

static status cuda_extend(backend *b, void *reserved, size_t bytes, size_t *extended)
{
	cuda_backend *c = cuda_of(b);
	reservation *r = *find_reservation(c->memory, reserved);
	if (!r)
		return STATUS_INVALID;
	*extended = r->extended;
	TRY(enter_unrecorded(c));
	if (bytes > r->bytes)
		return STATUS_NOMEM;
	size_t more = whole_granules(c->memory, bytes);
	if (more <= r->extended)
		return STATUS_OK;
	more -= r->extended;
	CUdeviceptr at = r->address + r->extended;
	TRY(map_memory(c, at, more));
	if (r->mappings < MAPPINGS)
		r->starts[r->mappings++] = r->extended;
	r->extended += more;
	*extended = r->extended;
	return cuda_status(c, cudaMemsetAsync((void *)(uintptr_t)at, 0, more, c->stream));
}

static status cuda_retract(backend *b, void *reserved, size_t, size_t bytes, size_t *left)
{
	cuda_backend *c = cuda_of(b);
	reservation *r = *find_reservation(c->memory, reserved);
	if (!r)
		return STATUS_INVALID;
	int mappings = r->mappings;
	*left = r->extended;
	while (mappings > 0 && r->starts[mappings - 1] >= bytes)
		mappings--;
	if (mappings == r->mappings)
		return STATUS_OK;
	const size_t kept = r->starts[mappings];
	TRY(enter_unrecorded(c));
	TRY(cuda_status(c, cudaStreamSynchronize(c->stream)));
	TRY(cuda_driver_status(c, c->memory->unmap(r->address + kept, r->extended - kept)));
	r->mappings = mappings;
	*left = r->extended = kept;
	return STATUS_OK;
}

/* Also for a lost device: this memory does not belong to its context and does not end with it. */
static void cuda_unreserve(backend *b, void *reserved, size_t)
{
	cuda_backend *c = cuda_of(b);
	reservation **at = find_reservation(c->memory, reserved), *r = *at;
	if (!reserved || !r)
		return;
	if (cuda_enter(c) == STATUS_OK)
		(void)cuda_status(c, cudaStreamSynchronize(c->stream));
	if (r->extended)
		(void)cuda_driver_status(c, c->memory->unmap(r->address, r->extended));
	(void)cuda_driver_status(c, c->memory->address_free(r->address, r->bytes));
	*at = r->next;
	free(r);
}

/* --- words that blocks exchange ----------------------------------------------------------------- */

status cuda_exchange_use(cuda_backend *c)
{
	cuda_memory *m = c->memory;
	if (!m->exchange_bytes || ++m->exchange_uses < CUDA_EXCHANGE_USES)
		return STATUS_OK;
	m->exchange_uses = 0;
	return cuda_clear(&c->base, m->exchange, m->exchange_bytes);
}

status cuda_exchange(cuda_backend *c, size_t bytes, void **out)
{
	cuda_memory *m = c->memory;
	*out = NULL;
	if (c->recording && bytes > m->exchange_bytes)
		return STATUS_UNSUPPORTED;
	if (!m->exchange)
		TRY(cuda_reserve(&c->base, c->memory_bytes, &m->exchange));
	if (bytes > m->exchange_bytes)
		TRY(cuda_extend(&c->base, m->exchange, bytes, &m->exchange_bytes));
	*out = m->exchange;
	return c->recording ? STATUS_OK : cuda_exchange_use(c);
}

/* --- opening and closing ---------------------------------------------------------------------- */

/* Open the pool. A stream reuses memory that another released only when the other is done with it, so no stream waits
 * for another's memory. The pool keeps released memory; otherwise each wait for the device would return it, to be
 * allocated again. It is returned when memory is short and when a backend is closed. The pool keeps at most
 * POOL_SHARE of the memory, so that code, graphs and reservations have room. */
static status open_pool(cuda_backend *c)
{
	int no = 0;
	uint64_t kept = (uint64_t)((double)c->memory_bytes * POOL_SHARE);
	TRY(cuda_status(c, cudaDeviceGetDefaultMemPool(&c->memory->pool, c->device)));
	TRY(cuda_status(c, cudaMemPoolSetAttribute(c->memory->pool, cudaMemPoolReuseAllowInternalDependencies, &no)));
	return cuda_status(c, cudaMemPoolSetAttribute(c->memory->pool, cudaMemPoolAttrReleaseThreshold, &kept));
}

static status open_driver(cuda_backend *c)
{
	cuda_memory *m = c->memory;
	if (!cuda_find_function("cuMemGetAllocationGranularity", DRIVER_VERSION, &m->get_granularity) ||
	    !cuda_find_function("cuMemAddressReserve", DRIVER_VERSION, &m->address_reserve) ||
	    !cuda_find_function("cuMemAddressFree", DRIVER_VERSION, &m->address_free) ||
	    !cuda_find_function("cuMemCreate", DRIVER_VERSION, &m->create) ||
	    !cuda_find_function("cuMemRelease", DRIVER_VERSION, &m->release) ||
	    !cuda_find_function("cuMemMap", DRIVER_VERSION, &m->map) ||
	    !cuda_find_function("cuMemUnmap", DRIVER_VERSION, &m->unmap) ||
	    !cuda_find_function("cuMemSetAccess", DRIVER_VERSION, &m->set_access))
		return STATUS_UNAVAILABLE;
	m->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	m->prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	m->prop.location.id = c->device;
	return cuda_driver_status(c, m->get_granularity(&m->granularity, &m->prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

status cuda_memory_open(cuda_backend *c)
{
	backend *b = &c->base;
	b->allocate = cuda_allocate;
	b->release = cuda_release;
	b->upload = cuda_upload;
	b->download = cuda_download;
	b->fetch = cuda_fetch;
	b->fetched = cuda_fetched;
	b->fetch_take = cuda_fetch_take;
	b->copy = cuda_copy;
	b->clear = cuda_clear;
	b->reserve = cuda_reserve;
	b->extend = cuda_extend;
	b->retract = cuda_retract;
	b->unreserve = cuda_unreserve;
	cuda_memory *m = c->memory = (cuda_memory *)calloc(1, sizeof *m);
	if (!m)
		return STATUS_NOMEM;
	TRY(open_pool(c));
	TRY(open_driver(c));
	TRY(cuda_status(c, cudaMallocHost((void **)&m->ring, SLOTS * SLOT_BYTES)));
	TRY(cuda_status(c, cudaMallocHost((void **)&m->halves, 2 * HALF_BYTES)));
	TRY(cuda_status(c, cudaMallocHost((void **)&m->boxes, BACKEND_FETCHES * BACKEND_FETCH_BYTES)));
	for (int i = 0; i < SLOTS; i++)
		TRY(cuda_status(c, cudaEventCreateWithFlags(&m->slot_done[i], cudaEventDisableTiming)));
	for (int i = 0; i < 2; i++)
		TRY(cuda_status(c, cudaEventCreateWithFlags(&m->half_done[i], cudaEventDisableTiming)));
	for (int i = 0; i < BACKEND_FETCHES; i++) /* the wait does not spin on a core */
		TRY(cuda_status(
		    c, cudaEventCreateWithFlags(&m->box_done[i], cudaEventDisableTiming | cudaEventBlockingSync)));
	return STATUS_OK;
}

void cuda_memory_close(cuda_backend *c)
{
	cuda_memory *m = c->memory;
	if (!m)
		return;
	while (m->reservations)
		cuda_unreserve(&c->base, (void *)(uintptr_t)m->reservations->address, m->reservations->bytes);
	for (int i = 0; i < SLOTS; i++)
		if (m->slot_done[i])
			(void)cudaEventDestroy(m->slot_done[i]);
	for (int i = 0; i < 2; i++)
		if (m->half_done[i])
			(void)cudaEventDestroy(m->half_done[i]);
	for (int i = 0; i < BACKEND_FETCHES; i++)
		if (m->box_done[i])
			(void)cudaEventDestroy(m->box_done[i]);
	(void)cudaFreeHost(m->ring);
	(void)cudaFreeHost(m->halves);
	(void)cudaFreeHost(m->boxes);
	if (m->pool && cuda_enter(c) == STATUS_OK)
		(void)empty_pool(c);
	free(m);
	c->memory = NULL;
}
