#include "engine/cpu/reference/activation.h"

#include <math.h>

#include "engine/cpu/reference/reference.h"

/* --- the functions --------------------------------------------------------------- */

/* Φ, the cumulative normal distribution, and φ, its density. */
static double cumulative(double x)
{
	return 0.5 * erfc(-x * M_SQRT1_2);
}

static double density(double x)
{
	return exp(-0.5 * x * x) * M_SQRT1_2 * (M_2_SQRTPI / 2);
}

/* The tanh form: its approximation of Φ, and the derivative, which replaces φ. */
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

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

static double log_sigmoid(double x)
{
	return fmin(x, 0) - log1p(exp(-fabs(x)));
}

double reference_activation_value(activation_kind kind, double x)
{
	switch (kind) {
	case ACTIVATION_RELU:
		return x < 0 ? 0 : x;
	case ACTIVATION_RELU2:
		return x < 0 ? 0 : x * x;
	case ACTIVATION_SILU:
		return x * sigmoid(x);
	case ACTIVATION_SIGMOID:
		return sigmoid(x);
	case ACTIVATION_LOG_SIGMOID:
		return log_sigmoid(x);
	case ACTIVATION_EXP:
		return exp(x);
	case ACTIVATION_GELU:
		return x * cumulative(x);
	default:
		return x * tanh_cumulative(x);
	}
}

double reference_activation_slope(activation_kind kind, double x)
{
	const double s = sigmoid(x), rise = s * sigmoid(-x);
	switch (kind) {
	case ACTIVATION_RELU:
		return x > 0 ? 1 : 0;
	case ACTIVATION_RELU2:
		return x < 0 ? 0 : 2 * x;
	case ACTIVATION_SILU:
		return s + x * rise;
	case ACTIVATION_SIGMOID:
		return rise;
	case ACTIVATION_LOG_SIGMOID:
		return sigmoid(-x);
	case ACTIVATION_EXP:
		return exp(x);
	case ACTIVATION_GELU:
		return cumulative(x) + x * density(x);
	default:
		return tanh_cumulative(x) + x * tanh_density(x);
	}
}

double reference_activation_secant(activation_kind kind, double x)
{
	switch (kind) {
	case ACTIVATION_RELU:
		return x > 0 ? 1 : 0;
	case ACTIVATION_RELU2:
		return x < 0 ? 0 : x;
	case ACTIVATION_SILU:
		return sigmoid(x);
	case ACTIVATION_SIGMOID:
		return x == 0 ? 0.25 : 0.5 * tanh(0.5 * x) / x;
	case ACTIVATION_LOG_SIGMOID:
		return x == 0 ? 0.5 : (log_sigmoid(x) + M_LN2) / x;
	case ACTIVATION_EXP:
		return x == 0 ? 1 : expm1(x) / x;
	case ACTIVATION_GELU:
		return cumulative(x);
	default:
		return tanh_cumulative(x);
	}
}

/* --- elementwise ------------------------------------------------------------------ */

/* y = f(x) */
static status activation_forward(const op_call *call, activation_kind kind)
{
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++)
		y[i] = (float)reference_activation_value(kind, (double)x[i]);
	return STATUS_OK;
}

/* dx = dy · by(x) */
static status backward(const op_call *call, activation_kind kind, double (*by)(activation_kind, double))
{
	const float *x = call->in[0].data, *dy = call->in[1].data;
	float *dx = call->out[0].data;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++)
		dx[i] = (float)((double)dy[i] * by(kind, (double)x[i]));
	return STATUS_OK;
}

static activation_kind gelu_kind(const op_call *call)
{
	return ((const gelu_params *)call->params)->tanh ? ACTIVATION_GELU_TANH : ACTIVATION_GELU;
}

status reference_gelu(backend *b, const op_call *call)
{
	(void)b;
	return activation_forward(call, gelu_kind(call));
}

status reference_gelu_grad(backend *b, const op_call *call)
{
	(void)b;
	return backward(call, gelu_kind(call), reference_activation_slope);
}

status reference_activation(backend *b, const op_call *call)
{
	(void)b;
	return activation_forward(call, ((const activation_params *)call->params)->kind);
}

/* dx = dy · f'(x), frozen dy · (f(x) - f(0)) / x */
status reference_activation_grad(backend *b, const op_call *call)
{
	(void)b;
	const activation_params *p = call->params;
	return backward(call, p->kind, p->frozen ? reference_activation_secant : reference_activation_slope);
}
