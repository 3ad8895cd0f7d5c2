/* decay.h - scores of attention that decays with distance, in natural exponents, the same on every backend; and the
 * positions of the arguments of decay_merge and its gradient. */
#ifndef ENGINE_TENSOR_OPS_DECAY_H
#define ENGINE_TENSOR_OPS_DECAY_H

#include <stdint.h>

#include "engine/base/device_function.h"

#define DECAY_LN2 0.69314718055994530942
#define DECAY_HIDDEN (-1e30f) /* not -inf: the scores of a row stay finite, and e^x is 0 beside a sink in any case */

/* Inputs of both ops, then of each. */
enum { DECAY_Q, DECAY_FIRST_K, DECAY_FIRST_V, DECAY_Y, DECAY_LOG_NORMALIZER };
enum { DECAY_POSITIONS = 5, DECAY_K, DECAY_V, DECAY_MASK, DECAY_BIASES, DECAY_INPUTS };
enum { DECAY_DU = 5, DECAY_GRAD_POSITIONS, DECAY_GRAD_INPUTS };

/* The factor of q·k. */
DEVICE_FUNCTION float decay_scale(float scale)
{
	return (float)((double)scale * DECAY_LN2);
}

/* Bias of a score at a distance ≥ 1. */
DEVICE_FUNCTION float decay_bias(float slope, float hyper, int64_t distance)
{
	const double d = (double)distance;
	return (float)(DECAY_LN2 * ((double)hyper / d - (double)slope * d));
}

/* Bias at any distance, for a table of biases. */
DEVICE_FUNCTION float decay_table_bias(float slope, float hyper, int64_t distance)
{
	return distance == 0 ? DECAY_HIDDEN : decay_bias(slope, hyper, distance < 0 ? -distance : distance);
}

#endif
