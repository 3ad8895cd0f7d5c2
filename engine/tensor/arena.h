/* arena.h - place tensors with different lifetimes in one block.
 *
 * A request is a size and an inclusive interval of steps; two requests whose intervals overlap get disjoint bytes. Pure
 * arithmetic: the only allocation is a sort order. */
#ifndef ENGINE_TENSOR_ARENA_H
#define ENGINE_TENSOR_ARENA_H

#include <stddef.h>

#include "engine/base/status.h"

enum { ARENA_ALIGNMENT = 64 };
static inline size_t arena_aligned(size_t bytes)
{
	return (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

typedef struct arena_request {
	size_t bytes;    /* in */
	int first, last; /* in: steps during which the bytes are in use */
	size_t offset;   /* out: a multiple of ARENA_ALIGNMENT */
} arena_request;

/* Place all requests; *total is the size of the block. Deterministic. STATUS_NOMEM if the sum overflows or memory for
 * the sort order is short. */
status arena_place(arena_request *requests, int count, size_t *total);

#endif
