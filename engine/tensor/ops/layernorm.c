/* layernorm, layernorm_grad. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

static value layernorm_apply(graph *g, value x, value weight, value bias, layernorm_params params)
{
	value out[3];
	graph_apply(g, OP_layernorm, (value[]){x, weight, bias}, 3, &params, out);
	return out[0];
}

value op_layernorm(graph *g, value x, value weight, value bias, float eps)
{
	return layernorm_apply(g, x, weight, bias, (layernorm_params){.eps = eps});
}

value op_layernorm_unbiased(graph *g, value x, value weight, value bias, float eps)
{
	return layernorm_apply(g, x, weight, bias, (layernorm_params){.eps = eps, .unbiased = true});
}

/* Check that a row has the degree of freedom that its deviation is divided by. */
static status check_width(bool unbiased, shape x, error *err)
{
	if (unbiased && shape_last(x) < 2)
		return error_set(err, STATUS_INVALID, "x",
		                 "x has rows of one channel, which have no unbiased deviation");
	return STATUS_OK;
}

status op_layernorm_check(op_call *call, error *err)
{
	const layernorm_params *p = call->params;
	TRY(check_real(call, 0, "x", err));
	shape x = call->in[0].shape;
	TRY(check_shape(call, 1, "weight", DTYPE_F32, SHAPE1(shape_last(x)), "x's last dimension", err));
	TRY(check_shape(call, 2, "bias", DTYPE_F32, SHAPE1(shape_last(x)), "x's last dimension", err));
	if (!(p->eps >= 0))
		return error_set(err, STATUS_INVALID, "eps", "eps is %g, must not be negative", (double)p->eps);
	TRY(check_width(p->unbiased, x, err));
	check_output(call, 0, call->in[0].type, x);
	check_output(call, 1, DTYPE_F32, SHAPE1(shape_rows(x)));
	check_output(call, 2, DTYPE_F32, SHAPE1(shape_rows(x)));
	check_by_rows(call, 1, 7);
	return STATUS_OK;
}

status op_layernorm_backward(graph *g, const op_node *node)
{
	value in[] = {node->in[0], node->in[1], node->out[1], node->out[2], graph_output_gradient(g, node, 0)};
	value grads[3];
	const graph_rule rule = graph_gradient_rule(g);
	const layernorm_params *p = node->params;
	const layernorm_grad_params params = {rule.frozen, p->unbiased, p->eps};
	if (rule.collects)
		graph_collect(g, SUM_BIASES, op_dot_rows(g, in[4], node->in[2], 1));
	TRY(graph_apply(g, OP_layernorm_grad, in, 5, &params, grads));
	for (int i = 0; i < 3; i++)
		graph_accumulate(g, node->in[i], grads[i]);
	return STATUS_OK;
}

status op_layernorm_grad_check(op_call *call, error *err)
{
	TRY(check_real(call, 0, "x", err));
	shape x = call->in[0].shape;
	TRY(check_shape(call, 1, "weight", DTYPE_F32, SHAPE1(shape_last(x)), "x's last dimension", err));
	TRY(check_shape(call, 2, "mean", DTYPE_F32, SHAPE1(shape_rows(x)), "x's rows", err));
	TRY(check_shape(call, 3, "rstd", DTYPE_F32, SHAPE1(shape_rows(x)), "x's rows", err));
	TRY(check_like(call, 4, "dy", 0, "x", err));
	TRY(check_width(((const layernorm_grad_params *)call->params)->unbiased, x, err));
	check_output(call, 0, call->in[0].type, x);
	check_output(call, 1, DTYPE_F32, SHAPE1(shape_last(x)));
	check_output(call, 2, DTYPE_F32, SHAPE1(shape_last(x)));
	check_by_rows(call, 29, 1); /* as long as dweight and dbias are not wanted */
	return STATUS_OK;
}
