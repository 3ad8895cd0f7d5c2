/* linear: y = alpha (x Wᵀ + b). */
#include <math.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

static linear_values linear_apply(graph *g, value x, value weight, value bias, linear_params params)
{
	value out[2];
	graph_apply(g, OP_linear, (value[]){x, weight, bias}, 3, &params, out);
	return (linear_values){out[0], out[1]};
}

value op_linear(graph *g, value x, value weight, value bias, float alpha)
{
	return linear_apply(g, x, weight, bias, (linear_params){.alpha = alpha}).y;
}

value op_linear_codes(graph *g, value x, value weight, float step, float alpha)
{
	return linear_apply(g, x, weight, VALUE_NONE, (linear_params){.alpha = alpha, .step = step}).y;
}

linear_values op_linear_maxima(graph *g, value x, value weight, value bias, float alpha)
{
	return linear_apply(g, x, weight, bias, (linear_params){.alpha = alpha, .maxima = true});
}

status op_linear_check(op_call *call, error *err)
{
	TRY(check_real(call, 0, "x", err));
	TRY(check_weight(call, 0, "x", 1, 2, err));
	shape out = call->in[0].shape;
	if (out.rank < 1)
		return error_set(err, STATUS_INVALID, "x", "x is a scalar, needs rows");
	out.dim[out.rank - 1] = call->in[1].shape.dim[0];
	check_output(call, 0, call->in[0].type, out);
	const linear_params *p = call->params;
	if (!(p->step >= 0 && isfinite(p->step)))
		return error_set(err, STATUS_INVALID, "step", "step %g is below 0, or not finite", (double)p->step);
	if (p->maxima)
		TRY(check_type(call, 0, "x", DTYPE_F32, err));
	out.dim[out.rank - 1] = p->maxima ? (out.dim[out.rank - 1] + LINEAR_BLOCK - 1) / LINEAR_BLOCK : 0;
	check_output(call, 1, DTYPE_F32, out);
	if (!p->maxima)
		check_by_rows(call, 1, 1);
	return STATUS_OK;
}

status op_linear_backward(graph *g, const op_node *node)
{
	const linear_params *p = node->params;
	value x = node->in[0], weight = node->in[1], bias = node->in[2], dy = graph_output_gradient(g, node, 0);
	if (bias != VALUE_NONE && graph_gradient_rule(g).collects)
		graph_collect(g, SUM_BIASES, op_dot_rows(g, dy, bias, p->alpha));
	if (graph_needs_gradient(g, weight))
		graph_accumulate(g, weight, op_matmul_wide(g, dy, x, true, false, p->alpha));
	if (graph_needs_gradient(g, bias))
		graph_accumulate(g, bias, op_sum_rows(g, dy, p->alpha));
	if (graph_needs_gradient(g, x)) /* last: what reads dx follows, and a backend may run both as one */
		graph_accumulate(g, x, op_matmul(g, dy, weight, false, false, p->alpha));
	return STATUS_OK;
}
