/* gelu, gelu_grad: x Φ(x) with the exact normal distribution Φ, or with (1 + tanh u(x)) / 2 in its
 * place, which is the logistic function of 2u. Each form takes one vector exp, and its gradient
 * the same one again, so an element is bound by arithmetic, not by memory. */
#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/math.h"

enum { COST = 4 };

/* Φ(x), bell = e^{-x²/2}. */
static inline float distribution(float x, float bell)
{
	const float tail = bell * math_mills(fabsf(x));
	return x < 0.0f ? tail : 1.0f - tail;
}

static void exact(const op_call *call, int64_t first, int64_t last)
{
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
#pragma omp simd
	for (int64_t i = first; i < last; i++)
		y[i] = x[i] * distribution(x[i], math_exp(-0.5f * x[i] * x[i]));
}

/* φ(x) = e^{-x²/2} / √(2π). */
static void exact_grad(const op_call *call, int64_t first, int64_t last)
{
	const float *x = call->in[0].data, *dy = call->in[1].data;
	float *dx = call->out[0].data;
#pragma omp simd
	for (int64_t i = first; i < last; i++) {
		const float bell = math_exp(-0.5f * x[i] * x[i]);
		dx[i] = dy[i] * (distribution(x[i], bell) + x[i] * (0x1.988454p-2f * bell));
	}
}

/* 2u = √(8/π) (x + 0.044715 x³), and its derivative. */
#define SLOPE 0x1.988454p0f
#define CUBIC 0x1.2444f2p-4f

static void with_tanh(const op_call *call, int64_t first, int64_t last)
{
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
#pragma omp simd
	for (int64_t i = first; i < last; i++)
		y[i] = x[i] / (1.0f + math_exp(-x[i] * (SLOPE + CUBIC * x[i] * x[i])));
}

/* With s the logistic function of 2u: dy/dx = s + x s (1 - s) d2u/dx. From e^{-|2u|}, so that
 * neither s nor 1 - s is a difference; where x² is cut off, s is 0 or 1. */
static void with_tanh_grad(const op_call *call, int64_t first, int64_t last)
{
	const float *x = call->in[0].data, *dy = call->in[1].data;
	float *dx = call->out[0].data;
#pragma omp simd
	for (int64_t i = first; i < last; i++) {
		const float square = x[i] * x[i] < 1e3f ? x[i] * x[i] : 1e3f;
		const float small = math_exp(-fabsf(x[i]) * (SLOPE + CUBIC * square)), large = 1.0f / (1.0f + small);
		const float s = x[i] < 0.0f ? small * large : large;
		dx[i] = dy[i] * (s + x[i] * (SLOPE + 3.0f * CUBIC * square) * (small * large * large));
	}
}

static bool has_tanh(const op_call *call)
{
	return ((const gelu_params *)call->params)->tanh;
}

status KERNEL(gelu)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, COST, has_tanh(call) ? with_tanh : exact);
}

status KERNEL(gelu_grad)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, COST, has_tanh(call) ? with_tanh_grad : exact_grad);
}
