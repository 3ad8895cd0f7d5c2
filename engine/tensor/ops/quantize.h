/* quantize.h - the arithmetic of quantize, whose steps and codes have the same bits on every backend.
 *
 * Σ x² of up to QUANTIZE_PART numbers: lane l sums the squares of the elements l, l + 32, … in order. The lanes are
 * added in halves, l += l + 16, 8, 4, 2, 1. For more numbers, the sums of parts are added in the same way, in place of
 * squares, until one is left. A square of a float is exact in double, so contraction to a fused multiply-add changes
 * nothing. */
#ifndef ENGINE_TENSOR_OPS_QUANTIZE_H
#define ENGINE_TENSOR_OPS_QUANTIZE_H

#include <math.h>
#include <stdint.h>

#include "engine/base/device_function.h"

enum { QUANTIZE_PART = 1024, QUANTIZE_LANES = 32 };
#define QUANTIZE_FIXED_STEP (1.0f / 32)

/* Step for n numbers whose squares sum to `squares`; 0 for n = 0. */
DEVICE_FUNCTION float quantize_step(double squares, int64_t n)
{
	return n > 0 ? (float)(sqrt(squares / (double)n) / 32.0) : 0.0f;
}

/* The step of a whole tensor of n numbers, on the host. */
float quantize_tensor_step(const float *x, int64_t n);

/* The 8-bit code as a float; NaN stays NaN. */
DEVICE_FUNCTION float quantize_code(float x, float step)
{
	const float q = step == 0.0f ? 0.0f : rintf(x / step);
	return q < -128.0f ? -128.0f : q > 127.0f ? 127.0f : q;
}

/* The 8-bit code of a number from quantize: exactly the code it was read from. 0 for NaN. */
DEVICE_FUNCTION int8_t quantize_byte(float x, float step)
{
	const float q = quantize_code(x, step);
	return q == q ? (int8_t)q : (int8_t)0;
}

/* Reduce a code to this many bits. */
DEVICE_FUNCTION float quantize_recode(float q, int64_t bits)
{
	if (bits == 8)
		return q;
	if (bits == 2)
		return q < -24.0f ? -36.0f : q < 0.0f ? -12.0f : q <= 24.0f ? 12.0f : 36.0f;
	const float c = truncf((q + 76.0f) / 9.0f);
	return 9.0f * (c < 0.0f ? 0.0f : c > 15.0f ? 15.0f : c) - 68.0f;
}

/* The value of x after a round trip through its code. */
DEVICE_FUNCTION float quantize_value(float x, float step, int64_t bits)
{
	return quantize_recode(quantize_code(x, step), bits) * step;
}

#endif
