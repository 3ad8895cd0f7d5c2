/* gelu.h - the tail of the normal distribution, as used by every backend that approximates it. */
#ifndef ENGINE_TENSOR_OPS_GELU_H
#define ENGINE_TENSOR_OPS_GELU_H

#include "engine/base/device_function.h"

/* e^{t²/2} (1 - Φ(t)) for t >= 0, with Φ the normal distribution (Mills' ratio over √(2π)). This is the tail without
 * the factor e^{-t²/2}. A polynomial in k = 1 / (1 + 0.3 t), since it falls like 1 / t. */
DEVICE_FUNCTION float gelu_mills(float k)
{
	float p = 0.03593174f;
	p = p * k + -0.158276007f;
	p = p * k + 0.208206564f;
	p = p * k + -0.0553938188f;
	p = p * k + 0.129469186f;
	p = p * k + 0.0996375009f;
	p = p * k + 0.120798364f;
	p = p * k + 0.119626395f;
	return p * k;
}

#endif
