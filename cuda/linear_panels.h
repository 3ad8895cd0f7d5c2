/* linear_panels.h - linear (ops.h) for weights packed as panels (engine/tensor/panel.h), and such a weight unpacked. */
#ifndef CUDA_LINEAR_PANELS_H
#define CUDA_LINEAR_PANELS_H

#include "cuda/backend.h"

/* y = alpha (x Wᵀ + b): the kernel of OP_linear, and its scratch, where in[1] is of a panel type. A row of y has the
 * same bits whatever the other rows are and however many.
 *
 * Error of a sum, with S = Σ_k |x_k w_k|: f32 has the rounding of chains of ⌈K/32⌉ + 32 sums. bf16 has 2^-16 S, since x
 * is cut to the sum of two bf16, and the rounding of tensor cores, chains of ⌈K/128⌉ products of 16. int8 is exact.
 *
 * A row of x and an output's weights that are not finite give values that are not (and NaN where the exact sum is an
 * infinity). */
status cuda_linear_panels(backend *b, const op_call *call);
size_t cuda_linear_panels_scratch(const backend *b, const op_call *call);

/* out [N, K] = the packed weight, for products by it from the left. */
status cuda_unpack(backend *b, const tensor *panels, float *out);

#endif
