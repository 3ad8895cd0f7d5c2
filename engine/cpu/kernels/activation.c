/* activation, activation_grad, gelu, gelu_grad: one pass over the elements. An element with an exp is bound by
 * arithmetic, not by memory. */
#include "engine/cpu/kernels/activation.h"
#include "engine/cpu/kernels/kernels.h"

ACTIVATION_INLINE void values(const activation_kind kind, const op_call *call, int64_t first, int64_t last)
{
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
#pragma omp simd
	for (int64_t i = first; i < last; i++)
		y[i] = activation_value(kind, x[i]);
}

ACTIVATION_INLINE void gradients(const activation_kind kind, const bool frozen, const op_call *call, int64_t first,
                                 int64_t last)
{
	const float *x = call->in[0].data, *dy = call->in[1].data;
	float *dx = call->out[0].data;
#pragma omp simd
	for (int64_t i = first; i < last; i++)
		dx[i] = dy[i] * (frozen ? activation_secant(kind, x[i]) : activation_slope(kind, x[i]));
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
	static void secants_##KIND(const op_call *call, int64_t first, int64_t last)                                   \
	{                                                                                                              \
		gradients(ACTIVATION_##KIND, true, call, first, last);                                                 \
	}
EACH_ACTIVATION(RANGES)

typedef struct ranges {
	kernel_range values, gradients, secants;
} ranges;

#define ROW(KIND) [ACTIVATION_##KIND] = {values_##KIND, gradients_##KIND, secants_##KIND},
static const ranges ranges_of[ACTIVATION_KINDS] = {EACH_ACTIVATION(ROW)};

status KERNEL(activation)(backend *b, const op_call *call)
{
	const activation_params *p = call->params;
	return kernel_elements(b, call, ACTIVATION_COST, ranges_of[p->kind].values);
}

status KERNEL(activation_grad)(backend *b, const op_call *call)
{
	const activation_params *p = call->params;
	const ranges *r = &ranges_of[p->kind];
	return kernel_elements(b, call, ACTIVATION_COST, p->frozen ? r->secants : r->gradients);
}

static const ranges *gelu_ranges(const op_call *call)
{
	return &ranges_of[((const gelu_params *)call->params)->tanh ? ACTIVATION_GELU_TANH : ACTIVATION_GELU];
}

status KERNEL(gelu)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, ACTIVATION_COST, gelu_ranges(call)->values);
}

status KERNEL(gelu_grad)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, ACTIVATION_COST, gelu_ranges(call)->gradients);
}
