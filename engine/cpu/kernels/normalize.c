/* normalize, normalize_grad: a part of a row at a time, from the cache after the first touch. The gradient of a gain is
 * a sum over all rows: parts of rows are summed into scratch, and the parts in order. */
#include "engine/cpu/kernels/kernels.h"

#include <math.h>
#include <string.h>

enum { COST = 2 };

/* The gain of a call: of each channel, or one for all, 1 where there is none. */
typedef struct gains {
	const float *each;
	float all;
} gains;

static gains gains_of(const op_call *call)
{
	const float *gain = kernel_optional(call, 1);
	const bool one = gain && shape_count(call->in[1].shape) == 1;
	return (gains){one ? NULL : gain, one ? *gain : 1.0f};
}

static inline __attribute__((always_inline)) void parts_of_width(const op_call *call, int64_t first, int64_t last,
                                                                 const int64_t width)
{
	const normalize_params *p = call->params;
	const gains gain = gains_of(call);
	int64_t group = first % p->groups;
	float *y = call->out[0].data, *inverses = call->out[1].data;
	for (int64_t i = first; i < last; i++) {
		const float *from = (const float *)call->in[0].data + i * width;
		float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
		for (int64_t j = 0; j < width; j++)
			squares += from[j] * from[j];
		const float norm = sqrtf(squares + p->eps), inverse = 1.0f / (norm > p->floor ? norm : p->floor);
		const float factor = p->scale * inverse * gain.all;
		if (inverses)
			inverses[i] = inverse;
		float *to = y ? y + i * width : NULL;
		if (to && gain.each) {
			const float *each = gain.each + group * width;
#pragma omp simd
			for (int64_t j = 0; j < width; j++)
				to[j] = each[j] * (from[j] * factor);
		} else if (to) {
#pragma omp simd
			for (int64_t j = 0; j < width; j++)
				to[j] = from[j] * factor;
		}
		group = group + 1 < p->groups ? group + 1 : 0;
	}
}

/* Short loops: pass their length as a constant. */
static void parts_of_normalize(const op_call *call, int64_t first, int64_t last)
{
	const int64_t width = shape_last(call->in[0].shape) / ((const normalize_params *)call->params)->groups;
	if (width == 8)
		parts_of_width(call, first, last, 8);
	else
		parts_of_width(call, first, last, width);
}

status KERNEL(normalize)(backend *b, const op_call *call)
{
	const shape x = call->in[0].shape;
	const int64_t parts = shape_rows(x) * ((const normalize_params *)call->params)->groups;
	return kernel_for(b, call, parts, shape_count(x) * COST, parts_of_normalize);
}

/* One part of a row of the gradient without the factors that all channels share (dx NULL: not requested); adds to dgain
 * where that has a number for each channel. Returns Σ dy x̂. */
static inline float part_grad(int64_t width, const float *x, const float *gain, float factor, float inverse,
                              bool constant, const float *dy, float *dx, float *dgain)
{
	float plain = 0.0f, along = 0.0f;
	if (gain) {
#pragma omp simd reduction(+ : along)
		for (int64_t j = 0; j < width; j++) {
			const float product = dy[j] * (x[j] * inverse);
			along += gain[j] * product;
			dgain[j] += product;
		}
	} else {
#pragma omp simd reduction(+ : plain)
		for (int64_t j = 0; j < width; j++)
			plain += dy[j] * (x[j] * inverse);
		along = plain;
	}
	const float slope = constant ? 0.0f : along * inverse;
	if (dx && gain) {
#pragma omp simd
		for (int64_t j = 0; j < width; j++)
			dx[j] = factor * (gain[j] * dy[j] - x[j] * slope);
	} else if (dx) {
#pragma omp simd
		for (int64_t j = 0; j < width; j++)
			dx[j] = factor * (dy[j] - x[j] * slope);
	}
	return plain;
}

/* Numbers of a partial dgain. */
static int64_t gain_columns(const op_call *call)
{
	return shape_count(call->out[1].shape);
}

size_t KERNEL(normalize_grad_scratch)(const backend *b, const op_call *call)
{
	(void)b;
	const int64_t rows = shape_rows(call->in[0].shape);
	return (size_t)(kernel_parts(rows, kernel_part_rows(rows)) * gain_columns(call)) * sizeof(float);
}

status KERNEL(normalize_grad)(backend *b, const op_call *call)
{
	const normalize_params *p = call->params;
	const gains gain = gains_of(call);
	const float *x = call->in[0].data, *inverse = call->in[2].data, *dy = call->in[3].data;
	float *dx = call->out[0].data, *sums = call->scratch;
	const int64_t rows = shape_rows(call->in[0].shape), d = shape_last(call->in[0].shape), width = d / p->groups;
	const int64_t size = kernel_part_rows(rows), parts = kernel_parts(rows, size), columns = gain_columns(call);
	const float highest = 1.0f / p->floor;
	const int threads = kernel_threads(b, rows * d * COST);
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t part = 0; part < parts; part++) {
		float *dgain = sums + part * columns, plain = 0.0f;
		if (columns > 0)
			memset(dgain, 0, (size_t)columns * sizeof *dgain);
		const int64_t last = kernel_min(rows, (part + 1) * size) * p->groups;
		for (int64_t i = part * size * p->groups; i < last; i++) {
			const int64_t channel = gain.each ? i % p->groups * width : 0;
			plain +=
			    part_grad(width, x + i * width, gain.each ? gain.each + channel : NULL,
			              p->scale * inverse[i] * gain.all, inverse[i], p->frozen || inverse[i] >= highest,
			              dy + i * width, dx ? dx + i * width : NULL, dgain + channel);
		}
		if (columns > 0 && !gain.each)
			*dgain = plain;
	}
	if (call->out[1].data)
		kernel_sum_parts(call->out[1].data, sums, parts, columns, p->scale);
	return STATUS_OK;
}
