/* table.h - prototypes of the functions that rows of ops.def refer to. */
#ifndef ENGINE_TENSOR_OPS_TABLE_H
#define ENGINE_TENSOR_OPS_TABLE_H

#include "engine/tensor/graph.h"
#include "engine/tensor/op.h"

#define PROTOTYPE_0(name)
#define PROTOTYPE_1(name) status op_##name##_backward(graph *g, const op_node *node);
#define OP(name, min, max, outputs, params, mutates, in_place, has_backward)                                           \
	status op_##name##_check(op_call *call, error *err);                                                           \
	PROTOTYPE_##has_backward(name)
#include "engine/tensor/ops.def"
#undef OP
#undef PROTOTYPE_0
#undef PROTOTYPE_1

#endif
