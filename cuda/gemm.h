/* gemm.h - matrix products on the device. */
#ifndef CUDA_GEMM_H
#define CUDA_GEMM_H

#include "cuda/backend.h"

/* C [m, n] = alpha op(A) op(B) + beta C, row-major. op(A) [m, k], op(B) [k, n]; trans_a: A is stored [k, m]; trans_b: B is
 * stored [n, k]. lda, ldb, ldc: elements from a stored row to the next. A and B are f32 or bf16, both the same; C is f32, or
 * bf16 when they are. Summed in f32. beta = 0: what C holds does not matter, and k = 0 writes zeros. m or n = 0 does nothing. */
typedef struct cuda_gemm_args {
	bool trans_a, trans_b;
	int64_t m, n, k;
	float alpha, beta;
	dtype type /* of A and B */, c_type;
	const void *a, *b;
	void *c;
	int64_t lda, ldb, ldc;
} cuda_gemm_args;

/* Issue a product to the backend's stream. The same call gives the same bits. */
status cuda_gemm(backend *b, cuda_gemm_args args);

#endif
