/* segment_rows.h - numbers of rows where segments of a sequence have rows in front, the same on every backend.
 * Positions are int32s, and so is the remainder: a device calls a function, with a stack, for one of 64 bits. */
#ifndef ENGINE_TENSOR_OPS_SEGMENT_ROWS_H
#define ENGINE_TENSOR_OPS_SEGMENT_ROWS_H

#include "engine/base/device_function.h"

#include <stdint.h>

/* Of the token at a position. */
DEVICE_FUNCTION int32_t segment_row(int32_t position, uint32_t segment, uint32_t front)
{
	return (int32_t)((uint32_t)position + front * ((uint32_t)position / segment + 1));
}

/* What a call puts in front of `length` tokens from a position on: the number of the first row in front of the
 * position's, and how many rows, 0 where no segment begins. */
typedef struct segment_front {
	int32_t first, count;
} segment_front;

DEVICE_FUNCTION segment_front segment_front_of(int32_t position, int32_t length, uint32_t segment, uint32_t front)
{
	segment_front f;
	f.first = segment_row(position, segment, front) - (int32_t)front;
	f.count = length > 0 && (uint32_t)position % segment == 0 ? (int32_t)front : 0;
	return f;
}

#endif
