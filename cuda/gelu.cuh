/* gelu.cuh - gelu of a number, as gelu.cu says, with products and sums spelled so that every kernel gets the same bits. */
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

/* The erf form is max(x, 0) - |x| Φ(-|x|); |x| is cut off where Φ is 0, or it would be infinity times 0. */
template <bool TANH> static __device__ __forceinline__ float gelu_of(float x)
{
	const float square = __fmul_rn(x, x);
	if (TANH)
		return __fdividef(x, 1.0f + __expf(__fmul_rn(-x, __fmaf_rn(CUBIC, square, SLOPE))));
	const float tail = tail_of(x, exp2_approx(__fmul_rn(square, -0x1.715476p-1f)));
	return __fmaf_rn(-fminf(fabsf(x), 100.0f), tail, fmaxf(x, 0.0f));
}

#endif
