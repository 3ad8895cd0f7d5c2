/* A table with open addressing, at most half full. The high half of a hash chooses the slot, the low half what is
 * dropped, so the slots stay evenly used. */
#include "engine/text/duplicate_count.h"

#include <stdlib.h>

#include "engine/base/memory.h"

enum { FIRST_SLOTS = 1024, LAST_LEVEL = 62 };

typedef struct slot {
	digest_wide hash;
	int64_t count; /* 0: free */
} slot;

struct duplicate_count {
	slot *slots;
	size_t n_slots; /* a power of two */
	int64_t kept, limit;
	int64_t added;
	int64_t repeated; /* the sum over the slots of count - 1 */
	int level;        /* hashes with that many low zero bits are kept */
};

static bool is_kept(const duplicate_count *d, digest_wide hash)
{
	return (hash.low & (((uint64_t)1 << d->level) - 1)) == 0;
}

static slot *find(slot *slots, size_t n, digest_wide hash)
{
	size_t at = hash.high & (n - 1);
	while (slots[at].count > 0 && (slots[at].hash.low != hash.low || slots[at].hash.high != hash.high))
		at = (at + 1) & (n - 1);
	return &slots[at];
}

/* Move what is kept into a table of n slots. */
static status rebuild(duplicate_count *d, size_t n, error *err)
{
	slot *slots = memory_new(n, sizeof *slots);
	if (!slots)
		return error_no_memory(err, "the hashes of the documents");
	d->kept = d->repeated = 0;
	for (size_t i = 0; i < d->n_slots; i++) {
		const slot *old = &d->slots[i];
		if (old->count == 0 || !is_kept(d, old->hash))
			continue;
		*find(slots, n, old->hash) = *old;
		d->kept++;
		d->repeated += old->count - 1;
	}
	free(d->slots);
	d->slots = slots;
	d->n_slots = n;
	return STATUS_OK;
}

/* Make room for one hash more. */
static status duplicate_count_reserve(duplicate_count *d, error *err)
{
	while (d->kept >= d->limit && d->level < LAST_LEVEL) {
		d->level++;
		TRY(rebuild(d, d->n_slots, err));
	}
	return 2 * ((size_t)d->kept + 1) <= d->n_slots ? STATUS_OK : rebuild(d, 2 * d->n_slots, err);
}

status duplicate_count_new(duplicate_count **out, int64_t limit, error *err)
{
	duplicate_count *d = *out = memory_new(1, sizeof *d);
	if (!d)
		return error_no_memory(err, "the hashes of the documents");
	d->limit = limit;
	status s = rebuild(d, FIRST_SLOTS, err);
	if (s == STATUS_OK)
		return s;
	duplicate_count_free(d);
	*out = NULL;
	return s;
}

status duplicate_count_add(duplicate_count *d, digest_wide hash, error *err)
{
	d->added++;
	if (!is_kept(d, hash))
		return STATUS_OK;
	slot *found = find(d->slots, d->n_slots, hash);
	if (found->count > 0) {
		found->count++;
		d->repeated++;
		return STATUS_OK;
	}
	TRY(duplicate_count_reserve(d, err));
	if (!is_kept(d, hash) || d->kept >= d->limit)
		return STATUS_OK;
	*find(d->slots, d->n_slots, hash) = (slot){hash, 1};
	d->kept++;
	return STATUS_OK;
}

int64_t duplicate_count_value(const duplicate_count *d, bool *estimated)
{
	*estimated = d->level > 0;
	return d->repeated > d->added >> d->level ? d->added : d->repeated << d->level;
}

void duplicate_count_free(duplicate_count *d)
{
	if (d)
		free(d->slots);
	free(d);
}
