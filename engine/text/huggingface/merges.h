/* merges.h - the token that two tokens merge into, and the rank of the merge. Immutable once made. */
#ifndef ENGINE_TEXT_HUGGINGFACE_MERGES_H
#define ENGINE_TEXT_HUGGINGFACE_MERGES_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"

enum { MERGES_NONE = UINT32_MAX /* no rank: two tokens that do not merge */ };

typedef struct merge_slot {
	uint64_t pair; /* left in the upper half; UINT64_MAX: free */
	uint32_t rank;
	int32_t made;
} merge_slot;

typedef struct merges {
	merge_slot *slots;
	int shift; /* 64 - log2 of the number of slots */
	size_t mask;
} merges;

/* Room for `count`. STATUS_NOMEM. */
status merges_init(merges *m, size_t count);
void merges_fini(merges *m);
/* An existing pair gets the new rank. */
void merges_add(merges *m, int32_t left, int32_t right, uint32_t rank, int32_t made);

/* The rank of a pair, or MERGES_NONE; *made: what it merges into. */
static inline uint32_t merges_find(const merges *m, int32_t left, int32_t right, int32_t *made)
{
	const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
	for (size_t at = (size_t)(pair * UINT64_C(0x9E3779B97F4A7C15) >> m->shift);; at = (at + 1) & m->mask) {
		const merge_slot *s = &m->slots[at];
		if (s->pair == pair) {
			*made = s->made;
			return s->rank;
		}
		if (s->pair == UINT64_MAX)
			return MERGES_NONE;
	}
}

#endif
