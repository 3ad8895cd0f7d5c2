/* activation.h - the functions of activation_kind without branches or calls, for loops that become vector code: f(x),
 * f'(x), and (f(x) - f(0)) / x with its limit at 0. Each takes at most one vector exp and one log. `kind` is a constant
 * where they are called, so that no switch is left (EACH_ACTIVATION).
 *
 * gelu is x Φ(x) with the exact normal distribution Φ, or with (1 + tanh u(x)) / 2 in its place, which is the logistic
 * function of 2u. */
#ifndef ENGINE_CPU_KERNELS_ACTIVATION_H
#define ENGINE_CPU_KERNELS_ACTIVATION_H

#include "engine/cpu/kernels/math.h"
#include "engine/tensor/ops.h"

#define ACTIVATION_INLINE static inline __attribute__((always_inline))
#define EACH_GATE(DO) DO(RELU) DO(RELU2) DO(SILU) DO(SIGMOID) DO(GELU) DO(GELU_TANH)
#define EACH_ACTIVATION(DO) EACH_GATE(DO) DO(LOG_SIGMOID) DO(EXP)

enum { ACTIVATION_COST = 4 }; /* cost of an element, in additions: one exp */

/* Φ(x), bell = e^{-x²/2}. */
ACTIVATION_INLINE float distribution(float x, float bell)
{
	const float tail = bell * math_mills(fabsf(x));
	return x < 0.0f ? tail : 1.0f - tail;
}

/* 2u = √(8/π) (x + 0.044715 x³), and its derivative. */
#define SLOPE 0x1.988454p0f
#define CUBIC 0x1.2444f2p-4f

/* The logistic function and its derivative from e^{-|x|}, so that neither s nor 1 - s is a difference. */
typedef struct logistic {
	float value, slope;
} logistic;

ACTIVATION_INLINE logistic logistic_of(float x, float small)
{
	const float large = 1.0f / (1.0f + small);
	return (logistic){x < 0.0f ? small * large : large, small * large * large};
}

/* log(1 + x) for x from 0 to 1. 1 + x is rounded; x - ((1 + x) - 1) is its error, exactly. */
ACTIVATION_INLINE float log_one_plus(float x)
{
	const float sum = 1.0f + x;
	return math_log(sum) + (x - (sum - 1.0f)) / sum;
}

ACTIVATION_INLINE float log_sigmoid(float x)
{
	return (x < 0.0f ? x : 0.0f) - log_one_plus(math_exp(-fabsf(x)));
}

ACTIVATION_INLINE float activation_value(const activation_kind kind, float x)
{
	switch (kind) {
	case ACTIVATION_RELU:
		return x < 0.0f ? 0.0f : x;
	case ACTIVATION_RELU2:
		return x < 0.0f ? 0.0f : x * x;
	case ACTIVATION_SILU:
		return x / (1.0f + math_exp(-x));
	case ACTIVATION_SIGMOID:
		return 1.0f / (1.0f + math_exp(-x));
	case ACTIVATION_LOG_SIGMOID:
		return log_sigmoid(x);
	case ACTIVATION_EXP:
		return math_exp(x);
	case ACTIVATION_GELU:
		return x * distribution(x, math_exp(-0.5f * x * x));
	default:
		return x / (1.0f + math_exp(-x * (SLOPE + CUBIC * x * x)));
	}
}

/* The tanh form of gelu with s the logistic function of 2u: s + x s (1 - s) d2u/dx; where x² is cut off, s is 0 or 1.
 */
ACTIVATION_INLINE float activation_slope(const activation_kind kind, float x)
{
	const float square = x * x < 1e3f ? x * x : 1e3f;
	const float bell = math_exp(kind == ACTIVATION_GELU        ? -0.5f * x * x
	                            : kind == ACTIVATION_GELU_TANH ? -fabsf(x) * (SLOPE + CUBIC * square)
	                            : kind == ACTIVATION_EXP       ? x
	                                                           : -fabsf(x));
	const logistic s = logistic_of(x, bell);
	switch (kind) {
	case ACTIVATION_RELU:
		return x > 0.0f ? 1.0f : 0.0f;
	case ACTIVATION_RELU2:
		return x < 0.0f ? 0.0f : 2.0f * x;
	case ACTIVATION_SILU:
		return s.value + x * s.slope;
	case ACTIVATION_SIGMOID:
		return s.slope;
	case ACTIVATION_LOG_SIGMOID:
		return logistic_of(-x, bell).value;
	case ACTIVATION_EXP:
		return bell;
	case ACTIVATION_GELU: /* φ(x) = e^{-x²/2} / √(2π) */
		return distribution(x, bell) + x * (0x1.988454p-2f * bell);
	default:
		return s.value + x * (SLOPE + 3.0f * CUBIC * square) * s.slope;
	}
}

/* Secant of the logistic function, tanh(x/2) / (2x); near 0, where that divides small differences, its series. */
ACTIVATION_INLINE float logistic_secant(float x)
{
	const float t = fabsf(x), small = math_exp(-t), square = 0.25f * t * t;
	const float far = 0.5f * (1.0f - small) / ((1.0f + small) * t);
	const float near =
	    0.25f + 0.25f * square * (((-0x1.ba1ba2p-5f * square) + 0x1.111112p-3f) * square - 0x1.555556p-2f);
	return t < 0.5f ? near : far;
}

/* Secant of log σ(x) = x/2 - log(2 cosh(x/2)); near 0, where that divides small differences, its series. */
ACTIVATION_INLINE float log_sigmoid_secant(float x)
{
	const float square = x * x;
	const float far = (log_sigmoid(x) + 0x1.62e43p-1f) / x;
	const float near =
	    0.5f - x * (0.125f + square * (-0x1.555556p-8f + square * (0x1.6c16c2p-12f - 0x1.ba1ba2p-16f * square)));
	return fabsf(x) < 0.5f ? near : far;
}

/* (e^x - 1) / x; near 0, where that divides a small difference, its series. */
ACTIVATION_INLINE float exp_secant(float x)
{
	const float far = (math_exp(x) - 1.0f) / x;
	const float near =
	    1.0f +
	    x * (0.5f + x * (0x1.555556p-3f + x * (0x1.555556p-5f + x * (0x1.111112p-7f + x * (0x1.6c16c2p-10f +
	                                                                                       x * 0x1.a01a02p-13f)))));
	return fabsf(x) < 0.5f ? near : far;
}

ACTIVATION_INLINE float activation_secant(const activation_kind kind, float x)
{
	switch (kind) {
	case ACTIVATION_RELU:
		return x > 0.0f ? 1.0f : 0.0f;
	case ACTIVATION_RELU2:
		return x < 0.0f ? 0.0f : x;
	case ACTIVATION_SILU:
		return 1.0f / (1.0f + math_exp(-x));
	case ACTIVATION_SIGMOID:
		return logistic_secant(x);
	case ACTIVATION_LOG_SIGMOID:
		return log_sigmoid_secant(x);
	case ACTIVATION_EXP:
		return exp_secant(x);
	case ACTIVATION_GELU:
		return distribution(x, math_exp(-0.5f * x * x));
	default:
		return 1.0f / (1.0f + math_exp(-x * (SLOPE + CUBIC * x * x)));
	}
}

#endif
