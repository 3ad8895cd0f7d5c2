/* stream_window.h - which tokens of a ring the token at a position sees: from the oldest up to itself. */
#ifndef ENGINE_TENSOR_OPS_STREAM_WINDOW_H
#define ENGINE_TENSOR_OPS_STREAM_WINDOW_H

#include <stdint.h>

#include "engine/base/device_function.h"

/* Of a ring of `window` tokens the last `window`; with segment > 0, where a sequence is read in segments of so many
 * tokens, those of its segment and the window - segment tokens in front of that. Positions and segments are int32s, and
 * their remainder is one of 32 bits: a device calls a function, with a stack, for one of 64. */
DEVICE_FUNCTION int64_t stream_oldest(int64_t position, int64_t window, int64_t segment)
{
	const int64_t behind = segment > 0 ? window - segment + (uint32_t)position % (uint32_t)segment : window - 1;
	return position > behind ? position - behind : 0;
}

#endif
