/* activation.cuh - the functions of activation_kind: f(x), f'(x), and (f(x) - f(0)) / x with its limit at 0. They use
 * the fast exponential and quotients, which are exact to about 1e-6. */
#ifndef CUDA_ACTIVATION_CUH
#define CUDA_ACTIVATION_CUH

#include "cuda/backend.h"
#include "cuda/gelu.cuh"

/* The logistic function s and its derivative, both from e^{-|x|}, so that neither s nor 1 - s suffers cancellation. */
struct logistic {
	float value, slope;
};
static __device__ __forceinline__ logistic logistic_of(float x)
{
	const float small = __expf(-fabsf(x)), large = __fdividef(1.0f, 1.0f + small);
	return {x < 0.0f ? small * large : large, small * large * large};
}

/* With the exact exponential: its relative error is that of the result where x is large. */
static __device__ __forceinline__ float log_sigmoid(float x)
{
	return fminf(x, 0.0f) - log1pf(expf(-fabsf(x)));
}

/* Secant of log σ(x) = x/2 - log(2 cosh(x/2)); near 0, where that divides small differences, its series. */
static __device__ __forceinline__ float log_sigmoid_secant(float x)
{
	const float square = x * x;
	if (fabsf(x) >= 0.5f)
		return (log_sigmoid(x) + 0x1.62e43p-1f) / x;
	return 0.5f - x * (0.125f + square * (-0x1.555556p-8f + square * (0x1.6c16c2p-12f - 0x1.ba1ba2p-16f * square)));
}

template <activation_kind KIND> static __device__ __forceinline__ float activation_value(float x)
{
	if (KIND == ACTIVATION_RELU)
		return x < 0.0f ? 0.0f : x;
	if (KIND == ACTIVATION_RELU2)
		return x < 0.0f ? 0.0f : x * x;
	if (KIND == ACTIVATION_SILU)
		return x * logistic_of(x).value;
	if (KIND == ACTIVATION_SIGMOID)
		return logistic_of(x).value;
	if (KIND == ACTIVATION_LOG_SIGMOID)
		return log_sigmoid(x);
	if (KIND == ACTIVATION_EXP)
		return expf(x);
	return gelu_of<KIND == ACTIVATION_GELU_TANH>(x);
}

template <activation_kind KIND> static __device__ __forceinline__ float activation_slope(float x)
{
	if (KIND == ACTIVATION_RELU)
		return x > 0.0f ? 1.0f : 0.0f;
	if (KIND == ACTIVATION_RELU2)
		return x < 0.0f ? 0.0f : 2.0f * x;
	if (KIND == ACTIVATION_GELU || KIND == ACTIVATION_GELU_TANH)
		return gelu_slope<KIND == ACTIVATION_GELU_TANH>(x);
	if (KIND == ACTIVATION_LOG_SIGMOID)
		return logistic_of(-x).value;
	if (KIND == ACTIVATION_EXP)
		return expf(x);
	const logistic s = logistic_of(x);
	return KIND == ACTIVATION_SILU ? __fmaf_rn(x, s.slope, s.value) : s.slope;
}

/* Secant: tanh(x/2) / (2x) for the logistic function; f(x) / x for those that have f(0) = 0. */
template <activation_kind KIND> static __device__ __forceinline__ float activation_secant(float x)
{
	if (KIND == ACTIVATION_RELU)
		return x > 0.0f ? 1.0f : 0.0f;
	if (KIND == ACTIVATION_RELU2)
		return x < 0.0f ? 0.0f : x;
	if (KIND == ACTIVATION_SILU)
		return logistic_of(x).value;
	if (KIND == ACTIVATION_SIGMOID)
		return x == 0.0f ? 0.25f : 0.5f * tanhf(0.5f * x) / x;
	if (KIND == ACTIVATION_LOG_SIGMOID)
		return log_sigmoid_secant(x);
	if (KIND == ACTIVATION_EXP)
		return x == 0.0f ? 1.0f : expm1f(x) / x;
	if (KIND == ACTIVATION_GELU_TANH)
		return logistic_of(x * __fmaf_rn(CUBIC, fminf(x * x, 1e3f), SLOPE)).value;
	const float tail = tail_of(x, exp2_approx(__fmul_rn(__fmul_rn(x, x), -0x1.715476p-1f)));
	return x < 0.0f ? tail : 1.0f - tail;
}

template <activation_kind KIND> struct activation_constant {
	static constexpr activation_kind kind = KIND;
};

/* Call f with the kind of a gate as a compile-time constant. */
template <class F> status by_gate(activation_kind kind, F f)
{
	switch (kind) {
	case ACTIVATION_RELU:
		return f(activation_constant<ACTIVATION_RELU>());
	case ACTIVATION_RELU2:
		return f(activation_constant<ACTIVATION_RELU2>());
	case ACTIVATION_SILU:
		return f(activation_constant<ACTIVATION_SILU>());
	case ACTIVATION_SIGMOID:
		return f(activation_constant<ACTIVATION_SIGMOID>());
	case ACTIVATION_GELU:
		return f(activation_constant<ACTIVATION_GELU>());
	default:
		return f(activation_constant<ACTIVATION_GELU_TANH>());
	}
}

/* by_gate for all kinds. */
template <class F> status by_activation(activation_kind kind, F f)
{
	if (kind == ACTIVATION_LOG_SIGMOID)
		return f(activation_constant<ACTIVATION_LOG_SIGMOID>());
	return kind == ACTIVATION_EXP ? f(activation_constant<ACTIVATION_EXP>()) : by_gate(kind, f);
}

#endif
