/* linear_panels.h - linear (ops.h) with weights packed as panels (engine/tensor/panel.h), and unpacking them. */
#ifndef CUDA_LINEAR_PANELS_H
#define CUDA_LINEAR_PANELS_H

#include "cuda/backend.h"

/* y = alpha (x Wᵀ + b): the kernel of OP_linear, and its scratch, where in[1] has a panel type. The bits of a row of y
 * do not depend on the other rows or on their number.
 *
 * Error of a sum, with S = Σ_k |x_k w_k|. f32 has the rounding of chains of ⌈K/32⌉ + 32 sums. bf16 adds 2^-16 S, since
 * x is cut to the sum of two bf16, to the rounding of tensor cores, chains of ⌈K/128⌉ products of 16. int8 is exact.
 *
 * If a row of x or an output's weights have a value that is not finite, their product is not finite either. It is NaN
 * where the exact sum is an infinity. */
status cuda_linear_panels(backend *b, const op_call *call);
size_t cuda_linear_panels_scratch(const backend *b, const op_call *call);

/* out [N, K] = the unpacked weight, for products with it from the left. */
status cuda_unpack(backend *b, const tensor *panels, float *out);

#endif
