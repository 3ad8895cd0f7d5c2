/* cuda_bf16.h of the emulator: bfloat16 as the upper half of a float, rounded to nearest even. */
#ifndef EMULATOR_CUDA_BF16_H
#define EMULATOR_CUDA_BF16_H

#include <cuda_runtime.h>

struct __nv_bfloat16 {
	uint16_t bits;
};
struct __attribute__((aligned(4))) __nv_bfloat162 {
	__nv_bfloat16 x, y;
};

static inline float __bfloat162float(__nv_bfloat16 x)
{
	return __uint_as_float((unsigned)x.bits << 16);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
	unsigned u = __float_as_uint(x);
	if (x != x)
		return {0x7fff};
	return {(uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
static inline float2 __bfloat1622float2(__nv_bfloat162 x)
{
	return {__bfloat162float(x.x), __bfloat162float(x.y)};
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
	return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}

#endif
