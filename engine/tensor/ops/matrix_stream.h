/* matrix_stream.h - the state of one layer of attention in the recurrent form with a matrix: a ring of the keys and
 * values of the last `window` tokens. Token t is at place t mod window; `there` is 1, or 0 for a masked token.
 *
 *    | key [window, key_width] | value [window, value_width] | there [window] |
 *
 * At position t the places of tokens stream_oldest(t) … t are read, so contents from before position 0 are never read.
 *
 * A source (softmax_stream.h) is stored in the same places, with a count in the first place of `there`. It equals
 * the state of a sequence that has read `count` tokens, none of them masked. */
#ifndef ENGINE_TENSOR_OPS_MATRIX_STREAM_H
#define ENGINE_TENSOR_OPS_MATRIX_STREAM_H

#include "engine/tensor/ops/stream_window.h"

/* Floats of a token's keys and of its values, the places of a ring, and the part to read (matrix_stream_params). */
typedef struct matrix_ring {
	int64_t key_width, value_width, window, segment, near, far;
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

/* Columns of the row of the token at `position`, after `memories` memories: tokens from column `tokens` on, the oldest
 * first, and memories from column `first` on. The part to read has the columns begin … end - 1. */
typedef struct matrix_columns {
	int64_t first, tokens, oldest; /* oldest: a token */
	int64_t begin, end;
} matrix_columns;

/* The column of the first token at most `back` segments before that of the token at `position`; the column after its
 * own is `columns`. Never less than column `least`. */
DEVICE_FUNCTION int64_t matrix_segment_column(int64_t position, int64_t segment, int64_t back, int64_t columns,
                                              int64_t least)
{
	const int64_t own = (uint32_t)position % (uint32_t)segment + 1, column = columns - own - back * segment;
	return column < least ? least : column;
}

DEVICE_FUNCTION matrix_columns matrix_columns_at(int64_t position, matrix_ring r, int64_t memories)
{
	const int64_t oldest = stream_oldest(position, r.window, r.segment),
	              hidden = r.window - (position + 1 - oldest);
	const int64_t columns = r.window + memories;
	matrix_columns c = {hidden, hidden + memories, oldest, hidden, columns};
	if (r.near > 0)
		c.end = matrix_segment_column(position, r.segment, r.near - 1, columns, c.tokens);
	if (r.far > 0)
		c.begin = matrix_segment_column(position, r.segment, r.far - 1, columns, c.tokens);
	return c;
}

#endif
