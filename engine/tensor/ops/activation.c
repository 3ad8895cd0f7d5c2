/* activation, activation_grad. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

value op_activation(graph *g, value x, activation_kind kind)
{
	return graph_apply_one(g, OP_activation, &x, 1, &(activation_params){.kind = kind});
}

/* gelu's forms have an op of their own. */
static status check_kind(const activation_params *p, error *err)
{
	if (p->kind < 0 || p->kind >= ACTIVATION_GELU)
		return error_set(err, STATUS_INVALID, "kind", "%d is no kind of activation", (int)p->kind);
	return STATUS_OK;
}

status op_activation_check(op_call *call, error *err)
{
	TRY(check_real(call, 0, "x", err));
	TRY(check_kind(call->params, err));
	check_output(call, 0, call->in[0].type, call->in[0].shape);
	check_by_rows(call, 1, 1);
	return STATUS_OK;
}

static float value_at_zero(activation_kind kind)
{
	return kind == ACTIVATION_SIGMOID       ? 0.5f
	       : kind == ACTIVATION_LOG_SIGMOID ? -0x1.62e43p-1f
	       : kind == ACTIVATION_EXP         ? 1.0f
	                                        : 0.0f;
}

status op_activation_backward(graph *g, const op_node *node)
{
	activation_params params = *(const activation_params *)node->params;
	const graph_rule rule = graph_gradient_rule(g);
	const value dy = graph_output_gradient(g, node, 0);
	value dx;
	params.frozen = rule.frozen;
	const float at_zero = value_at_zero(params.kind);
	if (rule.frozen && rule.collects && at_zero != 0) {
		/* dy · f(0) is a bias's part. */
		const shape s = SHAPE1(shape_last(graph_value(g, dy)->shape));
		graph_collect(g, SUM_BIASES, op_dot_rows(g, dy, op_fill(g, s, at_zero), 1));
	}
	TRY(graph_apply(g, OP_activation_grad, (value[]){node->in[0], dy}, 2, &params, &dx));
	graph_accumulate(g, node->in[0], dx);
	return STATUS_OK;
}

status op_activation_grad_check(op_call *call, error *err)
{
	TRY(check_real(call, 0, "x", err));
	TRY(check_like(call, 1, "dy", 0, "x", err));
	TRY(check_kind(call->params, err));
	check_output(call, 0, call->in[0].type, call->in[0].shape);
	check_by_rows(call, 3, 1);
	return STATUS_OK;
}
