/* linear_cross_entropy: the vocabulary product and its loss.
 *
 * The gradients are by-products of the forward, because that is where a row's logits are: the backward
 * would have to compute them again. Unwanted ones are not computed. */
#include "engine/tensor/graph_internal.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

linear_cross_entropy_values op_linear_cross_entropy(graph *g, value hidden, value weight, value bias, value label,
                                                    value row_weight, linear_cross_entropy_params params)
{
	value out[7];
	graph_apply(g, OP_linear_cross_entropy, (value[]){hidden, weight, bias, label, row_weight}, 5, &params, out);
	return (linear_cross_entropy_values){out[0], out[1], out[5], out[6]};
}

status op_linear_cross_entropy_check(op_call *call, error *err)
{
	const linear_cross_entropy_params *p = call->params;
	TRY(check_real(call, 0, "hidden", err));
	shape hidden = call->in[0].shape;
	TRY(check_weight(call, 0, "hidden", 1, 2, err));
	shape weight = call->in[1].shape;
	if (hidden.rank < 1 || weight.dim[0] < 1)
		return error_set(err, STATUS_INVALID, "weight", "hidden needs rows and weight at least one class");
	TRY(check_count(call, 3, "label", DTYPE_I32, shape_rows(hidden), "one for each row of hidden", err));
	if (check_present(call, 4))
		TRY(check_count(call, 4, "row_weight", DTYPE_F32, shape_rows(hidden), "one for each row of hidden",
		                err));
	if (!(p->smoothing >= 0 && p->smoothing <= 1))
		return error_set(err, STATUS_INVALID, "smoothing", "smoothing is %g, must be between 0 and 1",
		                 (double)p->smoothing);
	check_output(call, 0, DTYPE_F32, SHAPE0());
	check_output(call, 1, DTYPE_F32, SHAPE0());
	check_output(call, 2, call->in[0].type, hidden);
	check_output(call, 3, DTYPE_F32, weight);
	check_output(call, 4, DTYPE_F32, SHAPE1(weight.dim[0]));
	check_output(call, 5, DTYPE_F32, SHAPE1(shape_rows(hidden)));
	check_output(call, 6, DTYPE_F32, SHAPE1(shape_rows(hidden)));
	return STATUS_OK;
}

/* The gradient of a loss that is the end of the graph is 1: nothing to scale. */
static bool is_one(const graph *g, value v)
{
	int producer = graph_value(g, v)->producer;
	const op_node *node = producer < 0 ? NULL : graph_node(g, producer);
	return node && node->id == OP_fill && ((const fill_params *)node->params)->value == 1.0f;
}

status op_linear_cross_entropy_backward(graph *g, const op_node *node)
{
	value dloss = graph_output_gradient(g, node, 0);
	if (dtype_is_panel(graph_value(g, node->in[1])->type))
		return graph_fail(g, STATUS_UNSUPPORTED, "weight", "packed weights have no gradient");
	for (int i = 0; i < 3; i++) {
		value unit = node->out[2 + i];
		if (graph_needs_gradient(g, node->in[i]))
			graph_accumulate(g, node->in[i], is_one(g, dloss) ? unit : op_scale_by(g, unit, dloss));
	}
	return STATUS_OK;
}
