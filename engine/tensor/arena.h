/* arena.h - where to put tensors that live at different times in one block.
 *
 * A request is a size and an inclusive interval of steps; two requests whose
 * intervals meet get disjoint bytes. Pure arithmetic: no memory of its own beyond a
 * sort order. */
#ifndef ENGINE_TENSOR_ARENA_H
#define ENGINE_TENSOR_ARENA_H

#include <stddef.h>

#include "engine/base/status.h"

enum { ARENA_ALIGNMENT = 64 };

typedef struct arena_request {
	size_t bytes;    /* in */
	int first, last; /* in: steps during which the bytes are in use */
	size_t offset;   /* out: a multiple of ARENA_ALIGNMENT */
} arena_request;

/* Place all requests; *total is the size of the block. Deterministic.
 * STATUS_NOMEM when the sum overflows or there is no memory for the sort order. */
status arena_place(arena_request *requests, int count, size_t *total);

#endif
