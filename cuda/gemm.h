/* gemm.h - matrix products on the device. */
#ifndef CUDA_GEMM_H
#define CUDA_GEMM_H

#include "cuda/backend.h"

/* C [m, n] = alpha op(A) op(B) + beta C, row-major, summed in f32. op(A) [m, k], op(B) [k, n]; trans_a: A is stored [k,
 * m]; trans_b: B is stored [n, k]. lda, ldb, ldc: elements from a stored row to the next. A and B have the same type,
 * f32 or bf16; C is f32, or bf16 if they are. With beta = 0 the contents of C do not matter. k = 0 with beta = 0 writes
 * zeros; m or n = 0 does nothing. */
typedef struct cuda_gemm_args {
	bool trans_a, trans_b;
	int64_t m, n, k;
	float alpha, beta;
	dtype type /* type of A and B */, c_type;
	const void *a, *b;
	void *c;
	int64_t lda, ldb, ldc;
} cuda_gemm_args;

/* Issue a product to the backend's stream. Equal calls give equal bits. */
status cuda_gemm(backend *b, cuda_gemm_args args);

/* out = the result of `call`, a matmul or a linear with [real] weights, + add, rounded once. add and out have the
 * result's type and shape; the call's own output is not written. If the library cannot add the bias, a separate kernel
 * adds it and rounds again. */
status cuda_matmul_plus(backend *b, const op_call *call, const void *add, void *out);
status cuda_linear_plus(backend *b, const op_call *call, const void *add, void *out);

/* For benchmarks, looked up by name in the plug-in: run a matmul with the library's i-th choice for its shape. The best
 * guess is first; matmul takes choice 0. *count: number of choices, at most 16. STATUS_INVALID if i is not below it.
 * Each call asks the library, so time it by device events, and do not record it. */
extern "C" status additive_cuda_matmul_choice(backend *b, const op_call *call, int i, int *count);

#endif
