/* kernels.h - the table of kernels: cuda_<op> for every op, and cuda_<op>_scratch where one needs scratch memory (a
 * weak symbol, NULL if undefined). */
#ifndef CUDA_KERNELS_H
#define CUDA_KERNELS_H

#include "cuda/backend.h"

#define OP(name, ...) status cuda_##name(backend *b, const op_call *call);
#include "engine/tensor/ops.def"
#undef OP
#define OP(name, ...) __attribute__((weak)) size_t cuda_##name##_scratch(const backend *b, const op_call *call);
#include "engine/tensor/ops.def"
#undef OP

#endif
