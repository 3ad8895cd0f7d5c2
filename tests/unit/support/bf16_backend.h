/* bf16_backend.h - a backend that computes in bf16, made of one that cannot.
 *
 * What ops.h says of [real] arguments, literally: before a kernel runs, its bf16 arguments are widened to f32; the f32
 * kernel of the backend inside runs; what it made of bf16 outputs is rounded once, to nearest even. Every other
 * argument (f32, integers, state) goes through as it is, and so do the ops that take bf16 by themselves (cast, the
 * optimisers' `narrow`). Around the reference kernels it is the definition of every op in bf16, with which other
 * backends are compared (op_trial.h); and models can be trained on it, slowly. One thread. */
#ifndef TESTS_UNIT_SUPPORT_BF16_BACKEND_H
#define TESTS_UNIT_SUPPORT_BF16_BACKEND_H

#include "engine/tensor/backend.h"

/* Takes ownership of `inner`, a backend with host_memory; aborts when out of memory. Its name is "bf16". */
backend *bf16_backend_new(backend *inner);

#endif
