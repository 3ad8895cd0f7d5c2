/* gemm.h - matrix products on the device. */
#ifndef CUDA_GEMM_H
#define CUDA_GEMM_H

#include "cuda/backend.h"

/* C [m, n] = alpha op(A) op(B) + beta C, row-major. op(A) [m, k], op(B) [k, n]; trans_a: A is stored [k, m]; trans_b: B
 * is stored [n, k]. lda, ldb, ldc: elements from a stored row to the next. A and B are f32 or bf16, both the same; C is
 * f32, or bf16 when they are. Summed in f32. beta = 0: what C holds does not matter, and k = 0 writes zeros. m or n = 0
 * does nothing. */
typedef struct cuda_gemm_args {
	bool trans_a, trans_b;
	int64_t m, n, k;
	float alpha, beta;
	dtype type /* for A and B */, c_type;
	const void *a, *b;
	void *c;
	int64_t lda, ldb, ldc;
} cuda_gemm_args;

/* Issue a product to the backend's stream. The same call gives the same bits. */
status cuda_gemm(backend *b, cuda_gemm_args args);

/* out = the result of `call`, a matmul or a linear with [real] weights, + add, rounded once. add and out are of the
 * result's type and shape; the call's own output is not written. Where the library cannot add the bias it is added
 * after that, and rounded again. */
status cuda_matmul_plus(backend *b, const op_call *call, const void *add, void *out);
status cuda_linear_plus(backend *b, const op_call *call, const void *add, void *out);

/* For benchmarks, found by name in the plug-in: run a matmul by the library's i-th choice for its shape, best guess
 * first; 0 is the one that matmul takes. *count: how many there are, 16 at most. STATUS_INVALID beyond them. Asks the
 * library every time, so it is to be timed by its device events, and not recorded. */
extern "C" status additive_cuda_matmul_choice(backend *b, const op_call *call, int i, int *count);

#endif
