/* Table of the kernels of one instruction set. A row of ops.def without a kernel does not link. */
#include "engine/cpu/kernels/kernels.h"

const cpu_kernels KERNEL(kernels) = {
    .kernel =
        {
#define OP(name, ...) [OP_##name] = KERNEL(name),
#include "engine/tensor/ops.def"
#undef OP
        },
    .scratch =
        {
            [OP_sum_rows] = KERNEL(sum_rows_scratch),
            [OP_layernorm_grad] = KERNEL(layernorm_grad_scratch),
            [OP_normalize_grad] = KERNEL(normalize_grad_scratch),
            [OP_scale_columns_grad] = KERNEL(scale_columns_grad_scratch),
            [OP_quantize] = KERNEL(quantize_scratch),
            [OP_matmul] = KERNEL(matmul_scratch),
            [OP_linear] = KERNEL(linear_scratch),
            [OP_hide_keys] = KERNEL(hide_keys_scratch),
            [OP_additive_attention] = KERNEL(additive_attention_scratch),
            [OP_additive_attention_grad] = KERNEL(additive_attention_grad_scratch),
            [OP_additive_stream] = KERNEL(additive_stream_scratch),
            [OP_softmax_attention] = KERNEL(softmax_attention_scratch),
            [OP_softmax_attention_grad] = KERNEL(softmax_attention_grad_scratch),
            [OP_softmax_stream] = KERNEL(softmax_stream_scratch),
            [OP_source_attention] = KERNEL(source_attention_scratch),
            [OP_dilated_attention] = KERNEL(dilated_attention_scratch),
            [OP_dilated_attention_grad] = KERNEL(dilated_attention_grad_scratch),
            [OP_dilated_stream] = KERNEL(dilated_stream_scratch),
            [OP_linear_attention] = KERNEL(linear_attention_scratch),
            [OP_linear_attention_grad] = KERNEL(linear_attention_grad_scratch),
            [OP_linear_stream] = KERNEL(linear_stream_scratch),
            [OP_decay_merge_grad] = KERNEL(decay_merge_grad_scratch),
            [OP_attention_scores] = KERNEL(attention_scores_scratch),
            [OP_attention_apply] = KERNEL(attention_apply_scratch),
            [OP_attention_apply_transposed] = KERNEL(attention_apply_transposed_scratch),
            [OP_attention_weights] = KERNEL(attention_weights_scratch),
            [OP_attention_weights_grad] = KERNEL(attention_weights_grad_scratch),
            [OP_mix_heads] = KERNEL(mix_heads_scratch),
            [OP_mix_heads_grad] = KERNEL(mix_heads_grad_scratch),
            [OP_stream_scores] = KERNEL(stream_scores_scratch),
            [OP_stream_apply] = KERNEL(stream_apply_scratch),
            [OP_alibi] = KERNEL(alibi_scratch),
            [OP_sinusoids] = KERNEL(sinusoids_scratch),
            [OP_linear_cross_entropy] = KERNEL(linear_cross_entropy_scratch),
            [OP_sum_squares] = KERNEL(sum_squares_scratch),
            [OP_row_squares] = KERNEL(row_squares_scratch),
            [OP_sample] = KERNEL(sample_scratch),
        },
};
