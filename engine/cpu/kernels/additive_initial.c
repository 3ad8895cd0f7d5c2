/* additive_initial and its gradient. The gradient sums p dg' and p dg' (m - g') of each channel in parts of rows, which
 * are added in order. */
#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/math.h"

enum { INITIAL_COST = 4 };

static void initial_rows(const op_call *call, int64_t first, int64_t last)
{
	const int64_t heads = shape_count(call->in[2].shape), width = shape_last(call->in[0].shape), dh = width / heads;
	const float *score = call->in[2].data;
	for (int64_t i = first * heads; i < last * heads; i++) {
		const int64_t h = i % heads;
		const float normalizer = ((const float *)call->in[1].data)[i],
		            less = math_exp(-fabsf(normalizer - score[h]));
		const float share = (score[h] < normalizer ? less : 1.0f) / (1.0f + less);
		const float *g = (const float *)call->in[0].data + i * dh,
		            *mean = (const float *)call->in[3].data + h * dh;
		float *to = (float *)call->out[0].data + i * dh;
#pragma omp simd
		for (int64_t c = 0; c < dh; c++)
			to[c] = g[c] + share * (mean[c] - g[c]);
		if (call->out[1].data)
			((float *)call->out[1].data)[i] = fmaxf(normalizer, score[h]) + math_log(1.0f + less);
	}
}

size_t KERNEL(additive_initial_scratch)(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)kernel_spare_floats(call, 0) * sizeof(float);
}

status KERNEL(additive_initial)(backend *b, const op_call *call)
{
	float *memory = call->scratch;
	op_call written = *call;
	written.out[0].data = kernel_output(call, 0, &memory);
	const shape s = call->in[0].shape;
	return kernel_for(b, &written, shape_rows(s), shape_count(s) * INITIAL_COST, initial_rows);
}

/* Add row r to the sums [2, D]. */
static void additive_initial_grad_row(const op_call *call, int64_t r, float *sums)
{
	const int64_t heads = shape_count(call->in[0].shape), width = shape_last(call->in[2].shape), dh = width / heads;
	const float *score = call->in[0].data, *mean = call->in[1].data;
	const float *g = (const float *)call->in[2].data + r * width, *dg = (const float *)call->in[4].data + r * width;
	for (int64_t h = 0; h < heads; h++) {
		const float share = math_exp(score[h] - ((const float *)call->in[3].data)[r * heads + h]);
#pragma omp simd
		for (int64_t c = h * dh; c < (h + 1) * dh; c++) {
			const float part = share * dg[c];
			sums[c] += part;
			sums[width + c] += part * (mean[c] - g[c]);
		}
	}
}

size_t KERNEL(additive_initial_grad_scratch)(const backend *b, const op_call *call)
{
	(void)b;
	const int64_t rows = shape_rows(call->in[2].shape), parts = kernel_parts(rows, kernel_part_rows(rows));
	return (size_t)((parts + 1) * 2 * shape_last(call->in[2].shape)) * sizeof(float);
}

status KERNEL(additive_initial_grad)(backend *b, const op_call *call)
{
	const int64_t rows = shape_rows(call->in[2].shape), width = shape_last(call->in[2].shape);
	const int64_t size = kernel_part_rows(rows), parts = kernel_parts(rows, size);
	const int64_t heads = shape_count(call->in[0].shape), dh = width / heads;
	float *sums = call->scratch, *partial = sums + 2 * width, *dl = call->out[0].data, *dm = call->out[1].data;
	const int threads = kernel_threads(b, rows * width * INITIAL_COST);
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t part = 0; part < parts; part++) {
		float *to = partial + part * 2 * width;
		memset(to, 0, (size_t)(2 * width) * sizeof *to);
		for (int64_t r = part * size; r < kernel_min(rows, (part + 1) * size); r++)
			additive_initial_grad_row(call, r, to);
	}
	kernel_sum_parts(sums, partial, parts, 2 * width, 1.0f);
	for (int64_t c = 0; c < width && dm; c++)
		dm[c] = sums[c];
	for (int64_t h = 0; h < heads && dl; h++) {
		dl[h] = 0.0f;
		for (int64_t c = h * dh; c < (h + 1) * dh; c++)
			dl[h] += sums[width + c];
	}
	return STATUS_OK;
}
