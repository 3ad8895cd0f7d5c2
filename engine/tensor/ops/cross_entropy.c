/* cross_entropy, cross_entropy_grad. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

cross_entropy_values op_cross_entropy(graph *g, value logits, value label, float smoothing)
{
	value out[3];
	graph_apply(g, OP_cross_entropy, (value[]){logits, label}, 2, &(cross_entropy_params){smoothing}, out);
	return (cross_entropy_values){out[0], out[1], out[2]};
}

static status check_cross_entropy(const op_call *call, error *err)
{
	const cross_entropy_params *p = call->params;
	TRY(check_type(call, 0, "logits", DTYPE_F32, err));
	shape logits = call->in[0].shape;
	if (logits.rank < 1 || shape_last(logits) < 1)
		return error_set(err, STATUS_INVALID, "logits", "logits need at least one class");
	TRY(check_count(call, 1, "label", DTYPE_I32, shape_rows(logits), "one for each row of logits", err));
	if (!(p->smoothing >= 0 && p->smoothing <= 1))
		return error_set(err, STATUS_INVALID, "smoothing", "smoothing is %g, must be between 0 and 1",
		                 (double)p->smoothing);
	return STATUS_OK;
}

status op_cross_entropy_check(op_call *call, error *err)
{
	TRY(check_cross_entropy(call, err));
	check_output(call, 0, DTYPE_F32, SHAPE0());
	check_output(call, 1, DTYPE_F32, SHAPE1(shape_rows(call->in[0].shape)));
	check_output(call, 2, DTYPE_F32, SHAPE0());
	return STATUS_OK;
}

status op_cross_entropy_backward(graph *g, const op_node *node)
{
	value in[] = {node->in[0], node->in[1], node->out[1], node->out[2], graph_output_gradient(g, node, 0)};
	value dlogits;
	TRY(graph_apply(g, OP_cross_entropy_grad, in, 5, node->params, &dlogits));
	graph_accumulate(g, node->in[0], dlogits);
	return STATUS_OK;
}

status op_cross_entropy_grad_check(op_call *call, error *err)
{
	TRY(check_cross_entropy(call, err));
	shape logits = call->in[0].shape;
	TRY(check_shape(call, 2, "lse", DTYPE_F32, SHAPE1(shape_rows(logits)), "one for each row of logits", err));
	TRY(check_shape(call, 3, "count", DTYPE_F32, SHAPE0(), "a scalar", err));
	TRY(check_shape(call, 4, "dloss", DTYPE_F32, SHAPE0(), "a scalar", err));
	check_output(call, 0, DTYPE_F32, logits);
	return STATUS_OK;
}
