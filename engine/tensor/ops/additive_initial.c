/* additive_initial, additive_initial_grad: a token before a sequence. */
#include "engine/tensor/graph_internal.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

attention_values op_additive_initial(graph *g, attention_values pooled, value score, value mean, value x, value w,
                                     value mask)
{
	value out[2];
	graph_apply(g, OP_additive_initial, (value[]){pooled.pooled, pooled.log_normalizer, score, mean, x, w, mask}, 7,
	            NULL, out);
	return (attention_values){out[0], pooled.score, out[1]};
}

/* Check score and mean, arguments i and i + 1, for heads of x, which is [B, N, D] and has been checked; and the
 * normalizer, argument j. */
static status check_initial(const op_call *call, int i, shape x, int j, error *err)
{
	TRY(check_type(call, i, "score", DTYPE_F32, err));
	const shape heads = call->in[i].shape;
	if (x.rank != 3 || heads.rank != 1 || heads.dim[0] < 1 || x.dim[2] % heads.dim[0] != 0)
		return error_set(err, STATUS_INVALID, "score",
		                 "pooled must be [batch, length, channels], and score have a number for each of some "
		                 "heads that divide the channels");
	TRY(check_shape(call, i + 1, "mean", DTYPE_F32, SHAPE1(x.dim[2]), "pooled's channels", err));
	return check_shape(call, j, "log_normalizer", DTYPE_F32, SHAPE3(x.dim[0], x.dim[1], heads.dim[0]),
	                   "pooled's batch and length, heads", err);
}

status op_additive_initial_check(op_call *call, error *err)
{
	TRY(check_real(call, 0, "pooled", err));
	const shape x = call->in[0].shape;
	TRY(check_initial(call, 2, x, 1, err));
	TRY(check_like(call, 4, "x", 0, "pooled", err));
	TRY(check_shape(call, 5, "w", DTYPE_F32, SHAPE1(x.dim[2]), "x's channels", err));
	if (check_present(call, 6))
		TRY(check_shape(call, 6, "mask", DTYPE_I32, SHAPE2(x.dim[0], x.dim[1]), "x's batch and length", err));
	check_output(call, 0, call->in[0].type, x);
	check_output(call, 1, DTYPE_F32, call->in[1].shape);
	return STATUS_OK;
}

status op_additive_initial_backward(graph *g, const op_node *node)
{
	const graph_rule rule = graph_gradient_rule(g);
	if (rule.frozen || rule.collects)
		return graph_fail(g, STATUS_UNSUPPORTED, NULL, "the share of an initial state is not explained");
	const value dg = graph_output_gradient(g, node, 0);
	const value attention[] = {node->in[4],  node->in[5],  node->n_in > 6 ? node->in[6] : VALUE_NONE,
	                           node->out[0], node->out[1], dg};
	const additive_attention_params params = {.heads = shape_count(graph_value(g, node->in[2])->shape)};
	value tokens[2], initial[2];
	TRY(graph_apply(g, OP_additive_attention_grad, attention, 6, &params, tokens));
	TRY(graph_apply(g, OP_additive_initial_grad,
	                (value[]){node->in[2], node->in[3], node->out[0], node->out[1], dg}, 5, NULL, initial));
	graph_accumulate(g, node->in[4], tokens[0]);
	graph_accumulate(g, node->in[5], tokens[1]);
	graph_accumulate(g, node->in[2], initial[0]);
	graph_accumulate(g, node->in[3], initial[1]);
	return STATUS_OK;
}

status op_additive_initial_grad_check(op_call *call, error *err)
{
	TRY(check_real(call, 2, "pooled", err));
	const shape x = call->in[2].shape;
	TRY(check_initial(call, 0, x, 3, err));
	TRY(check_like(call, 4, "dpooled", 2, "pooled", err));
	check_output(call, 0, DTYPE_F32, call->in[0].shape);
	check_output(call, 1, DTYPE_F32, call->in[1].shape);
	return STATUS_OK;
}
