/* statepool.c - slots in one reservation. A free slot is found by a search over one byte per slot. */
#include "engine/serve/statepool.h"

#include <assert.h>
#include <string.h>

#include "engine/base/memory.h"

enum {
	STATEPOOL_FIRST = 4, /* slots of a new pool */
	STATEPOOL_SPARED = 256 << 20,
	STATEPOOL_IDLE = 8,       /* the pool shrinks while fewer than 1 / STATEPOOL_IDLE of its slots are taken */
	STATEPOOL_PAGE = 2 << 20, /* bytes of a range whose pages statepool_reached merges at once */
	STATEPOOL_FILLED = 4      /* a slot gets large pages once 1 / STATEPOOL_FILLED of it is filled */
};

struct statepool {
	backend *backend;
	int64_t limit, capacity, slots, live; /* slots: with memory; live: taken */
	size_t slot_bytes, reserved;
	size_t first; /* bytes that a token writes; equal to slot_bytes if a session fills its slot at once */
	float *data;
	unsigned char *taken; /* [capacity] */
	bool *used;           /* [capacity]: a session has written to the slot; otherwise it is zero */
	size_t *merged;       /* [capacity]: leading bytes of a slot that have large pages, where available */
};

/* Map memory for the first `slots` slots. */
static status statepool_extend(statepool *p, int64_t slots)
{
	size_t extended;
	TRY(p->backend->extend(p->backend, p->data, (size_t)slots * p->slot_bytes, &extended));
	p->slots = slots;
	return STATUS_OK;
}

/* Map memory for twice the slots, or for as many more as there is memory for. Then STATEPOOL_SPARED bytes of a device
 * stay free for plans, which are made when a step first needs them. */
static status statepool_grow(statepool *p)
{
	const int64_t left = p->capacity - p->slots, twice = p->slots < left ? p->slots : left;
	backend *b = p->backend;
	void *spared = NULL;
	status s = statepool_extend(p, p->slots + twice);
	if (s != STATUS_NOMEM)
		return s;
	if (!b->host_memory)
		TRY(b->allocate(b, STATEPOOL_SPARED, &spared));
	for (int64_t more = twice / 2; s == STATUS_NOMEM && more > 0; more /= 2)
		s = statepool_extend(p, p->slots + more);
	b->release(b, spared);
	return s;
}

static status statepool_reserve(statepool *p, int64_t floats, int64_t first)
{
	int64_t slot, bytes;
	void *data;
	if (!memory_product(floats, sizeof(float), &slot) || !memory_product(p->capacity, slot, &bytes))
		return STATUS_NOMEM;
	p->taken = memory_new((size_t)p->capacity, 1);
	p->merged = memory_new((size_t)p->capacity, sizeof *p->merged);
	p->used = memory_new((size_t)p->capacity, sizeof *p->used);
	if (!p->taken || !p->merged || !p->used)
		return STATUS_NOMEM;
	p->slot_bytes = (size_t)slot;
	p->first = (size_t)first * sizeof(float);
	TRY(p->backend->reserve(p->backend, (size_t)bytes, &data));
	p->reserved = (size_t)bytes;
	p->data = data;
	if (first < floats && p->backend->by_small_pages)
		p->backend->by_small_pages(p->backend, data, p->reserved, p->first);
	return statepool_extend(p, STATEPOOL_FIRST);
}

status statepool_new(statepool **out, backend *b, int64_t floats, int64_t first, int64_t limit)
{
	*out = NULL;
	if (floats < 1 || first < 0 || limit < 1 || limit > INT32_MAX / 2)
		return STATUS_INVALID;
	statepool *p = memory_new(1, sizeof *p);
	if (!p)
		return STATUS_NOMEM;
	p->backend = b;
	p->limit = limit;
	p->capacity = STATEPOOL_FIRST;
	while (p->capacity < limit)
		p->capacity *= 2;
	status s = statepool_reserve(p, floats, first);
	if (s != STATUS_OK) {
		statepool_free(p);
		return s;
	}
	*out = p;
	return STATUS_OK;
}

void statepool_free(statepool *p)
{
	if (!p)
		return;
	p->backend->unreserve(p->backend, p->data, p->reserved);
	free(p->taken);
	free(p->merged);
	free(p->used);
	free(p);
}

static void *statepool_slot(const statepool *p, int32_t slot)
{
	assert(slot >= 0 && slot < p->slots && p->taken[slot]);
	return (char *)p->data + (size_t)slot * p->slot_bytes;
}

status statepool_take(statepool *p, int32_t *slot)
{
	const unsigned char *found = memchr(p->taken, 0, (size_t)p->slots);
	const int64_t i = found ? found - p->taken : p->slots;
	*slot = -1;
	if (i >= p->limit)
		return STATUS_BUSY;
	if (!found)
		TRY(statepool_grow(p));
	p->taken[i] = 1;
	p->live++;
	*slot = (int32_t)i;
	return STATUS_OK;
}

/* Halve the number of slots with memory while few are taken and none of them is in the second half. A host frees 1 GB
 * in 3 ms, with small pages in 60. */
static void statepool_shrink(statepool *p)
{
	const int64_t all = p->slots;
	int64_t kept = all;
	size_t left;
	while (p->live * STATEPOOL_IDLE < kept && kept / 2 >= STATEPOOL_FIRST &&
	       !memchr(p->taken + kept / 2, 1, (size_t)(kept - kept / 2)))
		kept /= 2;
	if (kept == all ||
	    p->backend->retract(p->backend, p->data, (size_t)all * p->slot_bytes, (size_t)kept * p->slot_bytes,
	                        &left) != STATUS_OK ||
	    left / p->slot_bytes >= (size_t)all)
		return;
	p->slots = (int64_t)(left / p->slot_bytes); /* the slot after them may be in part what it was */
	memset(p->used + p->slots + 1, 0, (size_t)(all - p->slots - 1) * sizeof *p->used);
}

void statepool_give(statepool *p, int32_t slot)
{
	assert(slot >= 0 && slot < p->slots && p->taken[slot]);
	p->taken[slot] = 0;
	p->used[slot] = true;
	p->live--;
	statepool_shrink(p);
}

bool statepool_reached(statepool *p, int32_t slot, int64_t tokens)
{
	char *data = statepool_slot(p, slot);
	const size_t at = p->merged[slot], page = STATEPOOL_PAGE;
	const size_t end = at + page - ((uintptr_t)data + at) % page, to = end < p->slot_bytes ? end : p->slot_bytes;
	if (!p->backend->by_small_pages || p->first >= STATEPOOL_PAGE || p->first >= p->slot_bytes || at >= to ||
	    (double)tokens * (double)p->first < (double)p->slot_bytes / STATEPOOL_FILLED)
		return false;
	p->backend->by_small_pages(p->backend, data + at, to - at, page);
	p->merged[slot] = to;
	return true;
}

float *statepool_data(const statepool *p)
{
	return p->data;
}

int64_t statepool_capacity(const statepool *p)
{
	return p->capacity;
}

int64_t statepool_slots(const statepool *p)
{
	return p->slots;
}

size_t statepool_slot_bytes(const statepool *p)
{
	return p->slot_bytes;
}

status statepool_clear(statepool *p, int32_t slot)
{
	void *data = statepool_slot(p, slot);
	return p->used[slot] ? p->backend->clear(p->backend, data, p->slot_bytes) : STATUS_OK;
}

status statepool_copy(statepool *p, int32_t to, int32_t slot, size_t from, size_t bytes)
{
	assert(from <= p->slot_bytes && bytes <= p->slot_bytes - from);
	return p->backend->copy(p->backend, (char *)statepool_slot(p, to) + from,
	                        (char *)statepool_slot(p, slot) + from, bytes);
}

status statepool_read(statepool *p, int32_t slot, size_t from, void *host, size_t bytes)
{
	assert(from <= p->slot_bytes && bytes <= p->slot_bytes - from);
	return p->backend->download(p->backend, host, (char *)statepool_slot(p, slot) + from, bytes);
}

status statepool_write(statepool *p, int32_t slot, size_t from, const void *host, size_t bytes)
{
	assert(from <= p->slot_bytes && bytes <= p->slot_bytes - from);
	return p->backend->upload(p->backend, (char *)statepool_slot(p, slot) + from, host, bytes);
}
