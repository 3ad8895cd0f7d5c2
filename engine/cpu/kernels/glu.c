/* glu, glu_grad: a row at a time, both halves in one loop. The gradient may overwrite x: both halves of an element are
 * read before one is written. */
#include "engine/cpu/kernels/activation.h"
#include "engine/cpu/kernels/kernels.h"

ACTIVATION_INLINE void values(const activation_kind kind, const op_call *call, int64_t first, int64_t last)
{
	const bool gate_first = ((const glu_params *)call->params)->gate_first;
	const int64_t d = shape_last(call->out[0].shape);
	for (int64_t r = first; r < last; r++) {
		const float *x = (const float *)call->in[0].data + r * 2 * d;
		const float *a = x + gate_first * d, *b = x + !gate_first * d;
		float *y = (float *)call->out[0].data + r * d;
#pragma omp simd
		for (int64_t j = 0; j < d; j++)
			y[j] = a[j] * activation_value(kind, b[j]);
	}
}

ACTIVATION_INLINE void gradients(const activation_kind kind, const bool frozen, const op_call *call, int64_t first,
                                 int64_t last)
{
	const glu_params *p = call->params;
	const float to_a = frozen ? p->share : 1.0f, to_b = frozen ? 1.0f - p->share : 1.0f;
	const int64_t d = shape_last(call->out[0].shape) / 2, at_a = p->gate_first * d, at_b = !p->gate_first * d;
	for (int64_t r = first; r < last; r++) {
		const float *x = (const float *)call->in[0].data + r * 2 * d,
		            *dy = (const float *)call->in[1].data + r * d;
		float *dx = (float *)call->out[0].data + r * 2 * d;
#pragma omp simd
		for (int64_t j = 0; j < d; j++) {
			const float a = x[at_a + j], b = x[at_b + j];
			dx[at_a + j] = to_a * dy[j] * activation_value(kind, b);
			dx[at_b + j] =
			    to_b * dy[j] * a * (frozen ? activation_secant(kind, b) : activation_slope(kind, b));
		}
	}
}

#define RANGES(KIND)                                                                                                   \
	static void values_##KIND(const op_call *call, int64_t first, int64_t last)                                    \
	{                                                                                                              \
		values(ACTIVATION_##KIND, call, first, last);                                                          \
	}                                                                                                              \
	static void gradients_##KIND(const op_call *call, int64_t first, int64_t last)                                 \
	{                                                                                                              \
		gradients(ACTIVATION_##KIND, false, call, first, last);                                                \
	}                                                                                                              \
	static void frozen_##KIND(const op_call *call, int64_t first, int64_t last)                                    \
	{                                                                                                              \
		gradients(ACTIVATION_##KIND, true, call, first, last);                                                 \
	}
EACH_GATE(RANGES)

#define VALUES(KIND) [ACTIVATION_##KIND] = values_##KIND,
#define GRADIENTS(KIND) [ACTIVATION_##KIND] = {gradients_##KIND, frozen_##KIND},
static const kernel_range values_of[ACTIVATION_KINDS] = {EACH_GATE(VALUES)};
static const kernel_range gradients_of[ACTIVATION_KINDS][2] = {EACH_GATE(GRADIENTS)};

/* By rows of output 0. */
static status by_rows(backend *b, const op_call *call, int64_t cost, kernel_range fn)
{
	const shape s = call->out[0].shape;
	return kernel_for(b, call, shape_rows(s), shape_count(s) * cost, fn);
}

status KERNEL(glu)(backend *b, const op_call *call)
{
	return by_rows(b, call, ACTIVATION_COST, values_of[((const glu_params *)call->params)->kind]);
}

status KERNEL(glu_grad)(backend *b, const op_call *call)
{
	const glu_params *p = call->params;
	return by_rows(b, call, ACTIVATION_COST, gradients_of[p->kind][p->frozen]);
}
