/* activation.h - the functions of activation_kind, in double: f(x), f'(x), and (f(x) - f(0)) / x with its limit at 0.
 */
#ifndef ENGINE_CPU_REFERENCE_ACTIVATION_H
#define ENGINE_CPU_REFERENCE_ACTIVATION_H

#include "engine/tensor/ops.h"

double reference_activation_value(activation_kind kind, double x);
double reference_activation_slope(activation_kind kind, double x);
double reference_activation_secant(activation_kind kind, double x);

#endif
