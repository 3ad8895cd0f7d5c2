/* layernorm, layernorm_grad: a row at a time, from the cache after the first touch.
 *
 * The variance is taken in a second pass over the row, from the differences to the mean:
 * the one-pass form E[x²] - E[x]² cancels. The weight and bias gradients are sums over
 * all rows: parts of rows are summed into scratch, and the parts in order. */
#include "engine/cpu/kernels/kernels.h"

#include <math.h>
#include <string.h>

enum { COST = 3 };

static void rows_of_layernorm(const op_call *call, int64_t first, int64_t last)
{
	const layernorm_params *p = call->params;
	const float *x = call->in[0].data, *weight = call->in[1].data, *bias = call->in[2].data;
	float *y = call->out[0].data, *mean = call->out[1].data, *rstd = call->out[2].data;
	int64_t d = shape_last(call->in[0].shape);
	for (int64_t r = first; r < last; r++) {
		const float *from = x + r * d;
		float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
		for (int64_t j = 0; j < d; j++)
			sum += from[j];
		const float mu = sum / (float)d;
#pragma omp simd reduction(+ : squares)
		for (int64_t j = 0; j < d; j++)
			squares += (from[j] - mu) * (from[j] - mu);
		const float rho = p->unbiased ? 1.0f / (sqrtf(squares / (float)(d - 1)) + p->eps)
		                              : 1.0f / sqrtf(squares / (float)d + p->eps);
		if (y) {
			float *to = y + r * d;
#pragma omp simd
			for (int64_t j = 0; j < d; j++)
				to[j] = weight[j] * ((from[j] - mu) * rho) + bias[j];
		}
		if (mean)
			mean[r] = mu;
		if (rstd)
			rstd[r] = rho;
	}
}

status KERNEL(layernorm)(backend *b, const op_call *call)
{
	shape x = call->in[0].shape;
	return kernel_for(b, call, shape_rows(x), shape_count(x) * COST, rows_of_layernorm);
}

/* Factor of x̂ in a row's gradient; along: Σ y' x̂. */
static inline float slope_of(const layernorm_grad_params *p, int64_t d, float rho, float along)
{
	if (p->frozen || !p->unbiased)
		return p->frozen ? 0.0f : along / (float)d;
	const float rest = 1.0f - p->eps * rho;
	return rest > 0.0f ? along / ((float)(d - 1) * rest) : 0.0f;
}

/* One row of the gradient (dx NULL: not requested); adds to dweight and dbias. */
static inline void row_grad(int64_t d, const float *x, const float *weight, float mu, float rho, const float *dy,
                            float *dx, float *dweight, float *dbias, const layernorm_grad_params *p)
{
	float sum = 0.0f, along = 0.0f; /* Σ y', Σ y' x̂ */
#pragma omp simd reduction(+ : sum, along)
	for (int64_t j = 0; j < d; j++) {
		float scaled = weight[j] * dy[j], unit = (x[j] - mu) * rho;
		sum += scaled;
		along += scaled * unit;
		dweight[j] += dy[j] * unit;
		dbias[j] += dy[j];
	}
	if (!dx)
		return;
	const float mean = sum / (float)d, slope = slope_of(p, d, rho, along);
#pragma omp simd
	for (int64_t j = 0; j < d; j++)
		dx[j] = rho * (weight[j] * dy[j] - mean - (x[j] - mu) * rho * slope);
}

/* Partial dweight, then partial dbias, for each part. */
size_t KERNEL(layernorm_grad_scratch)(const backend *b, const op_call *call)
{
	(void)b;
	int64_t rows = shape_rows(call->in[0].shape), d = shape_last(call->in[0].shape);
	return (size_t)(2 * kernel_parts(rows, kernel_part_rows(rows)) * d) * sizeof(float);
}

status KERNEL(layernorm_grad)(backend *b, const op_call *call)
{
	const float *x = call->in[0].data, *weight = call->in[1].data, *mean = call->in[2].data;
	const float *rstd = call->in[3].data, *dy = call->in[4].data;
	float *dx = call->out[0].data;
	int64_t rows = shape_rows(call->in[0].shape), d = shape_last(call->in[0].shape);
	int64_t size = kernel_part_rows(rows), parts = kernel_parts(rows, size);
	float *dweight = call->scratch, *dbias = parts ? dweight + parts * d : NULL;
	const int threads = kernel_threads(b, rows * d * COST);
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t part = 0; part < parts; part++) {
		memset(dweight + part * d, 0, (size_t)d * sizeof *dweight);
		memset(dbias + part * d, 0, (size_t)d * sizeof *dbias);
		int64_t last = kernel_min(rows, (part + 1) * size);
		for (int64_t r = part * size; r < last; r++)
			row_grad(d, x + r * d, weight, mean[r], rstd[r], dy + r * d, dx ? dx + r * d : NULL,
			         dweight + part * d, dbias + part * d, call->params);
	}
	if (call->out[1].data)
		kernel_sum_parts(call->out[1].data, dweight, parts, d, 1.0f);
	if (call->out[2].data)
		kernel_sum_parts(call->out[2].data, dbias, parts, d, 1.0f);
	return STATUS_OK;
}
