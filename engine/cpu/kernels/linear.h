/* linear.h - rows by a weight, for the kernels that need it. */
#ifndef ENGINE_CPU_KERNELS_LINEAR_H
#define ENGINE_CPU_KERNELS_LINEAR_H

#include "engine/cpu/kernels/kernels.h"

/* y [rows, N] = alpha (x Wᵀ + b) for x [rows, K] and a weight [N, K], f32 or panels; bias NULL: none; maxima
 * [rows, ⌈N / LINEAR_BLOCK⌉] of y; NULL: not requested.
 * scratch: linear_rows_scratch bytes, 64-byte aligned (0: may be NULL). */
status KERNEL(linear_rows)(backend *b, const tensor *weight, const float *x, int64_t rows, float alpha,
                           const float *bias, float *y, float *maxima, void *scratch);
size_t KERNEL(linear_rows_scratch)(const backend *b, const tensor *weight, int64_t rows);

#endif
