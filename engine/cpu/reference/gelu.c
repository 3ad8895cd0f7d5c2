#include <math.h>

#include "engine/cpu/reference/reference.h"

/* Φ, the cumulative normal distribution, and φ, its density. */
static double cumulative(double x)
{
	return 0.5 * erfc(-x * M_SQRT1_2);
}

static double density(double x)
{
	return exp(-0.5 * x * x) * M_SQRT1_2 * (M_2_SQRTPI / 2);
}

/* y = x Φ(x) */
status reference_gelu(backend *b, const op_call *call)
{
	(void)b;
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++)
		y[i] = (float)((double)x[i] * cumulative((double)x[i]));
	return STATUS_OK;
}

/* dx = dy (Φ(x) + x φ(x)) */
status reference_gelu_grad(backend *b, const op_call *call)
{
	(void)b;
	const float *x = call->in[0].data, *dy = call->in[1].data;
	float *dx = call->out[0].data;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++) {
		double t = (double)x[i];
		dx[i] = (float)((double)dy[i] * (cumulative(t) + t * density(t)));
	}
	return STATUS_OK;
}
