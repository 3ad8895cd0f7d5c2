/* softmax.h - shared by the checks and kernels of softmax attention: channels of heads. */
#ifndef ENGINE_TENSOR_OPS_SOFTMAX_H
#define ENGINE_TENSOR_OPS_SOFTMAX_H

#include "engine/tensor/op.h"

/* Argument 0 is [real] [B, N, 3D] with D a multiple of `heads` ≥ 1. */
status check_qkv(const op_call *call, int64_t heads, error *err);

/* H heads of queries, G of keys and values, and the channels of each. */
typedef struct softmax_heads {
	int64_t heads, kv_heads;
	int64_t key, value; /* h, w */
} softmax_heads;

/* Heads from the floats of a token's queries and values; kv_heads as in the parameters, 0 for `heads`. */
static inline softmax_heads softmax_heads_of(int64_t query_width, int64_t value_width, int64_t heads, int64_t kv_heads)
{
	softmax_heads n = {heads, kv_heads > 0 ? kv_heads : heads, query_width / heads, 0};
	n.value = value_width / n.kv_heads;
	return n;
}

#endif
