/* gelu, gelu_grad. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

value op_gelu(graph *g, value x, bool tanh)
{
	return graph_apply_one(g, OP_gelu, &x, 1, &(gelu_params){tanh});
}

status op_gelu_check(op_call *call, error *err)
{
	TRY(check_real(call, 0, "x", err));
	check_output(call, 0, call->in[0].type, call->in[0].shape);
	check_by_rows(call, 1, 1);
	return STATUS_OK;
}

status op_gelu_backward(graph *g, const op_node *node)
{
	const float half = 0.5f; /* Φ(0) */
	if (graph_gradient_rule(g).frozen) {
		graph_accumulate(g, node->in[0],
		                 op_secant_grad(g, node->in[0], node->out[0], graph_output_gradient(g, node, 0), half));
		return STATUS_OK;
	}
	value dx;
	TRY(graph_apply(g, OP_gelu_grad, (value[]){node->in[0], graph_output_gradient(g, node, 0)}, 2, node->params,
	                &dx));
	graph_accumulate(g, node->in[0], dx);
	return STATUS_OK;
}

status op_gelu_grad_check(op_call *call, error *err)
{
	TRY(check_real(call, 0, "x", err));
	TRY(check_like(call, 1, "dy", 0, "x", err));
	check_output(call, 0, call->in[0].type, call->in[0].shape);
	check_by_rows(call, 3, 1);
	return STATUS_OK;
}
