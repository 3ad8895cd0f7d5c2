/* Products of the channels of a block. */
#include "engine/tensor/ops/trilinear.h"

#include "engine/cpu/reference/reference.h"

/* k, u [rows, T] -> p [rows, 16, T]: p[b][i] = k[i xor b] u[i] */
status reference_trilinear(backend *unused, const op_call *call)
{
	(void)unused;
	const float *k = call->in[0].data, *u = call->in[1].data;
	float *p = call->out[0].data;
	const int64_t width = shape_last(call->in[0].shape);
	for (int64_t row = 0; row < shape_rows(call->in[0].shape); row++, k += width, u += width)
		for (int64_t b = 0; b < TRILINEAR_TAPS; b++)
			for (int64_t i = 0; i < width; i++)
				*p++ = k[i ^ b] * u[i];
	return STATUS_OK;
}

/* k, u [rows, T], dp [rows, 16, T] -> dk, du [rows, T]:
 *   dk[i] = Σ_b dp[b][i xor b] u[i xor b],  du[i] = Σ_b dp[b][i] k[i xor b] */
status reference_trilinear_grad(backend *unused, const op_call *call)
{
	(void)unused;
	const float *k = call->in[0].data, *u = call->in[1].data, *dp = call->in[2].data;
	float *dk = call->out[0].data, *du = call->out[1].data;
	const int64_t width = shape_last(call->in[0].shape);
	for (int64_t e = 0; e < shape_count(call->in[0].shape); e++) {
		const int64_t first = e / width * width, i = e % width; /* element i of a row */
		double to_k = 0, to_u = 0;
		for (int64_t b = 0; b < TRILINEAR_TAPS; b++) {
			const float *tap = dp + (first * TRILINEAR_TAPS + b * width);
			to_k += (double)tap[i ^ b] * (double)u[first + (i ^ b)];
			to_u += (double)tap[i] * (double)k[first + (i ^ b)];
		}
		if (dk)
			dk[e] = (float)to_k;
		if (du)
			du[e] = (float)to_u;
	}
	return STATUS_OK;
}
