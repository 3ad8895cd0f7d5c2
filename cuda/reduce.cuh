/* reduce.cuh - sums over rows: partial sums, added in a fixed order. */
#ifndef CUDA_REDUCE_CUH
#define CUDA_REDUCE_CUH

#include "cuda/backend.h"

/* out[s][j] = factor · Σ_i parts[i][s][j], in an order that depends on n only. parts [n, sums, width]; sums is 1 or 2.
 * A sum whose out is NULL is skipped. n = 0 gives zeros. */
status cuda_sum_parts(backend *b, float *const out[], int sums, const float *parts, int64_t n, int64_t width,
                      float factor);

#endif
