/* matrix_stream.h - what one layer of attention in the recurrent form with a matrix remembers: a ring of the keys and
 * values of the last `window` tokens. Token t lies at place t mod window; `there` is 1, or 0 for a token that was
 * masked.
 *
 *   | key [window, key_width] | value [window, value_width] | there [window] |
 *
 * At position t the places of tokens max(0, t - window + 1) … t are read, so what the ring held before position 0 is
 * never seen. */
#ifndef ENGINE_TENSOR_OPS_MATRIX_STREAM_H
#define ENGINE_TENSOR_OPS_MATRIX_STREAM_H

#include "engine/base/device_function.h"

#include <stdint.h>

/* Floats of a token's keys and of its values, and the places of a ring. */
typedef struct matrix_ring {
	int64_t key_width, value_width, window;
} matrix_ring;

DEVICE_FUNCTION int64_t matrix_ring_key(matrix_ring r, int64_t token)
{
	return token % r.window * r.key_width;
}

DEVICE_FUNCTION int64_t matrix_ring_value(matrix_ring r, int64_t token)
{
	return r.window * r.key_width + token % r.window * r.value_width;
}

DEVICE_FUNCTION int64_t matrix_ring_there(matrix_ring r, int64_t token)
{
	return r.window * (r.key_width + r.value_width) + token % r.window;
}

/* What stands in the columns of the row of the token at `position`, behind `memories` memories: tokens from column
 * `tokens` on, the oldest first, and memories from column `first` on. */
typedef struct matrix_columns {
	int64_t first, tokens, oldest; /* oldest: a token */
} matrix_columns;

DEVICE_FUNCTION matrix_columns matrix_columns_at(int64_t position, int64_t window, int64_t memories)
{
	const int64_t count = position + 1 < window ? position + 1 : window;
	matrix_columns c = {window - count, window - count + memories, position + 1 - count};
	return c;
}

#endif
