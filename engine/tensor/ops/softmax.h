/* softmax.h - what the checks of softmax_attention and softmax_stream share. */
#ifndef ENGINE_TENSOR_OPS_SOFTMAX_H
#define ENGINE_TENSOR_OPS_SOFTMAX_H

#include "engine/tensor/op.h"

/* Argument 0 is [real] [B, N, 3D] with D a multiple of `heads` ≥ 1. */
status check_qkv(const op_call *call, int64_t heads, error *err);

#endif
