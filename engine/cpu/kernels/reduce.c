/* dot_rows; sum_rows and sum_squares: sums are cut into parts of a fixed size, which are added in order, so the result
 * does not depend on the threads. */
#include "engine/cpu/kernels/kernels.h"

enum { SQUARES = 16384 }; /* elements of one part of sum_squares */

static void dots(const op_call *call, int64_t first, int64_t last)
{
	const float factor = ((const scale_params *)call->params)->factor;
	const int64_t d = shape_last(call->in[0].shape), stride = call->in[1].shape.rank == 1 ? 0 : d;
	const float *x = call->in[0].data, *z = call->in[1].data;
	float *y = call->out[0].data;
	for (int64_t r = first; r < last; r++) {
		const float *from = x + r * d, *with = z + r * stride;
		float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
		for (int64_t j = 0; j < d; j++)
			sum += from[j] * with[j];
		y[r] = factor * sum;
	}
}

status KERNEL(dot_rows)(backend *b, const op_call *call)
{
	return kernel_for(b, call, shape_rows(call->in[0].shape), shape_count(call->in[0].shape), dots);
}

size_t KERNEL(sum_rows_scratch)(const backend *b, const op_call *call)
{
	(void)b;
	int64_t rows = shape_rows(call->in[0].shape), d = shape_last(call->in[0].shape);
	return (size_t)(kernel_parts(rows, kernel_part_rows(rows)) * d) * sizeof(float);
}

status KERNEL(sum_rows)(backend *b, const op_call *call)
{
	const float factor = ((const scale_params *)call->params)->factor;
	const float *x = call->in[0].data;
	float *partial = call->scratch;
	int64_t rows = shape_rows(call->in[0].shape), d = shape_last(call->in[0].shape);
	int64_t size = kernel_part_rows(rows), parts = kernel_parts(rows, size);
	const int threads = kernel_threads(b, rows * d);
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t part = 0; part < parts; part++) {
		int64_t first = part * size;
		kernel_sum_parts(partial + part * d, x + first * d, kernel_min(size, rows - first), d, 1.0f);
	}
	kernel_sum_parts(call->out[0].data, partial, parts, d, factor);
	return STATUS_OK;
}

size_t KERNEL(sum_squares_scratch)(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)kernel_parts(shape_count(call->in[0].shape), SQUARES) * sizeof(double);
}

status KERNEL(sum_squares)(backend *b, const op_call *call)
{
	const float *x = call->in[0].data;
	double *partial = call->scratch;
	int64_t n = shape_count(call->in[0].shape), parts = kernel_parts(n, SQUARES);
#pragma omp parallel for schedule(static) num_threads(kernel_threads(b, n))
	for (int64_t part = 0; part < parts; part++) {
		const float *from = x + part * SQUARES;
		int64_t count = kernel_min(SQUARES, n - part * SQUARES);
		double sum = 0.0;
#pragma omp simd reduction(+ : sum)
		for (int64_t i = 0; i < count; i++)
			sum += (double)from[i] * (double)from[i];
		partial[part] = sum;
	}
	double total = 0.0;
	for (int64_t part = 0; part < parts; part++)
		total += partial[part];
	*(float *)call->out[0].data = (float)total;
	return STATUS_OK;
}
