/* Table of the kernels of one instruction set. A row of ops.def without a kernel does not link. */
#include "engine/cpu/kernels/kernels.h"

const cpu_kernels KERNEL(kernels) = {
    .kernel =
        {
#define OP(name, ...) [OP_##name] = KERNEL(name),
#include "engine/tensor/ops.def"
#undef OP
        },
    .scratch =
        {
#define OP(name, ...) [OP_##name] = KERNEL(name##_scratch),
#include "engine/tensor/ops.def"
#undef OP
        },
};
