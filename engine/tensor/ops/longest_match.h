/* longest_match.h - shared by the kernels of longest_match. */
#ifndef ENGINE_TENSOR_OPS_LONGEST_MATCH_H
#define ENGINE_TENSOR_OPS_LONGEST_MATCH_H

#include <stdint.h>

#include "engine/base/device_function.h"

enum { LONGEST_MATCH_MAX_WINDOW = 1 << 13 };

/* The first token at which a match of token i may end. */
DEVICE_FUNCTION int64_t longest_match_least(int64_t i, int64_t window, int64_t length)
{
	return i > window - length ? i - window + length : 0;
}

#endif
