/* softmax_attention, softmax_attention_grad. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/softmax.h"
#include "engine/tensor/ops/table.h"

value op_softmax_attention(graph *g, value qkv, value mask, value rng, softmax_params params)
{
	value out[2];
	graph_apply(g, OP_softmax_attention, (value[]){qkv, mask, rng}, 3, &params, out);
	return out[0];
}

/* qkv, mask?, rng?. */
static status check_softmax(const op_call *call, error *err)
{
	const softmax_params *p = call->params;
	TRY(check_qkv(call, p->heads, err));
	shape qkv = call->in[0].shape;
	if (check_present(call, 1))
		TRY(check_shape(call, 1, "mask", DTYPE_I32, SHAPE2(qkv.dim[0], qkv.dim[1]), "one for each token", err));
	if (!(p->p >= 0 && p->p < 1))
		return error_set(err, STATUS_INVALID, "p", "p is %g, must be from 0 to below 1", (double)p->p);
	if (p->p > 0 || check_present(call, 2))
		TRY(check_shape(call, 2, "rng", DTYPE_I32, SHAPE1(4), "seed, step, 0", err));
	return STATUS_OK;
}

status op_softmax_attention_check(op_call *call, error *err)
{
	const softmax_params *p = call->params;
	TRY(check_softmax(call, err));
	shape qkv = call->in[0].shape;
	check_output(call, 0, call->in[0].type, SHAPE3(qkv.dim[0], qkv.dim[1], qkv.dim[2] / 3));
	check_output(call, 1, DTYPE_F32, SHAPE3(qkv.dim[0], qkv.dim[1], p->heads));
	return STATUS_OK;
}

status op_softmax_attention_backward(graph *g, const op_node *node)
{
	if (!graph_needs_gradient(g, node->in[0]))
		return STATUS_OK;
	value dqkv, in[] = {node->in[0],
	                    node->n_in > 1 ? node->in[1] : VALUE_NONE,
	                    node->n_in > 2 ? node->in[2] : VALUE_NONE,
	                    node->out[0],
	                    node->out[1],
	                    graph_output_gradient(g, node, 0)};
	const graph_rule rule = graph_gradient_rule(g);
	softmax_params params = *(const softmax_params *)node->params;
	params.frozen = rule.frozen;
	TRY(graph_apply(g, OP_softmax_attention_grad, in, 6, &params, &dqkv));
	if (rule.collects && !rule.frozen) {
		value fixed; /* of v alone */
		params.frozen = true;
		TRY(graph_apply(g, OP_softmax_attention_grad, in, 6, &params, &fixed));
		graph_collect(g, SUM_ATTENTION, op_dot_rows(g, fixed, node->in[0], 1));
	}
	graph_accumulate(g, node->in[0], dqkv);
	return STATUS_OK;
}

status op_softmax_attention_grad_check(op_call *call, error *err)
{
	const softmax_params *p = call->params;
	TRY(check_softmax(call, err));
	shape qkv = call->in[0].shape, y = SHAPE3(qkv.dim[0], qkv.dim[1], qkv.dim[2] / 3);
	TRY(check_shape(call, 3, "y", call->in[0].type, y, "the forward's output", err));
	TRY(check_shape(call, 4, "log_normalizer", DTYPE_F32, SHAPE3(qkv.dim[0], qkv.dim[1], p->heads),
	                "one for each token and head", err));
	TRY(check_like(call, 5, "dy", 3, "y", err));
	check_output(call, 0, call->in[0].type, qkv);
	return STATUS_OK;
}
