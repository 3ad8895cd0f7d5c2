/* shift_stream.h - the state of a sequence in shift_stream: a ring of the rows of its last `high` tokens, | row [high,
 * D] |, with zeros for a masked token. Token t is at place t mod high. Only tokens that were read are looked up, so
 * contents from before position 0 are never read. */
#ifndef ENGINE_TENSOR_OPS_SHIFT_STREAM_H
#define ENGINE_TENSOR_OPS_SHIFT_STREAM_H

#include <stdint.h>

#include "engine/base/device_function.h"

/* Float offset of token t's row; high > 0. */
DEVICE_FUNCTION int64_t shift_row(int64_t d, int64_t high, int64_t t)
{
	return t % high * d;
}

/* Number of earlier rows that the token at a position may see. */
DEVICE_FUNCTION int64_t shift_behind(int64_t position, int64_t segment)
{
	return segment > 0 ? (uint32_t)position % (uint32_t)segment : position;
}

#endif
