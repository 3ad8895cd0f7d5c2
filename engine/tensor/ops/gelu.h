/* gelu.h - the normal distribution's tail, as every backend that approximates it does. */
#ifndef ENGINE_TENSOR_OPS_GELU_H
#define ENGINE_TENSOR_OPS_GELU_H

#include "engine/base/device_function.h"

/* e^{t²/2} (1 - Φ(t)) for t >= 0, Φ the normal distribution: the part of its tail that is not e^{-t²/2}
 * (Mills' ratio over √(2π)), a polynomial in k = 1 / (1 + 0.3 t) since it falls like 1 / t. */
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
