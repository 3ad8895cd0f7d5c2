/* stream_window.h - which tokens of a ring the token at a position sees: from the oldest up to itself. */
#ifndef ENGINE_TENSOR_OPS_STREAM_WINDOW_H
#define ENGINE_TENSOR_OPS_STREAM_WINDOW_H

#include <stdint.h>

#include "engine/base/device_function.h"

/* How many tokens in front of itself the token at a position sees, if there are so many. Of a ring of `window` tokens the
 * last window - 1; with segment > 0, where a sequence is read in segments of so many tokens, those of its segment and
 * the window - segment tokens in front of that. All are int32s: a device calls a function, with a stack, for a remainder
 * of 64 bits. */
DEVICE_FUNCTION uint32_t stream_behind(uint32_t position, uint32_t window, uint32_t segment)
{
	return segment > 0 ? window - segment + position % segment : window - 1;
}

DEVICE_FUNCTION int64_t stream_oldest(int64_t position, int64_t window, int64_t segment)
{
	const int64_t behind = stream_behind((uint32_t)position, (uint32_t)window, (uint32_t)segment);
	return position > behind ? position - behind : 0;
}

#endif
