/* The op table, made from ops.def. */
#include "engine/tensor/op.h"

#include "engine/tensor/ops.h"
#include "engine/tensor/ops/table.h"

#define BACKWARD_0(name) NULL
#define BACKWARD_1(name) op_##name##_backward

/* clang-format off */
static const op table[OP_COUNT] = {
#define OP(name, min, max, outputs, params, mutates, in_place, has_backward) \
	[OP_##name] = {#name, min, max, outputs, sizeof(params), mutates, in_place, \
		       op_##name##_check, BACKWARD_##has_backward(name)},
#include "engine/tensor/ops.def"
#undef OP
};
/* clang-format on */

const op *op_get(op_id id)
{
	return &table[id];
}
