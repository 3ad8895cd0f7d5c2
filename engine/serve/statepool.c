/* statepool.c - slots in one allocation that doubles. Finding a free slot is a scan of
 * one byte per slot: it happens once per session, a free list would gain nothing. */
#include "engine/serve/statepool.h"

#include <assert.h>
#include <string.h>

#include "engine/base/memory.h"

enum { STATEPOOL_FIRST = 4 }; /* slots of a new pool */

struct statepool {
	backend *backend;
	int64_t limit, slots;
	size_t slot_bytes;
	float *data;
	unsigned char *taken; /* [slots] */
};

static status statepool_resize(statepool *p, int64_t slots)
{
	int64_t bytes;
	if (!memory_product(slots, (int64_t)p->slot_bytes, &bytes))
		return STATUS_INVALID;
	void *data = NULL;
	unsigned char *taken = memory_new((size_t)slots, 1);
	status s = taken ? p->backend->allocate(p->backend, (size_t)bytes, &data) : STATUS_NOMEM;
	if (s == STATUS_OK && p->slots > 0)
		s = p->backend->copy(p->backend, data, p->data, (size_t)p->slots * p->slot_bytes);
	/* The old memory is released below: the copy must have happened. */
	if (s == STATUS_OK)
		s = p->backend->synchronize(p->backend);
	if (s != STATUS_OK) {
		p->backend->release(p->backend, data);
		free(taken);
		return s;
	}
	if (p->slots > 0)
		memcpy(taken, p->taken, (size_t)p->slots);
	p->backend->release(p->backend, p->data);
	free(p->taken);
	p->data = data;
	p->taken = taken;
	p->slots = slots;
	return STATUS_OK;
}

status statepool_new(statepool **out, backend *b, int64_t floats, int64_t limit)
{
	*out = NULL;
	int64_t bytes;
	if (floats < 1 || limit < 1 || limit > INT32_MAX / 2 || !memory_product(floats, sizeof(float), &bytes))
		return STATUS_INVALID;
	statepool *p = memory_new(1, sizeof *p);
	if (!p)
		return STATUS_NOMEM;
	p->backend = b;
	p->limit = limit;
	p->slot_bytes = (size_t)bytes;
	status s = statepool_resize(p, STATEPOOL_FIRST);
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
	p->backend->release(p->backend, p->data);
	free(p->taken);
	free(p);
}

static void *statepool_slot(const statepool *p, int32_t slot)
{
	assert(slot >= 0 && slot < p->slots && p->taken[slot]);
	return (char *)p->data + (size_t)slot * p->slot_bytes;
}

status statepool_take(statepool *p, int32_t *slot)
{
	*slot = -1;
	int64_t i = 0;
	while (i < p->slots && p->taken[i])
		i++;
	if (i >= p->limit)
		return STATUS_BUSY;
	if (i == p->slots)
		TRY(statepool_resize(p, 2 * p->slots));
	p->taken[i] = 1;
	status s = p->backend->clear(p->backend, statepool_slot(p, (int32_t)i), p->slot_bytes);
	if (s != STATUS_OK) {
		p->taken[i] = 0;
		return s;
	}
	*slot = (int32_t)i;
	return STATUS_OK;
}

void statepool_give(statepool *p, int32_t slot)
{
	assert(slot >= 0 && slot < p->slots && p->taken[slot]);
	p->taken[slot] = 0;
}

float *statepool_data(const statepool *p)
{
	return p->data;
}

int64_t statepool_slots(const statepool *p)
{
	return p->slots;
}

size_t statepool_slot_bytes(const statepool *p)
{
	return p->slot_bytes;
}

status statepool_copy(statepool *p, int32_t to, int32_t from)
{
	return p->backend->copy(p->backend, statepool_slot(p, to), statepool_slot(p, from), p->slot_bytes);
}

status statepool_read(statepool *p, int32_t slot, void *host)
{
	return p->backend->download(p->backend, host, statepool_slot(p, slot), p->slot_bytes);
}

status statepool_write(statepool *p, int32_t slot, const void *host)
{
	return p->backend->upload(p->backend, statepool_slot(p, slot), host, p->slot_bytes);
}
