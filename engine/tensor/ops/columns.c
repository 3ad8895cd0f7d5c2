/* scale_columns, scale_columns_grad, mix_columns, mix_columns_grad. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

#include <inttypes.h>

value op_scale_columns(graph *g, value x, value w, int64_t group)
{
	return graph_apply_one(g, OP_scale_columns, (value[]){x, w}, 2, &(scale_columns_params){group});
}

static status check_group(const scale_columns_params *p, shape x, error *err)
{
	if (p->group < 1 || shape_last(x) % p->group != 0)
		return error_set(err, STATUS_INVALID, "group",
		                 "groups of %" PRId64 " do not divide %" PRId64 " channels", p->group, shape_last(x));
	return STATUS_OK;
}

status op_scale_columns_check(op_call *call, error *err)
{
	const scale_columns_params *p = call->params;
	TRY(check_real(call, 0, "x", err));
	const shape x = call->in[0].shape;
	TRY(check_group(p, x, err));
	TRY(check_count(call, 1, "w", DTYPE_F32, shape_last(x) / p->group, "one for each group of channels", err));
	check_output(call, 0, call->in[0].type, x);
	check_by_rows(call, 1, 1);
	return STATUS_OK;
}

status op_scale_columns_backward(graph *g, const op_node *node)
{
	const scale_columns_params *p = node->params;
	const value x = node->in[0], w = node->in[1], dy = graph_output_gradient(g, node, 0);
	if (graph_needs_gradient(g, x))
		graph_accumulate(g, x, op_scale_columns(g, dy, w, p->group));
	if (!graph_needs_gradient(g, w))
		return STATUS_OK;
	value dw;
	TRY(graph_apply(g, OP_scale_columns_grad, (value[]){x, dy}, 2, p, &dw));
	graph_accumulate(g, w, dw);
	return STATUS_OK;
}

status op_scale_columns_grad_check(op_call *call, error *err)
{
	const scale_columns_params *p = call->params;
	TRY(check_real(call, 0, "x", err));
	TRY(check_like(call, 1, "dy", 0, "x", err));
	TRY(check_group(p, call->in[0].shape, err));
	check_output(call, 0, DTYPE_F32, SHAPE1(shape_last(call->in[0].shape) / p->group));
	return STATUS_OK;
}

value op_mix_columns(graph *g, value x, value other, value w, int64_t row)
{
	return graph_apply_one(g, OP_mix_columns, (value[]){x, other, w}, 3, &(mix_columns_params){row});
}

/* x, other and w, arguments 0 to 2. */
static status check_mixture(const op_call *call, error *err)
{
	TRY(check_real(call, 0, "x", err));
	TRY(check_like(call, 1, "other", 0, "x", err));
	const mix_columns_params *p = call->params;
	const int64_t width = shape_last(call->in[0].shape), rows = width ? shape_count(call->in[2].shape) / width : 1;
	TRY(check_type(call, 2, "w", DTYPE_F32, err));
	if (shape_count(call->in[2].shape) != rows * width || p->row < 0 || p->row >= rows)
		return error_set(err, STATUS_INVALID, "w", "w must have a number for each channel in its row %" PRId64,
		                 p->row);
	return STATUS_OK;
}

status op_mix_columns_check(op_call *call, error *err)
{
	TRY(check_mixture(call, err));
	check_output(call, 0, call->in[0].type, call->in[0].shape);
	check_by_rows(call, 3, 1);
	return STATUS_OK;
}

status op_mix_columns_backward(graph *g, const op_node *node)
{
	value in[] = {node->in[0], node->in[1], node->in[2], graph_output_gradient(g, node, 0)}, grads[3];
	TRY(graph_apply(g, OP_mix_columns_grad, in, 4, node->params, grads));
	for (int i = 0; i < 3; i++)
		graph_accumulate(g, node->in[i], grads[i]);
	return STATUS_OK;
}

status op_mix_columns_grad_check(op_call *call, error *err)
{
	TRY(check_mixture(call, err));
	TRY(check_like(call, 3, "dy", 0, "x", err));
	check_output(call, 0, call->in[0].type, call->in[0].shape);
	check_output(call, 1, call->in[0].type, call->in[0].shape);
	check_output(call, 2, DTYPE_F32, call->in[2].shape);
	check_by_rows(call, 11, 3); /* as long as dw is not requested */
	return STATUS_OK;
}
