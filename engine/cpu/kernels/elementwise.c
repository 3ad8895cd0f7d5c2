/* add, mul, gate, scale, scale_by, tanh, secant_grad, fill, accumulate: one pass over the elements, at the
 * speed of memory. An output may be one of the inputs: element i is read before it is
 * written, and nothing else is. */
#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/math.h"

static void add(const op_call *call, int64_t first, int64_t last)
{
	const float *x = call->in[0].data, *z = call->in[1].data;
	float *y = call->out[0].data;
#pragma omp simd
	for (int64_t i = first; i < last; i++)
		y[i] = x[i] + z[i];
}

status KERNEL(add)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, 1, add);
}

static void mul(const op_call *call, int64_t first, int64_t last)
{
	const float *x = call->in[0].data, *z = call->in[1].data;
	float *y = call->out[0].data;
#pragma omp simd
	for (int64_t i = first; i < last; i++)
		y[i] = x[i] * z[i];
}

status KERNEL(mul)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, 1, mul);
}

static void gate(const op_call *call, int64_t first, int64_t last)
{
	const float *a = call->in[0].data, *g = call->in[1].data, *x = call->in[2].data;
	float *y = call->out[0].data;
#pragma omp simd
	for (int64_t i = first; i < last; i++)
		y[i] = a[i] + g[i] * x[i];
}

status KERNEL(gate)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, 1, gate);
}

/* y = factor x on a range. */
static void multiply(const op_call *call, float factor, int64_t first, int64_t last)
{
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
#pragma omp simd
	for (int64_t i = first; i < last; i++)
		y[i] = factor * x[i];
}

static void scale(const op_call *call, int64_t first, int64_t last)
{
	multiply(call, ((const scale_params *)call->params)->factor, first, last);
}

status KERNEL(scale)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, 1, scale);
}

static void scale_by(const op_call *call, int64_t first, int64_t last)
{
	multiply(call, *(const float *)call->in[1].data, first, last);
}

status KERNEL(scale_by)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, 1, scale_by);
}

/* (1 - e) / (1 + e) with e = e^{-2|x|}; near 0, where that is a difference, the series. */
static void hyperbolic(const op_call *call, int64_t first, int64_t last)
{
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
#pragma omp simd
	for (int64_t i = first; i < last; i++) {
		const float t = fabsf(x[i]), e = math_exp(-2.0f * t), square = x[i] * x[i];
		const float far = (1.0f - e) / (1.0f + e);
		const float near =
		    ((-0x1.ba1ba2p-5f * square + 0x1.111112p-3f) * square - 0x1.555556p-2f) * square * x[i] + x[i];
		y[i] = t < 0.25f ? near : copysignf(far, x[i]);
	}
}

status KERNEL(tanh)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, 4, hyperbolic);
}

static void secant_grad(const op_call *call, int64_t first, int64_t last)
{
	const float at_zero = ((const secant_params *)call->params)->at_zero;
	const float *x = call->in[0].data, *y = call->in[1].data, *dy = call->in[2].data;
	float *dx = call->out[0].data;
#pragma omp simd
	for (int64_t i = first; i < last; i++)
		dx[i] = dy[i] * (x[i] == 0.0f ? at_zero : y[i] / x[i]);
}

status KERNEL(secant_grad)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, 1, secant_grad);
}

static void fill(const op_call *call, int64_t first, int64_t last)
{
	const float filled = ((const fill_params *)call->params)->value;
	float *y = call->out[0].data;
#pragma omp simd
	for (int64_t i = first; i < last; i++)
		y[i] = filled;
}

status KERNEL(fill)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, 1, fill);
}

static void accumulate(const op_call *call, int64_t first, int64_t last)
{
	const float factor = ((const scale_params *)call->params)->factor;
	float *sum = call->in[0].data;
	const float *x = call->in[1].data;
#pragma omp simd
	for (int64_t i = first; i < last; i++)
		sum[i] += factor * x[i];
}

status KERNEL(accumulate)(backend *b, const op_call *call)
{
	int64_t count = shape_count(call->in[0].shape);
	return kernel_for(b, call, count, count, accumulate);
}
