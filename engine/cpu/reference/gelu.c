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

/* The tanh form: what stands for Φ, and its derivative, which stands for φ. */
static double tanh_argument(double x)
{
	return 2 * M_SQRT1_2 * sqrt(M_1_PI) * (x + 0.044715 * x * x * x);
}

static double tanh_cumulative(double x)
{
	return 0.5 * (1 + tanh(tanh_argument(x)));
}

static double tanh_density(double x)
{
	double t = tanh(tanh_argument(x));
	return 0.5 * (1 - t * t) * 2 * M_SQRT1_2 * sqrt(M_1_PI) * (1 + 3 * 0.044715 * x * x);
}

/* y = x Φ(x) */
status reference_gelu(backend *b, const op_call *call)
{
	(void)b;
	double (*phi)(double) = ((const gelu_params *)call->params)->tanh ? tanh_cumulative : cumulative;
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++)
		y[i] = (float)((double)x[i] * phi((double)x[i]));
	return STATUS_OK;
}

/* dx = dy (Φ(x) + x φ(x)) */
status reference_gelu_grad(backend *b, const op_call *call)
{
	(void)b;
	const bool form = ((const gelu_params *)call->params)->tanh;
	const float *x = call->in[0].data, *dy = call->in[1].data;
	float *dx = call->out[0].data;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++) {
		double t = (double)x[i];
		double slope = form ? tanh_cumulative(t) + t * tanh_density(t) : cumulative(t) + t * density(t);
		dx[i] = (float)((double)dy[i] * slope);
	}
	return STATUS_OK;
}
