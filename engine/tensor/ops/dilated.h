/* dilated.h - the rows that a head keeps in dilated attention, and the state of one layer. It is a ring of the keys and
 * values of the last `window` tokens, where window is the longest segment. Token t is at place t mod window; `there` is
 * 1, or 0 for a masked token.
 *
 *    | key [window, D] | value [window, D] | there [window] |
 *
 * A token reads from the beginning of its segments on, which is never more than the last `window` tokens. */
#ifndef ENGINE_TENSOR_OPS_DILATED_H
#define ENGINE_TENSOR_OPS_DILATED_H

#include "engine/base/device_function.h"
#include "engine/tensor/ops.h"

/* The first row of a segment that a head keeps in a branch; the following ones are `dilation` apart. */
DEVICE_FUNCTION int64_t dilated_first(const dilated_pattern *p, int64_t branch, int64_t heads, int64_t head)
{
	const int64_t r = p->dilation[branch];
	if (p->offset == DILATED_BLOCK)
		return head / ((heads + r - 1) / r);
	return p->offset == DILATED_MOD ? head % r : 0;
}

/* Number of kept rows among the first `rows` rows of a segment. */
DEVICE_FUNCTION int64_t dilated_kept(int64_t rows, int64_t first, int64_t dilation)
{
	return rows > first ? (rows - first + dilation - 1) / dilation : 0;
}

DEVICE_FUNCTION int64_t dilated_window(const dilated_pattern *p)
{
	int64_t window = 0;
	for (int64_t i = 0; i < p->branches; i++)
		window = p->segment[i] > window ? p->segment[i] : window;
	return window;
}

DEVICE_FUNCTION int64_t dilated_key(int64_t d, int64_t place)
{
	return place * d;
}

DEVICE_FUNCTION int64_t dilated_value(int64_t d, int64_t window, int64_t place)
{
	return (window + place) * d;
}

DEVICE_FUNCTION int64_t dilated_there(int64_t d, int64_t window, int64_t place)
{
	return 2 * window * d + place;
}

#endif
