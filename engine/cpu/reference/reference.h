/* reference.h - one plain scalar kernel per op: the readable definition.
 *
 * Sums run in double, in index order; results are rounded to float once. No OpenMP, no intrinsics, no approximation:
 * speed is not a goal. The formula of each op is in engine/tensor/ops.h and, with shapes, above its kernel. */
#ifndef ENGINE_CPU_REFERENCE_REFERENCE_H
#define ENGINE_CPU_REFERENCE_REFERENCE_H

#include "engine/tensor/backend.h"
#include "engine/tensor/ops.h"

#define OP(name, ...) status reference_##name(backend *b, const op_call *call);
#include "engine/tensor/ops.def"
#undef OP

/* Scratch of the kernels that need double sums of a whole tensor; NULL if undefined. */
#define OP(name, ...) __attribute__((weak)) size_t reference_##name##_scratch(const backend *b, const op_call *call);
#include "engine/tensor/ops.def"
#undef OP

#endif
