/* gru, gru_grad. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

value op_gru(graph *g, value a, value b, value h)
{
	return graph_apply_one(g, OP_gru, (value[]){a, b, h}, 3, &(gru_params){.frozen = false});
}

static status check_gates(const op_call *call, error *err)
{
	TRY(check_real(call, 2, "h", err));
	const shape h = call->in[2].shape;
	TRY(check_type(call, 0, "a", call->in[2].type, err));
	const shape a = call->in[0].shape;
	if (shape_rows(a) != shape_rows(h) || shape_last(a) != 3 * shape_last(h))
		return error_set(err, STATUS_INVALID, "a", "a must have h's rows, three times as long");
	return check_like(call, 1, "b", 0, "a", err);
}

status op_gru_check(op_call *call, error *err)
{
	TRY(check_gates(call, err));
	check_output(call, 0, call->in[2].type, call->in[2].shape);
	check_by_rows(call, 7, 1);
	return STATUS_OK;
}

status op_gru_backward(graph *g, const op_node *node)
{
	const gru_params params = {graph_gradient_rule(g).frozen};
	value in[] = {node->in[0], node->in[1], node->in[2], graph_output_gradient(g, node, 0)}, grads[3];
	TRY(graph_apply(g, OP_gru_grad, in, 4, &params, grads));
	for (int i = 0; i < 3; i++)
		graph_accumulate(g, node->in[i], grads[i]);
	return STATUS_OK;
}

status op_gru_grad_check(op_call *call, error *err)
{
	TRY(check_gates(call, err));
	TRY(check_like(call, 3, "dy", 2, "h", err));
	for (int i = 0; i < 3; i++)
		check_output(call, i, call->in[i].type, call->in[i].shape);
	check_by_rows(call, 15, 7);
	return STATUS_OK;
}
