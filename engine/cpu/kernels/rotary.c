/* rotary: the cosines and sines of a row are computed once, TABLE pairs at a time, and used by all its heads. The
 * result may overwrite x. */
#include "engine/cpu/kernels/kernels.h"

#include <math.h>
#include <string.h>

#include "engine/tensor/ops/rotary.h"

enum { TABLE = 64, COST = 3 };

/* Pairs first … first + count - 1 of every head. */
typedef struct table {
	int64_t first, count;
	double frequency[TABLE], log[TABLE]; /* log: log2 of xPos's base, signed as its power */
	float cosine[TABLE], sine[TABLE];
} table;

/* w_i by repeated products in double, whose error does not reach the rounding to f32. */
static void open(table *t, const rotary_params *p, int64_t first)
{
	const double width = (double)p->width, ratio = pow((double)p->base, -2.0 / width);
	double frequency = first ? pow(ratio, (double)first) : 1.0;
	t->first = first;
	t->count = kernel_min(TABLE, p->width / 2 - first);
	for (int64_t k = 0; k < t->count; k++, frequency *= ratio)
		t->frequency[k] = (double)(float)frequency;
	for (int64_t k = 0; k < t->count && p->xpos_base > 0; k++) {
		const double base = (2 * (double)(first + k) + 0.4 * width) / (1.4 * width);
		t->log[k] = (p->inverse_scale ? -log2(base) : log2(base)) / (double)p->xpos_base;
	}
}

static void turn(table *t, const rotary_params *p, double position)
{
	const float sign = p->transposed ? -1.0f : 1.0f;
#pragma omp simd
	for (int64_t k = 0; k < t->count; k++) {
		float c, s;
		rotary_turn(position * t->frequency[k], &c, &s);
		t->cosine[k] = c;
		t->sine[k] = sign * s;
	}
	if (!(p->xpos_base > 0))
		return;
	const double from = position - (double)p->xpos_center;
#pragma omp simd
	for (int64_t k = 0; k < t->count; k++) {
		const float factor = rotary_power(from * t->log[k]);
		t->cosine[k] *= factor;
		t->sine[k] *= factor;
	}
}

static void halves(const table *t, int64_t half, const float *x, float *y)
{
	x += t->first, y += t->first;
#pragma omp simd
	for (int64_t k = 0; k < t->count; k++) {
		const float a = x[k], b = x[k + half];
		y[k] = a * t->cosine[k] - b * t->sine[k];
		y[k + half] = b * t->cosine[k] + a * t->sine[k];
	}
}

static void pairs(const table *t, const float *x, float *y)
{
	x += 2 * t->first, y += 2 * t->first;
#pragma omp simd
	for (int64_t k = 0; k < t->count; k++) {
		const float a = x[2 * k], b = x[2 * k + 1];
		y[2 * k] = a * t->cosine[k] - b * t->sine[k];
		y[2 * k + 1] = b * t->cosine[k] + a * t->sine[k];
	}
}

static void rotary_rows(const op_call *call, int64_t first, int64_t last)
{
	const rotary_params *p = call->params;
	const int32_t *positions = kernel_optional(call, 1);
	const shape s = call->in[0].shape, like = kernel_optional(call, 2) ? call->in[2].shape : s;
	const int64_t d = shape_last(s), h = d / p->heads, n = like.dim[like.rank - 2], half = p->width / 2;
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
	table t;
	for (int64_t i = 0; i < half; i += TABLE) {
		open(&t, p, i);
		for (int64_t r = first; r < last; r++) {
			const int64_t position = p->first + (positions ? positions[r] : r % n);
			turn(&t, p, (double)rotary_place(position, p->segment, p->memory));
			for (int64_t at = r * d; at < (r + 1) * d; at += h)
				if (p->interleaved)
					pairs(&t, x + at, y + at);
				else
					halves(&t, half, x + at, y + at);
		}
	}
	for (int64_t at = first * d; at < last * d && x != y; at += h)
		memcpy(y + at + p->width, x + at + p->width, (size_t)(h - p->width) * sizeof *y);
}

status KERNEL(rotary)(backend *b, const op_call *call)
{
	const shape s = call->out[0].shape;
	if (shape_count(s) == 0)
		return STATUS_OK;
	return kernel_for(b, call, shape_rows(s), shape_count(s) * COST, rotary_rows);
}
