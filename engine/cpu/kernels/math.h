/* math.h - exp, log and the normal distribution's tail without branches or calls, so that a loop over them
 * becomes vector code on every instruction set.
 *
 * Each is a range reduction and a minimax polynomial (fitted to the relative error by
 * Lawson's iteration on Chebyshev nodes). Errors against double, in units of the last
 * place, over every float of the domain (tests/unit/cpu/test_math.c):
 *
 *   math_exp   2    any float; e^x below 2^-126 is 0, above 2^127.5 (x > 88.37) inf
 *   math_log   2    positive normal floats
 *   math_mills 9    0 to 13, where e^{-t²/2} ends
 *
 * The C library is slightly more accurate, but its vector forms are not reliable: they depend on the compiler, on the
 * library's version and on fast-math. */
#ifndef ENGINE_CPU_KERNELS_MATH_H
#define ENGINE_CPU_KERNELS_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "engine/tensor/ops/gelu.h"

static inline uint32_t math_bits(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	return bits;
}

static inline float math_float(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

/* e^r - 1 for |r| <= ln 2 / 2: r + r² P(r). */
static inline float math_exp_less_one_near(float r)
{
	float p = 0.00138145976f;
	p = p * r + 0.00836871658f;
	p = p * r + 0.041668389f;
	p = p * r + 0.166665211f;
	p = p * r + 0.49999994f;
	return r + r * r * p;
}

/* e^x for x from -87 to 88; math_exp_near(0) is exactly 1.
 * x = n ln 2 + r, |r| <= ln 2 / 2:  e^x = 2^n e^r. Adding 1.5·2^23 rounds to an integer and leaves n in the low bits;
 * ln 2 is split so that n·high is exact. */
static inline float math_exp_near(float x)
{
	const float round = 0x1.8p23f, log2e = 0x1.715476p0f, high = 0x1.62e4p-1f, low = 0x1.7f7d1cp-20f;
	float shifted = x * log2e + round;
	float n = shifted - round;
	float y = 1.0f + math_exp_less_one_near((x - n * high) - n * low);
	return y * math_float((math_bits(shifted) - math_bits(round) + 127) << 23);
}

/* e^x. math_exp(0) is exactly 1, and e^-inf exactly 0. */
static inline float math_exp(float x)
{
	float y = math_exp_near(x);
	y = x < -87.3365f ? 0.0f : y;
	return x > 88.376f ? INFINITY : y;
}

/* log x for a positive normal x = 2^e (1 + f), √½ <= 1 + f < √2:
 * log x = e ln 2 + f - f²/2 + f³ P(f). */
static inline float math_log(float x)
{
	const float high = 0x1.62e4p-1f, low = 0x1.7f7d1cp-20f;
	uint32_t bits = math_bits(x) - 0x3f3504f3u; /* √½ becomes exponent 0 */
	float e = (float)((int32_t)bits >> 23);
	float f = math_float((bits & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
	float p = -0.0763449296f;
	p = p * f + 0.12761575f;
	p = p * f + -0.131601825f;
	p = p * f + 0.142017588f;
	p = p * f + -0.166233569f;
	p = p * f + 0.200012267f;
	p = p * f + -0.250008196f;
	p = p * f + 0.333333313f;
	float square = f * f;
	float tail = square * f * p + e * low;
	return (f - (0.5f * square - tail)) + e * high;
}

/* tanh x: (1 - e) / (1 + e) with e = e^{-2|x|}; near 0, where that is a difference, the series. */
static inline float math_tanh(float x)
{
	const float t = fabsf(x), e = math_exp(-2.0f * t), square = x * x;
	const float far = (1.0f - e) / (1.0f + e);
	const float near = ((-0x1.ba1ba2p-5f * square + 0x1.111112p-3f) * square - 0x1.555556p-2f) * square * x + x;
	return t < 0.25f ? near : copysignf(far, x);
}

/* gelu_mills at t >= 0. */
static inline float math_mills(float t)
{
	return gelu_mills(1.0f / (1.0f + 0.3f * t));
}

#endif
