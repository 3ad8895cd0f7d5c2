/* position_bias.h - entries of position bias tables, the same on every backend. */
#ifndef ENGINE_TENSOR_OPS_POSITION_BIAS_H
#define ENGINE_TENSOR_OPS_POSITION_BIAS_H

#include "engine/base/device_function.h"

#include <stdint.h>

/* One side of t5_buckets: `side` buckets, of which each of the first `exact` has one distance. */
typedef struct t5_side {
	int64_t side, exact;
	float log_most; /* ln(max_distance / exact) */
} t5_side;

/* Bucket of a distance >= 0, with log_ratio = ln(distance / exact) where that is at least 0. */
DEVICE_FUNCTION int64_t t5_bucket(t5_side s, int64_t distance, float log_ratio)
{
	if (distance < s.exact)
		return distance;
	const float past = log_ratio / s.log_most * (float)(s.side - s.exact);
	const int64_t last = s.side - 1;
	return past < (float)(last - s.exact) ? s.exact + (int64_t)past : last;
}

/* log2 of the slope of a head of `heads`, without log_slopes. */
DEVICE_FUNCTION double alibi_exponent(int64_t heads, int64_t head)
{
	int64_t power = 1;
	while (2 * power <= heads)
		power *= 2;
	if (head < power)
		return -8.0 * (double)(head + 1) / (double)power;
	return -8.0 * (double)(2 * (head - power) + 1) / (double)(2 * power);
}

#endif
