/* position.h - the row of the position table for a token at a position beyond the table's end. */
#ifndef ENGINE_MODEL_POSITION_H
#define ENGINE_MODEL_POSITION_H

#include <stdint.h>

typedef enum position_policy {
	POSITION_ERROR, /* there is none: callers refuse such a sequence */
	POSITION_CLAMP, /* the last row */
	POSITION_WRAP   /* begin again */
} position_policy;

static inline int32_t position_row(position_policy policy, int64_t position, int64_t rows)
{
	if (position < rows)
		return (int32_t)position;
	return (int32_t)(policy == POSITION_WRAP ? position % rows : rows - 1);
}

#endif
