/* reference.h - one plain scalar kernel per op: the readable definition.
 *
 * Sums run in double, in index order; results are rounded to float once. No OpenMP, no intrinsics, no approximation:
 * speed is not a goal. The formula of each op is in engine/tensor/ops.h and, with shapes, above its kernel. */
#ifndef ENGINE_CPU_REFERENCE_REFERENCE_H
#define ENGINE_CPU_REFERENCE_REFERENCE_H

#include "engine/tensor/backend.h"
#include "engine/tensor/ops.h"

#define OP(name, ...) status reference_##name(backend *b, const op_call *call);
#include "engine/tensor/ops.def"
#undef OP

/* Scratch of the kernels that need double sums of a whole tensor. */
size_t reference_gather_grad_scratch(const backend *b, const op_call *call);
size_t reference_matmul_scratch(const backend *b, const op_call *call);
size_t reference_linear_scratch(const backend *b, const op_call *call);
size_t reference_additive_attention_grad_scratch(const backend *b, const op_call *call);
size_t reference_additive_stream_scratch(const backend *b, const op_call *call);
size_t reference_softmax_attention_scratch(const backend *b, const op_call *call);
size_t reference_softmax_attention_grad_scratch(const backend *b, const op_call *call);
size_t reference_softmax_stream_scratch(const backend *b, const op_call *call);
size_t reference_source_attention_scratch(const backend *b, const op_call *call);
size_t reference_dilated_attention_scratch(const backend *b, const op_call *call);
size_t reference_dilated_attention_grad_scratch(const backend *b, const op_call *call);
size_t reference_dilated_stream_scratch(const backend *b, const op_call *call);
size_t reference_linear_attention_scratch(const backend *b, const op_call *call);
size_t reference_linear_attention_grad_scratch(const backend *b, const op_call *call);
size_t reference_decay_merge_grad_scratch(const backend *b, const op_call *call);
size_t reference_attention_weights_scratch(const backend *b, const op_call *call);
size_t reference_attention_weights_grad_scratch(const backend *b, const op_call *call);
size_t reference_linear_cross_entropy_scratch(const backend *b, const op_call *call);
size_t reference_sample_scratch(const backend *b, const op_call *call);

#endif
