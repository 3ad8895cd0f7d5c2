/* gelu.cuh - gelu and its derivative. The value is spelled as single instructions, so that every kernel gets the same
 * bits.
 *
 * gelu is x Φ(x), where Φ is the exact normal distribution or the approximation (1 + tanh u(x)) / 2, which is the
 * logistic function of 2u. Φ's tail is e^{-x²/2} times Mills' ratio over √(2π), a polynomial in 1 / (1 + 0.3 |x|). This
 * form has no branch and no cancellation where x is negative, and the same exponential serves the gradient. The CPU
 * uses the same polynomial.
 *
 * At the memory's speed, bf16 leaves few instructions per element (27 for gelu on an H200), so the exponential and the
 * quotients are the fast ones. The erf form uses those that flush results below 2^-126 to zero. The forms take 21 and
 * 24 instructions per element, with loads and stores. Φ's tail has a relative error of at most 2^-21 + x² 2^-24. That
 * is small beside the rounding of bf16 (2^-9), and makes f32 exact to about 1e-6. */
#ifndef CUDA_GELU_CUH
#define CUDA_GELU_CUH

#include "cuda/device.cuh"
#include "cuda/ptx.cuh"
#include "engine/tensor/ops/gelu.h"

/* 2u = √(8/π) (x + 0.044715 x³) = x (SLOPE + CUBIC x²). */
#define SLOPE 0x1.988454p0f
#define CUBIC 0x1.2444f2p-4f
#define DENSITY 0x1.988454p-2f /* 1 / √(2π) */

/* Φ(-|x|), bell = e^{-x²/2}. */
static __device__ __forceinline__ float tail_of(float x, float bell)
{
	return __fmul_rn(bell, gelu_mills(reciprocal_approx(__fmaf_rn(0.3f, fabsf(x), 1.0f))));
}

/* The erf form is max(x, 0) - |x| Φ(-|x|). |x| is capped where Φ is 0, to avoid infinity times 0. */
template <bool TANH> static __device__ __forceinline__ float gelu_of(float x)
{
	const float square = __fmul_rn(x, x);
	if (TANH)
		return __fdividef(x, 1.0f + __expf(__fmul_rn(-x, __fmaf_rn(CUBIC, square, SLOPE))));
	const float tail = tail_of(x, exp2_approx(__fmul_rn(square, -0x1.715476p-1f)));
	return __fmaf_rn(-fminf(fabsf(x), 100.0f), tail, fmaxf(x, 0.0f));
}

/* dy/dx. The tanh form, with s the logistic function of 2u, is s + x s (1 - s) d2u/dx. Both s and 1 - s come from
 * e^{-|2u|} without cancellation. Where x² is capped, s is 0 or 1. */
template <bool TANH> static __device__ __forceinline__ float gelu_slope(float x)
{
	if (TANH) {
		const float square = fminf(x * x, 1e3f);
		const float small = __expf(-fabsf(x) * (SLOPE + CUBIC * square)),
		            large = __fdividef(1.0f, 1.0f + small);
		const float s = x < 0.0f ? small * large : large;
		return s + x * (SLOPE + 3.0f * CUBIC * square) * (small * large * large);
	}
	const float bell = exp2_approx(__fmul_rn(__fmul_rn(x, x), -0x1.715476p-1f)), tail = tail_of(x, bell);
	return __fmaf_rn(x, DENSITY * bell, x < 0.0f ? tail : 1.0f - tail);
}

#endif
