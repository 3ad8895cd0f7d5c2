/* normalize, normalize_grad. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

#include <float.h>
#include <inttypes.h>

value op_normalize(graph *g, value x, value gain, normalize_params params)
{
	value out[2];
	graph_apply(g, OP_normalize, (value[]){x, gain}, 2, &params, out);
	return out[0];
}

/* x and gain, arguments 0 and 1. */
static status check_arguments(const op_call *call, const normalize_params *p, error *err)
{
	TRY(check_real(call, 0, "x", err));
	const int64_t width = shape_last(call->in[0].shape);
	if (p->groups < 1 || width % p->groups != 0)
		return error_set(err, STATUS_INVALID, "groups", "%" PRId64 " groups do not divide %" PRId64 " channels",
		                 p->groups, width);
	if (!(p->floor >= FLT_MIN && p->floor <= FLT_MAX))
		return error_set(err, STATUS_INVALID, "floor", "floor is %g, must be a normal number above 0",
		                 (double)p->floor);
	if (!(p->eps >= 0 && p->eps <= FLT_MAX))
		return error_set(err, STATUS_INVALID, "eps", "eps is %g, must be a number from 0", (double)p->eps);
	if (!check_present(call, 1))
		return STATUS_OK;
	if (shape_count(call->in[1].shape) == 1)
		return check_count(call, 1, "gain", DTYPE_F32, 1, "one for all channels", err);
	return check_shape(call, 1, "gain", DTYPE_F32, SHAPE1(width), "x's last dimension, or 1", err);
}

status op_normalize_check(op_call *call, error *err)
{
	const normalize_params *p = call->params;
	TRY(check_arguments(call, p, err));
	check_output(call, 0, call->in[0].type, call->in[0].shape);
	check_output(call, 1, DTYPE_F32, SHAPE1(shape_rows(call->in[0].shape) * p->groups));
	check_by_rows(call, 1, 3);
	return STATUS_OK;
}

status op_normalize_backward(graph *g, const op_node *node)
{
	normalize_params params = *(const normalize_params *)node->params;
	value in[] = {node->in[0], node->in[1], node->out[1], graph_output_gradient(g, node, 0)}, grads[2];
	params.frozen = graph_gradient_rule(g).frozen;
	TRY(graph_apply(g, OP_normalize_grad, in, 4, &params, grads));
	graph_accumulate(g, node->in[0], grads[0]);
	graph_accumulate(g, node->in[1], grads[1]);
	return STATUS_OK;
}

status op_normalize_grad_check(op_call *call, error *err)
{
	const normalize_params *p = call->params;
	TRY(check_arguments(call, p, err));
	const shape x = call->in[0].shape;
	TRY(check_shape(call, 2, "inverse", DTYPE_F32, SHAPE1(shape_rows(x) * p->groups), "one for each group", err));
	TRY(check_like(call, 3, "dy", 0, "x", err));
	check_output(call, 0, call->in[0].type, x);
	check_output(call, 1, DTYPE_F32, check_present(call, 1) ? call->in[1].shape : SHAPE1(0));
	check_by_rows(call, 13, 1); /* as long as dgain is not wanted */
	return STATUS_OK;
}
