/* gelu, gelu_grad: x Φ(x) with the exact normal distribution, Φ(x) = (1 + erf(x/√2)) / 2.
 * An element costs about a vector exp (two in the gradient), so it is bound by
 * arithmetic, not by memory. */
#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/math.h"

enum { COST = 4 };

static inline float distribution(float x)
{
	return 0.5f + 0.5f * math_erf(x * 0x1.6a09e6p-1f);
}

status KERNEL(gelu)(backend *b, const op_call *call)
{
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
	int64_t n = shape_count(call->out[0].shape);
	const int threads = kernel_threads(b, n * COST);
#pragma omp parallel for simd schedule(simd : static) num_threads(threads)
	for (int64_t i = 0; i < n; i++)
		y[i] = x[i] * distribution(x[i]);
	return STATUS_OK;
}

/* φ(x) = e^{-x²/2} / √(2π). */
status KERNEL(gelu_grad)(backend *b, const op_call *call)
{
	const float *x = call->in[0].data, *dy = call->in[1].data;
	float *dx = call->out[0].data;
	int64_t n = shape_count(call->out[0].shape);
	const int threads = kernel_threads(b, n * COST);
#pragma omp parallel for simd schedule(simd : static) num_threads(threads)
	for (int64_t i = 0; i < n; i++) {
		float density = 0x1.988454p-2f * math_exp(-0.5f * x[i] * x[i]);
		dx[i] = dy[i] * (distribution(x[i]) + x[i] * density);
	}
	return STATUS_OK;
}
