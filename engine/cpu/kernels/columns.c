/* scale_columns, mix_columns and their gradients: the gradient of a factor of columns is a sum over all rows. Parts of
 * rows are summed into scratch, one number for each column, and the parts are added in order. */
#include "engine/cpu/kernels/kernels.h"

#include <string.h>

static void columns_rows(const op_call *call, int64_t first, int64_t last)
{
	const int64_t group = ((const scale_columns_params *)call->params)->group,
	              width = shape_last(call->out[0].shape);
	const float *w = call->in[1].data;
	for (int64_t r = first; r < last; r++) {
		const float *x = (const float *)call->in[0].data + r * width;
		float *y = (float *)call->out[0].data + r * width;
		if (group == 1) {
#pragma omp simd
			for (int64_t c = 0; c < width; c++)
				y[c] = x[c] * w[c];
			continue;
		}
		for (int64_t k = 0; k < width / group; k++) {
#pragma omp simd
			for (int64_t c = k * group; c < (k + 1) * group; c++)
				y[c] = x[c] * w[k];
		}
	}
}

status KERNEL(scale_columns)(backend *b, const op_call *call)
{
	const shape s = call->out[0].shape;
	return kernel_for(b, call, shape_rows(s), shape_count(s), columns_rows);
}

size_t KERNEL(scale_columns_grad_scratch)(const backend *b, const op_call *call)
{
	(void)b;
	const int64_t count = shape_rows(call->in[0].shape);
	return (size_t)((kernel_parts(count, kernel_part_rows(count)) + 1) * shape_last(call->in[0].shape)) *
	       sizeof(float);
}

status KERNEL(scale_columns_grad)(backend *b, const op_call *call)
{
	const int64_t group = ((const scale_columns_params *)call->params)->group;
	const int64_t count = shape_rows(call->in[0].shape), width = shape_last(call->in[0].shape);
	const int64_t size = kernel_part_rows(count), parts = kernel_parts(count, size);
	const float *x = call->in[0].data, *dy = call->in[1].data;
	float *dw = call->out[0].data, *sums = call->scratch, *partial = width > 0 ? sums + width : NULL;
	const int threads = kernel_threads(b, count * width);
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t part = 0; part < parts; part++) {
		float *sum = partial + part * width;
		memset(sum, 0, (size_t)width * sizeof *sum);
		for (int64_t r = part * size; r < kernel_min(count, (part + 1) * size); r++) {
#pragma omp simd
			for (int64_t c = 0; c < width; c++)
				sum[c] += dy[r * width + c] * x[r * width + c];
		}
	}
	kernel_sum_parts(sums, partial, parts, width, 1.0f);
	for (int64_t k = 0; k < width / group; k++) {
		float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
		for (int64_t c = k * group; c < (k + 1) * group; c++)
			sum += sums[c];
		dw[k] = sum;
	}
	return STATUS_OK;
}

static void mix_rows(const op_call *call, int64_t first, int64_t last)
{
	const int64_t width = shape_last(call->out[0].shape);
	const float *w = (const float *)call->in[2].data + ((const mix_columns_params *)call->params)->row * width;
	for (int64_t r = first; r < last; r++) {
		const float *x = (const float *)call->in[0].data + r * width;
		const float *other = (const float *)call->in[1].data + r * width;
		float *y = (float *)call->out[0].data + r * width;
#pragma omp simd
		for (int64_t c = 0; c < width; c++)
			y[c] = x[c] + w[c] * (other[c] - x[c]);
	}
}

status KERNEL(mix_columns)(backend *b, const op_call *call)
{
	const shape s = call->out[0].shape;
	return kernel_for(b, call, shape_rows(s), shape_count(s), mix_rows);
}

/* One row of the gradient, in one pass: dx may overwrite an argument. dx, dother and sum may be NULL; sum += dw. */
static inline void mix_grad_row(int64_t width, const float *x, const float *other, const float *w, const float *dy,
                                float *dx, float *dother, float *sum)
{
#pragma omp simd
	for (int64_t c = 0; c < width; c++) {
		const float by = dy[c];
		if (sum)
			sum[c] += by * (other[c] - x[c]);
		if (dother)
			dother[c] = w[c] * by;
		if (dx)
			dx[c] = (1.0f - w[c]) * by;
	}
}

size_t KERNEL(mix_columns_grad_scratch)(const backend *b, const op_call *call)
{
	(void)b;
	const int64_t rows = shape_rows(call->in[0].shape), parts = kernel_parts(rows, kernel_part_rows(rows));
	return call->out[2].data ? (size_t)(parts * shape_last(call->in[0].shape)) * sizeof(float) : 0;
}

status KERNEL(mix_columns_grad)(backend *b, const op_call *call)
{
	const int64_t rows = shape_rows(call->in[0].shape), width = shape_last(call->in[0].shape);
	const int64_t size = kernel_part_rows(rows), parts = kernel_parts(rows, size);
	const int64_t first = ((const mix_columns_params *)call->params)->row * width;
	const float *x = call->in[0].data, *other = call->in[1].data, *dy = call->in[3].data;
	const float *w = (const float *)call->in[2].data + first;
	float *dx = call->out[0].data, *dother = call->out[1].data, *dw = call->out[2].data, *sums = call->scratch;
	const int threads = kernel_threads(b, rows * width * 2);
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t part = 0; part < parts; part++) {
		float *sum = dw ? sums + part * width : NULL;
		if (sum)
			memset(sum, 0, (size_t)width * sizeof *sum);
		for (int64_t r = part * size; r < kernel_min(rows, (part + 1) * size); r++) {
			const int64_t i = r * width;
			mix_grad_row(width, x + i, other + i, w, dy + i, dx ? dx + i : NULL, dother ? dother + i : NULL,
			             sum);
		}
	}
	if (dw) {
		memset(dw, 0, (size_t)shape_count(call->in[2].shape) * sizeof *dw);
		kernel_sum_parts(dw + first, sums, parts, width, 1.0f);
	}
	return STATUS_OK;
}
