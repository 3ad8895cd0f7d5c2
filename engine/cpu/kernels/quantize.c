/* quantize, with the order of additions of engine/tensor/ops/quantize.h: 32 lanes are vectors of doubles. Threads take
 * parts of QUANTIZE_PART elements; their assignment changes no bit. */
#include "engine/tensor/ops/quantize.h"
#include "engine/cpu/kernels/kernels.h"

#include <string.h>

enum { VECTOR = 8, VECTORS = QUANTIZE_LANES / VECTOR, COST = 4 };

typedef double doubles __attribute__((vector_size(VECTOR * sizeof(double))));
typedef float floats __attribute__((vector_size(VECTOR * sizeof(float))));

static double add_lanes(const doubles vector[VECTORS])
{
	double lane[QUANTIZE_LANES];
	memcpy(lane, vector, sizeof lane);
	for (int half = QUANTIZE_LANES / 2; half > 0; half /= 2)
		for (int l = 0; l < half; l++)
			lane[l] += lane[l + half];
	return lane[0];
}

/* Σ x² of one part. */
static double part_squares(const float *x, int64_t n)
{
	doubles sum[VECTORS] = {{0}};
	float rest[QUANTIZE_LANES] = {0};
	for (int64_t i = 0; i < n; i += QUANTIZE_LANES) {
		const float *from = x + i;
		if (n - i < QUANTIZE_LANES)
			from = memcpy(rest, from, (size_t)(n - i) * sizeof *rest);
		for (int v = 0; v < VECTORS; v++) {
			floats f;
			memcpy(&f, from + v * VECTOR, sizeof f);
			const doubles d = __builtin_convertvector(f, doubles);
			sum[v] += d * d;
		}
	}
	return add_lanes(sum);
}

/* Σ x of one part. */
static double part_sum(const double *x, int64_t n)
{
	doubles sum[VECTORS] = {{0}};
	for (int64_t i = 0; i < n; i++)
		sum[i % QUANTIZE_LANES / VECTOR][i % VECTOR] += x[i];
	return add_lanes(sum);
}

/* Σ sums, which are overwritten. */
static double sum_of_parts(double *sums, int64_t count)
{
	for (; count > 1; count = kernel_parts(count, QUANTIZE_PART))
		for (int64_t i = 0; i * QUANTIZE_PART < count; i++)
			sums[i] =
			    part_sum(sums + i * QUANTIZE_PART, kernel_min(QUANTIZE_PART, count - i * QUANTIZE_PART));
	return count > 0 ? sums[0] : 0.0;
}

static inline __attribute__((always_inline)) void values_of(const float *x, int64_t n, float step, const int64_t bits,
                                                            float *y)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		y[i] = quantize_value(x[i], step, bits);
}

static void values(const float *x, int64_t n, float step, int64_t bits, float *y)
{
	if (bits == 8)
		values_of(x, n, step, 8, y);
	else if (bits == 4)
		values_of(x, n, step, 4, y);
	else
		values_of(x, n, step, 2, y);
}

/* Elements first … last - 1; the step is in scratch. */
static void elements(const op_call *call, int64_t first, int64_t last)
{
	const quantize_params *p = call->params;
	values((const float *)call->in[0].data + first, last - first, *(const float *)call->scratch, p->bits,
	       (float *)call->out[0].data + first);
}

static double row_squares(const float *x, int64_t n)
{
	double sums[QUANTIZE_PART];
	const int64_t parts = kernel_parts(n, QUANTIZE_PART);
	for (int64_t i = 0; i < parts; i++)
		sums[i] = part_squares(x + i * QUANTIZE_PART, kernel_min(QUANTIZE_PART, n - i * QUANTIZE_PART));
	return sum_of_parts(sums, parts);
}

static void quantize_rows(const op_call *call, int64_t first, int64_t last)
{
	const quantize_params *p = call->params;
	const int64_t d = shape_last(call->in[0].shape);
	float *y = call->out[0].data, *step_out = call->out[1].data;
	for (int64_t r = first; r < last; r++) {
		const float *x = (const float *)call->in[0].data + r * d;
		const float step = quantize_step(row_squares(x, d), d);
		if (step_out)
			step_out[r] = step;
		if (y)
			values(x, d, step, p->bits, y + r * d);
	}
}

static float tensor_step(const backend *b, const op_call *call)
{
	const float *x = call->in[0].data;
	double *sums = call->scratch;
	const int64_t n = shape_count(call->in[0].shape), parts = kernel_parts(n, QUANTIZE_PART);
	const int threads = kernel_threads(b, n);
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t i = 0; i < parts; i++)
		sums[i] = part_squares(x + i * QUANTIZE_PART, kernel_min(QUANTIZE_PART, n - i * QUANTIZE_PART));
	return quantize_step(sum_of_parts(sums, parts), n);
}

size_t KERNEL(quantize_scratch)(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)(kernel_parts(shape_count(call->in[0].shape), QUANTIZE_PART) + 1) * sizeof(double);
}

status KERNEL(quantize)(backend *b, const op_call *call)
{
	const quantize_params *p = call->params;
	const int64_t n = shape_count(call->in[0].shape);
	if (p->mode == QUANTIZE_ROWS)
		return kernel_for(b, call, shape_rows(call->in[0].shape), n * COST, quantize_rows);
	const float step = p->mode == QUANTIZE_FIXED ? QUANTIZE_FIXED_STEP : tensor_step(b, call);
	memcpy(call->scratch, &step, sizeof step);
	if (p->mode == QUANTIZE_TENSOR && call->out[1].data)
		memcpy(call->out[1].data, &step, sizeof step);
	return call->out[0].data ? kernel_elements(b, call, COST, elements) : STATUS_OK;
}
