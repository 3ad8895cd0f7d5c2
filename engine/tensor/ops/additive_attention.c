/* additive_attention, additive_attention_grad: a whole sequence at once. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

#include <inttypes.h>

attention_values op_additive_attention(graph *g, value x, value w, value mask, int64_t heads, int64_t window)
{
	value out[3];
	graph_apply(g, OP_additive_attention, (value[]){x, w, mask}, 3,
	            &(additive_attention_params){.heads = heads, .window = window}, out);
	return (attention_values){out[0], out[1], out[2]};
}

/* x [B, N, D], w [D], mask? [B, N], heads: what the forward and the gradient share. */
static status check_attention(const op_call *call, int64_t heads, error *err)
{
	TRY(check_real(call, 0, "x", err));
	shape x = call->in[0].shape;
	TRY(check_split(call, "x", heads, err));
	TRY(check_shape(call, 1, "w", DTYPE_F32, SHAPE1(x.dim[2]), "x's channels", err));
	if (check_present(call, 2))
		TRY(check_shape(call, 2, "mask", DTYPE_I32, SHAPE2(x.dim[0], x.dim[1]), "x's batch and length", err));
	return STATUS_OK;
}

status op_additive_attention_check(op_call *call, error *err)
{
	const additive_attention_params *p = call->params;
	TRY(check_attention(call, p->heads, err));
	shape x = call->in[0].shape, per_head = SHAPE3(x.dim[0], x.dim[1], p->heads);
	check_output(call, 0, call->in[0].type, x);
	check_output(call, 1, DTYPE_F32, per_head);
	check_output(call, 2, DTYPE_F32, per_head);
	return STATUS_OK;
}

/* Saves g and M; scores and weights are recomputed. score and log_normalizer are for
 * explanations and have no gradient. */
status op_additive_attention_backward(graph *g, const op_node *node)
{
	value in[] = {node->in[0],  node->in[1],  node->n_in > 2 ? node->in[2] : VALUE_NONE,
	              node->out[0], node->out[2], graph_output_gradient(g, node, 0)};
	value grads[2];
	const graph_rule rule = graph_gradient_rule(g);
	additive_attention_params params = *(const additive_attention_params *)node->params;
	params.frozen = rule.frozen;
	TRY(graph_apply(g, OP_additive_attention_grad, in, 6, &params, grads));
	const bool learned = graph_value(g, node->in[1])->role == ROLE_PARAMETER; /* no plain mean */
	if (rule.collects && !rule.frozen && learned) {
		value fixed[2];
		params.frozen = true;
		TRY(graph_apply(g, OP_additive_attention_grad, in, 6, &params, fixed));
		graph_collect(g, SUM_ATTENTION, op_dot_rows(g, fixed[0], node->in[0], 1));
	}
	graph_accumulate(g, node->in[0], grads[0]);
	graph_accumulate(g, node->in[1], grads[1]);
	return STATUS_OK;
}

status op_additive_attention_grad_check(op_call *call, error *err)
{
	const additive_attention_params *p = call->params;
	TRY(check_attention(call, p->heads, err));
	shape x = call->in[0].shape;
	TRY(check_like(call, 3, "g", 0, "x", err));
	TRY(check_shape(call, 4, "log_normalizer", DTYPE_F32, SHAPE3(x.dim[0], x.dim[1], p->heads),
	                "x's batch and length, heads", err));
	TRY(check_like(call, 5, "dg", 0, "x", err));
	check_output(call, 0, call->in[0].type, x);
	check_output(call, 1, DTYPE_F32, SHAPE1(x.dim[2]));
	return STATUS_OK;
}
