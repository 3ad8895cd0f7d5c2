/* bf16_backend.h - a backend that computes in bf16, wrapped around one that cannot.
 *
 * It does literally what ops.h says of [real] arguments: widen bf16 arguments to f32, run the inner backend's f32
 * kernel, and round its bf16 outputs once, to nearest even. All other arguments (f32, integers, state) are passed
 * through. So are ops that take bf16 themselves (cast, the optimizers' `narrow`).
 *
 * Around the reference kernels this is the definition of every op in bf16, with which op_trial.h compares other
 * backends. Models can be trained on it, slowly. Single-threaded. */
#ifndef TESTS_UNIT_SUPPORT_BF16_BACKEND_H
#define TESTS_UNIT_SUPPORT_BF16_BACKEND_H

#include "engine/tensor/backend.h"

/* Takes ownership of `inner`, a backend with host_memory; aborts when out of memory. Its name is "bf16". */
backend *bf16_backend_new(backend *inner);

#endif
