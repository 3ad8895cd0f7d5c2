/* stream_window.h - the tokens of a ring that the token at a position sees: from the oldest up to itself. */
#ifndef ENGINE_TENSOR_OPS_STREAM_WINDOW_H
#define ENGINE_TENSOR_OPS_STREAM_WINDOW_H

#include <stdint.h>

#include "engine/base/device_function.h"

/* Number of earlier tokens that the token at a position sees, if there are that many. In a ring of `window` tokens it
 * is window - 1. With segment > 0, the sequence is read in segments of that many tokens; the token sees the earlier
 * ones of its segment and the window - segment tokens before it. All are int32: a 64-bit remainder on a device is a
 * function call with a stack. */
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
