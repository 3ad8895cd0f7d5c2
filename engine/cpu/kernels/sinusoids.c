/* sinusoids: the frequencies once a call, then row after row. Those of the forms in floats are found in double and
 * rounded once, so that every backend has the same. */
#include "engine/cpu/kernels/kernels.h"

#include <math.h>

#include "engine/tensor/ops/rotary.h"

enum { COST = 6 };

size_t KERNEL(sinusoids_scratch)(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)(((const sinusoids_params *)call->params)->width / 2) * sizeof(double);
}

static void find_frequencies(const sinusoids_params *p, double *w)
{
	const double width = (double)p->width, step = -log(10000) / width, float_step = (double)(float)step;
	for (int64_t i = 0; i < p->width / 2; i++) {
		const double twice = 2 * (double)i;
		w[i] = p->form == SINUSOIDS_EXACT ? exp(twice * step)
		       : p->form == SINUSOIDS_EXP ? (double)(float)exp((double)(float)(twice * float_step))
		                                  : (double)(float)pow(10000, -(double)(float)(twice / width));
	}
}

static void sinusoids_rows(const op_call *call, int64_t first, int64_t last)
{
	const sinusoids_params *p = call->params;
	const int32_t *positions = call->in[0].data;
	const double *w = call->scratch;
	const bool exact = p->form == SINUSOIDS_EXACT;
	for (int64_t r = first; r < last; r++) {
		float *y = (float *)call->out[0].data + r * p->width;
		const double position = (double)positions[r];
#pragma omp simd
		for (int64_t i = 0; i < p->width / 2; i++) {
			const double product = position * w[i];
			rotary_turn(exact ? product : (double)(float)product, &y[2 * i + 1], &y[2 * i]);
		}
	}
}

status KERNEL(sinusoids)(backend *b, const op_call *call)
{
	const shape s = call->out[0].shape;
	find_frequencies(call->params, call->scratch);
	return kernel_for(b, call, shape_rows(s), shape_count(s) * COST, sinusoids_rows);
}
