/* Placement is greedy: largest request first, each at the lowest offset where
 * it fits between those already placed that are alive at the same time. For the graphs
 * here this comes within a few per cent of the lower bound (the largest sum of sizes
 * alive at one step). Placing in order of time instead fragments: small tensors that
 * live long settle between large ones. Optimal placement is NP-hard.
 * Quadratic in the number of requests, of which there are a few thousand at most. */
#include "engine/tensor/arena.h"

#include <stdbool.h>
#include <stdlib.h>

#include "engine/base/memory.h"

static int larger_first(const void *a, const void *b)
{
	const arena_request *x = *(arena_request *const *)a, *y = *(arena_request *const *)b;
	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? 1 : -1;
	return x < y ? -1 : x > y; /* by index: qsort is not stable */
}

/* placed[0…n-1] is sorted by offset. Returns the end of r. */
static size_t place(arena_request *r, arena_request *const *placed, int n)
{
	size_t offset = 0;
	for (int i = 0; i < n; i++) {
		const arena_request *p = placed[i];
		if (!(p->first <= r->last && r->first <= p->last))
			continue;
		if (p->offset >= offset && p->offset - offset >= r->bytes)
			break;
		if (p->offset + p->bytes > offset)
			offset = p->offset + p->bytes;
	}
	r->offset = offset;
	return offset + r->bytes;
}

/* Round every size up, so that every offset is aligned, and check that even the sum fits. */
static bool round_sizes(arena_request *requests, int count)
{
	size_t sum = 0;
	for (int i = 0; i < count; i++) {
		if (__builtin_add_overflow(requests[i].bytes, ARENA_ALIGNMENT - 1, &requests[i].bytes))
			return false;
		requests[i].bytes &= ~(size_t)(ARENA_ALIGNMENT - 1);
		if (__builtin_add_overflow(sum, requests[i].bytes, &sum))
			return false;
	}
	return true;
}

status arena_place(arena_request *requests, int count, size_t *total)
{
	*total = 0;
	if (!round_sizes(requests, count))
		return STATUS_NOMEM;
	arena_request **order = memory_new((size_t)count, sizeof *order);
	arena_request **placed = memory_new((size_t)count, sizeof *placed);
	status s = order && placed ? STATUS_OK : STATUS_NOMEM;
	if (s == STATUS_OK) {
		for (int i = 0; i < count; i++)
			order[i] = &requests[i];
		qsort(order, (size_t)count, sizeof *order, larger_first);
		for (int i = 0; i < count; i++) {
			size_t end = place(order[i], placed, i);
			int at = i;
			while (at > 0 && placed[at - 1]->offset > order[i]->offset) {
				placed[at] = placed[at - 1];
				at--;
			}
			placed[at] = order[i];
			if (end > *total)
				*total = end;
		}
	}
	free(placed);
	free(order);
	return s;
}
