/* glu, glu_grad. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

#include <inttypes.h>

value op_glu(graph *g, value x, activation_kind kind)
{
	return graph_apply_one(g, OP_glu, &x, 1, &(glu_params){.kind = kind});
}

value op_glu_gate_first(graph *g, value x, activation_kind kind)
{
	return graph_apply_one(g, OP_glu, &x, 1, &(glu_params){.kind = kind, .gate_first = true});
}

static status check_halves(const op_call *call, const glu_params *p, shape *half, error *err)
{
	TRY(check_real(call, 0, "x", err));
	*half = call->in[0].shape;
	if (half->rank < 1 || shape_last(*half) % 2 != 0)
		return error_set(err, STATUS_INVALID, "x", "%" PRId64 " channels have no halves", shape_last(*half));
	half->dim[half->rank - 1] /= 2;
	if (p->kind < 0 || p->kind >= ACTIVATION_KINDS || p->kind == ACTIVATION_LOG_SIGMOID ||
	    p->kind == ACTIVATION_EXP)
		return error_set(err, STATUS_INVALID, "kind", "%d is no kind of gate", (int)p->kind);
	return STATUS_OK;
}

status op_glu_check(op_call *call, error *err)
{
	shape half;
	TRY(check_halves(call, call->params, &half, err));
	check_output(call, 0, call->in[0].type, half);
	check_by_rows(call, 1, 1);
	return STATUS_OK;
}

status op_glu_backward(graph *g, const op_node *node)
{
	glu_params params = *(const glu_params *)node->params;
	const graph_rule rule = graph_gradient_rule(g);
	value dx;
	params.frozen = rule.frozen;
	params.share = params.kind == ACTIVATION_SIGMOID ? 1 : rule.share;
	TRY(graph_apply(g, OP_glu_grad, (value[]){node->in[0], graph_output_gradient(g, node, 0)}, 2, &params, &dx));
	graph_accumulate(g, node->in[0], dx);
	return STATUS_OK;
}

status op_glu_grad_check(op_call *call, error *err)
{
	shape half;
	TRY(check_halves(call, call->params, &half, err));
	TRY(check_type(call, 1, "dy", call->in[0].type, err));
	const shape dy = call->in[1].shape;
	if (shape_rows(dy) != shape_rows(half) || shape_last(dy) != shape_last(half))
		return error_set(err, STATUS_INVALID, "dy", "dy must have x's rows, half as long");
	check_output(call, 0, call->in[0].type, call->in[0].shape);
	check_by_rows(call, 3, 1);
	return STATUS_OK;
}
