/* gemm.h - large matrix products: the only code that depends on the BLAS. */
#ifndef ENGINE_CPU_GEMM_H
#define ENGINE_CPU_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/status.h"

/* C [m, n] = alpha · op(A) op(B) + beta · C, row-major and contiguous; op(A) is [m, k] (A is stored
 * [k, m] when trans_a), op(B) is [k, n] (B is stored [n, k] when trans_b). With beta = 0, C is written,
 * never read. Zero dimensions are legal; k = 0 gives beta · C. The same bits come out
 * whenever shapes and threads are the same. STATUS_NOMEM, STATUS_INTERNAL. */
status gemm(int threads, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
            const float *b, float beta, float *c);

#endif
