#include <math.h>
#include <string.h>

#include "engine/cpu/reference/reference.h"
#include "engine/tensor/ops/rotary.h"

/* One head at position t: pair i of R / 2 is (a, b) = channels (i, i + R/2), or interleaved (2i, 2i + 1):
 *   (a, b) -> factor · (a cos - b sin, b cos + a sin), sin negative where transposed,
 *   angle = t · w_i, w_i = base^(-2i/R) rounded to f32, factor = c_i^±((t - center) / xpos_base), c_i = (2i + 0.4R)
 * / 1.4R */
static void head(const rotary_params *p, double t, const float *x, float *y)
{
	const double width = (double)p->width;
	for (int64_t i = 0; i < p->width / 2; i++) {
		const double angle = t * (double)(float)pow((double)p->base, -2.0 * (double)i / width);
		const int64_t first = p->interleaved ? 2 * i : i,
		              second = p->interleaved ? 2 * i + 1 : i + p->width / 2;
		const double a = (double)x[first], b = (double)x[second];
		const double c = cos(angle), s = p->transposed ? -sin(angle) : sin(angle);
		double factor = 1;
		if (p->xpos_base > 0) {
			const double power = (t - (double)p->xpos_center) / (double)p->xpos_base;
			factor = pow((2 * (double)i + 0.4 * width) / (1.4 * width), p->inverse_scale ? -power : power);
		}
		y[first] = (float)(factor * (a * c - b * s));
		y[second] = (float)(factor * (b * c + a * s));
	}
}

/* x [rows, heads · h], positions? [rows], like? -> y [rows, heads · h] */
status reference_rotary(backend *unused, const op_call *call)
{
	(void)unused;
	const rotary_params *p = call->params;
	const int32_t *positions = call->n_in > 1 ? call->in[1].data : NULL;
	const shape s = call->in[0].shape;
	const shape like = call->n_in > 2 && call->in[2].data ? call->in[2].shape : s;
	const int64_t h = shape_last(s) / p->heads, n = like.dim[like.rank - 2];
	for (int64_t i = 0; i < shape_rows(s) * p->heads; i++) {
		const int64_t row = i / p->heads;
		const float *x = (const float *)call->in[0].data + i * h;
		float *y = (float *)call->out[0].data + i * h;
		memmove(y, x, (size_t)h * sizeof *y);
		const int64_t position = p->first + (positions ? positions[row] : row % n);
		head(p, (double)rotary_place(position, p->segment, p->memory), x, y);
	}
	return STATUS_OK;
}
