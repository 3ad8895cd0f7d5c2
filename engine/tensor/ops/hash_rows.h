/* hash_rows.h - the hash of hash_rows, the same on every backend. */
#ifndef ENGINE_TENSOR_OPS_HASH_ROWS_H
#define ENGINE_TENSOR_OPS_HASH_ROWS_H

#include "engine/base/device_function.h"

#include <stdint.h>

enum { HASH_ROWS_ROUNDS = 3, HASH_ROWS_BITS = 11, HASH_ROWS_COUNT = 1 << HASH_ROWS_BITS };

/* The row of a label in round `round`. */
DEVICE_FUNCTION int32_t hash_row(int64_t label, int round)
{
	uint64_t hash = 0x9ae16a3b2f90404fU;
	for (int i = 0; i <= round; i++)
		hash = (hash + (uint64_t)label) * 0xc949d7c7509e6557U;
	return (int32_t)(hash >> (64 - HASH_ROWS_BITS));
}

#endif
