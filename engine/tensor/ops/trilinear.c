/* trilinear, trilinear_grad. */
#include "engine/tensor/ops/trilinear.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

#include <inttypes.h>

value op_trilinear(graph *g, value k, value u)
{
	return graph_apply_one(g, OP_trilinear, (value[]){k, u}, 2, NULL);
}

/* k and u; p's shape into *product. */
static status check_factors(const op_call *call, shape *product, error *err)
{
	TRY(check_real(call, 0, "k", err));
	*product = call->in[0].shape;
	const int64_t width = shape_last(*product);
	if (product->rank < 1 || width % TRILINEAR_TAPS != 0 || width > INT32_MAX / TRILINEAR_TAPS)
		return error_set(err, STATUS_INVALID, "k", "k has %" PRId64 " channels, must have a multiple of %d",
		                 width, TRILINEAR_TAPS);
	product->dim[product->rank - 1] = TRILINEAR_TAPS * width;
	return check_like(call, 1, "u", 0, "k", err);
}

status op_trilinear_check(op_call *call, error *err)
{
	shape product;
	TRY(check_factors(call, &product, err));
	check_output(call, 0, call->in[0].type, product);
	check_by_rows(call, 3, 1);
	return STATUS_OK;
}

/* In a frozen network the two factors share the product. */
status op_trilinear_backward(graph *g, const op_node *node)
{
	const graph_rule rule = graph_gradient_rule(g);
	const value k = node->in[0], u = node->in[1];
	value grads[2], in[] = {k, u, graph_output_gradient(g, node, 0)};
	TRY(graph_apply(g, OP_trilinear_grad, in, 3, NULL, grads));
	if (graph_needs_gradient(g, k))
		graph_accumulate(g, k, rule.frozen ? op_scale(g, grads[0], 1 - rule.share) : grads[0]);
	if (graph_needs_gradient(g, u))
		graph_accumulate(g, u, rule.frozen ? op_scale(g, grads[1], rule.share) : grads[1]);
	return STATUS_OK;
}

status op_trilinear_grad_check(op_call *call, error *err)
{
	shape product;
	char text[96];
	TRY(check_factors(call, &product, err));
	TRY(check_type(call, 2, "dp", call->in[0].type, err));
	const shape dp = call->in[2].shape;
	if (shape_last(dp) != shape_last(product) || shape_rows(dp) != shape_rows(product))
		return error_set(err, STATUS_INVALID, "dp", "dp is %s, must have %d times the channels of k",
		                 shape_text(dp, text, sizeof text), TRILINEAR_TAPS);
	check_output(call, 0, call->in[0].type, call->in[0].shape);
	check_output(call, 1, call->in[0].type, call->in[0].shape);
	check_by_rows(call, 7, 3);
	return STATUS_OK;
}
