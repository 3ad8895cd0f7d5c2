/* segment_rows.h - row numbers if segments of a sequence begin with extra rows, the same on every backend. Positions
 * and remainders are int32: a 64-bit remainder on a device is a function call with a stack. */
#ifndef ENGINE_TENSOR_OPS_SEGMENT_ROWS_H
#define ENGINE_TENSOR_OPS_SEGMENT_ROWS_H

#include "engine/base/device_function.h"

#include <stdint.h>

/* The row of the token at a position. */
DEVICE_FUNCTION int32_t segment_row(int32_t position, uint32_t segment, uint32_t front)
{
	return (int32_t)((uint32_t)position + front * ((uint32_t)position / segment + 1));
}

/* Rows that a call inserts before `length` tokens from a position on: the number of the first inserted row, and their
 * count, 0 if no segment begins. */
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
