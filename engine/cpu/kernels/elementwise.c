/* add, mul, gate, scale, axpby, scale_gradient, scale_by, tanh, secant_grad, fill, accumulate, lerp: one pass over the
 * elements, at the speed of memory. An output may be one of the inputs: only element i is read before element i is
 * written.
 */
#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/math.h"

static void elementwise_add(const op_call *call, int64_t first, int64_t last)
{
	const float *x = call->in[0].data, *z = call->in[1].data;
	float *y = call->out[0].data;
#pragma omp simd
	for (int64_t i = first; i < last; i++)
		y[i] = x[i] + z[i];
}

status KERNEL(add)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, 1, elementwise_add);
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
static void elementwise_multiply(const op_call *call, float factor, int64_t first, int64_t last)
{
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
#pragma omp simd
	for (int64_t i = first; i < last; i++)
		y[i] = factor * x[i];
}

static void scale(const op_call *call, int64_t first, int64_t last)
{
	elementwise_multiply(call, ((const scale_params *)call->params)->factor, first, last);
}

status KERNEL(scale)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, 1, scale);
}

static void axpby(const op_call *call, int64_t first, int64_t last)
{
	const axpby_params *p = call->params;
	const float a = p->a, b = p->b, *x = call->in[0].data, *z = call->in[1].data;
	float *y = call->out[0].data;
#pragma omp simd
	for (int64_t i = first; i < last; i++)
		y[i] = a * x[i] + b * z[i];
}

status KERNEL(axpby)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, 1, axpby);
}

/* The factor is the gradient's. */
static void elementwise_copy(const op_call *call, int64_t first, int64_t last)
{
	elementwise_multiply(call, 1.0f, first, last);
}

status KERNEL(scale_gradient)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, 1, elementwise_copy);
}

static void scale_by(const op_call *call, int64_t first, int64_t last)
{
	elementwise_multiply(call, *(const float *)call->in[1].data, first, last);
}

status KERNEL(scale_by)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, 1, scale_by);
}

static void hyperbolic(const op_call *call, int64_t first, int64_t last)
{
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
#pragma omp simd
	for (int64_t i = first; i < last; i++)
		y[i] = math_tanh(x[i]);
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

static void elementwise_fill(const op_call *call, int64_t first, int64_t last)
{
	const fill_params *p = call->params;
	const uint32_t filled = p->integer ? (uint32_t)p->whole : math_bits(p->value);
	uint32_t *y = call->out[0].data;
#pragma omp simd
	for (int64_t i = first; i < last; i++)
		y[i] = filled;
}

status KERNEL(fill)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, 1, elementwise_fill);
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

static void lerp(const op_call *call, int64_t first, int64_t last)
{
	float *p = call->in[0].data;
	const float *x = call->in[1].data, rate = *(const float *)call->in[2].data;
#pragma omp simd
	for (int64_t i = first; i < last; i++)
		p[i] += rate * (x[i] - p[i]);
}

status KERNEL(lerp)(backend *b, const op_call *call)
{
	int64_t count = shape_count(call->in[0].shape);
	return kernel_for(b, call, count, count, lerp);
}
