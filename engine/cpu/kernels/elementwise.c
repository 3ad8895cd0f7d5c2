/* add, mul, gate, scale, bias, fill, accumulate: one pass over the elements, at the
 * speed of memory. An output may be one of the inputs: element i is read before it is
 * written, and nothing else is. */
#include "engine/cpu/kernels/kernels.h"

status KERNEL(add)(backend *b, const op_call *call)
{
	const float *x = call->in[0].data, *z = call->in[1].data;
	float *y = call->out[0].data;
	int64_t n = shape_count(call->out[0].shape);
#pragma omp parallel for simd schedule(simd : static) num_threads(kernel_threads(b, n))
	for (int64_t i = 0; i < n; i++)
		y[i] = x[i] + z[i];
	return STATUS_OK;
}

status KERNEL(mul)(backend *b, const op_call *call)
{
	const float *x = call->in[0].data, *z = call->in[1].data;
	float *y = call->out[0].data;
	int64_t n = shape_count(call->out[0].shape);
#pragma omp parallel for simd schedule(simd : static) num_threads(kernel_threads(b, n))
	for (int64_t i = 0; i < n; i++)
		y[i] = x[i] * z[i];
	return STATUS_OK;
}

status KERNEL(gate)(backend *b, const op_call *call)
{
	const float *a = call->in[0].data, *g = call->in[1].data, *x = call->in[2].data;
	float *y = call->out[0].data;
	int64_t n = shape_count(call->out[0].shape);
#pragma omp parallel for simd schedule(simd : static) num_threads(kernel_threads(b, n))
	for (int64_t i = 0; i < n; i++)
		y[i] = a[i] + g[i] * x[i];
	return STATUS_OK;
}

status KERNEL(scale)(backend *b, const op_call *call)
{
	const float factor = ((const scale_params *)call->params)->factor;
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
	int64_t n = shape_count(call->out[0].shape);
#pragma omp parallel for simd schedule(simd : static) num_threads(kernel_threads(b, n))
	for (int64_t i = 0; i < n; i++)
		y[i] = factor * x[i];
	return STATUS_OK;
}

status KERNEL(bias)(backend *b, const op_call *call)
{
	const float factor = ((const scale_params *)call->params)->factor;
	const float *x = call->in[0].data, *bias = call->in[1].data;
	float *y = call->out[0].data;
	int64_t rows = shape_rows(call->out[0].shape), d = shape_last(call->out[0].shape);
	const int threads = kernel_threads(b, rows * d);
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t r = 0; r < rows; r++) {
#pragma omp simd
		for (int64_t j = 0; j < d; j++)
			y[r * d + j] = x[r * d + j] + factor * bias[j];
	}
	return STATUS_OK;
}

status KERNEL(fill)(backend *b, const op_call *call)
{
	const float filled = ((const fill_params *)call->params)->value;
	float *y = call->out[0].data;
	int64_t n = shape_count(call->out[0].shape);
#pragma omp parallel for simd schedule(simd : static) num_threads(kernel_threads(b, n))
	for (int64_t i = 0; i < n; i++)
		y[i] = filled;
	return STATUS_OK;
}

status KERNEL(accumulate)(backend *b, const op_call *call)
{
	const float factor = ((const scale_params *)call->params)->factor;
	float *sum = call->in[0].data;
	const float *x = call->in[1].data;
	int64_t n = shape_count(call->in[0].shape);
#pragma omp parallel for simd schedule(simd : static) num_threads(kernel_threads(b, n))
	for (int64_t i = 0; i < n; i++)
		sum[i] += factor * x[i];
	return STATUS_OK;
}
