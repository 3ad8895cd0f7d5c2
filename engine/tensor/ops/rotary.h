/* rotary.h - the arithmetic of rotary positions that every fast kernel shares.
 *
 * Pair i of R / 2 turns by the angle p · w_i, w_i = base^(-2i/R) rounded to f32. The product of a position and a float
 * is exact in double except for its last two bits, and whole half turns are subtracted in double. An angle at position
 * 2^31 is therefore exact to 3e-7, and one at 10^6 to a rounding of f32. */
#ifndef ENGINE_TENSOR_OPS_ROTARY_H
#define ENGINE_TENSOR_OPS_ROTARY_H

#include <stdint.h>
#include <string.h>

#include "engine/base/device_function.h"

/* cos and sin of an angle below 2^51, to about 1e-7: polynomials on -π/2 … π/2 (fitted to the relative error by
 * Lawson's iteration: 6e-9 and 4e-10). Adding 1.5 · 2^52 rounds to an integer and leaves its parity in the last bit. */
DEVICE_FUNCTION void rotary_turn(double angle, float *cosine, float *sine)
{
	const double round = 0x1.8p52, half_turns = angle * 0.31830988618379067154, shifted = half_turns + round;
	const double rest = (half_turns - (shifted - round)) * 3.14159265358979323846;
	const float x = (float)rest, z = x * x;
	const float c =
	    1.0f + z * (-0.5f + z * (0.041666657f + z * (-0.0013888569f + z * (2.4769304e-05f + z * -2.619381e-07f))));
	const float s = x + x * z * (-0.1666666f + z * (0.0083330665f + z * (-0.00019809602f + z * 2.6057803e-06f)));
	uint64_t bits;
	memcpy(&bits, &shifted, sizeof bits);
	const float sign = 1.0f - 2.0f * (float)(int32_t)(bits & 1);
	*cosine = sign * c;
	*sine = sign * s;
}

/* 2^z to about 1e-7 of it; 0 below 2^-126, infinity from 2^127.5 on. */
DEVICE_FUNCTION float rotary_power(double z)
{
	const double round = 0x1.8p52, near = z < -127.0 ? -127.0 : z > 127.5 ? 127.5 : z, shifted = near + round;
	const double whole = shifted - round;
	const float r = (float)((near - whole) * 0.69314718055994530942);
	const float y =
	    1.0f + (r + r * r *
	                    (0.49999994f +
	                     r * (0.166665211f + r * (0.041668389f + r * (0.00836871658f + r * 0.00138145976f)))));
	const uint32_t bits = (uint32_t)((int32_t)whole + 127) << 23;
	float factor;
	memcpy(&factor, &bits, sizeof factor);
	return y * factor;
}

/* The position that a row is turned by: its own or, with segments, that of the first row which its segment sees. */
DEVICE_FUNCTION int64_t rotary_place(int64_t position, int64_t segment, int64_t memory)
{
	if (segment == 0)
		return position;
	const int64_t first = position - (uint32_t)position % (uint32_t)segment - memory;
	return first > 0 ? first : 0;
}

#endif
