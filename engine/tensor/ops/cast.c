/* cast: the same numbers in another type. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

value op_cast(graph *g, value x, dtype type)
{
	return graph_apply_one(g, OP_cast, &x, 1, &(cast_params){type});
}

status op_cast_check(op_call *call, error *err)
{
	const cast_params *p = call->params;
	TRY(check_real(call, 0, "x", err));
	if ((unsigned)p->type >= DTYPE_COUNT || !dtype_is_real(p->type))
		return error_set(err, STATUS_INVALID, "type", "type is %s, must be f32 or bf16",
		                 (unsigned)p->type < DTYPE_COUNT ? dtype_name(p->type) : "unknown");
	check_output(call, 0, p->type, call->in[0].shape);
	return STATUS_OK;
}

/* graph_accumulate casts dy to the type of x's gradient. */
status op_cast_backward(graph *g, const op_node *node)
{
	graph_accumulate(g, node->in[0], graph_output_gradient(g, node, 0));
	return STATUS_OK;
}
