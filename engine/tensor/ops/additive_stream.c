/* additive_stream: the recurrent form. The state it keeps is described in additive_stream.h. */
#include "engine/tensor/ops/additive_stream.h"
#include "engine/tensor/graph_internal.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

#include <inttypes.h>

attention_values op_additive_stream(graph *g, value x, value w, value pool, value slot, value position, value length,
                                    value mask, value start, additive_stream_params params)
{
	value out[3];
	graph_apply(g, OP_additive_stream, (value[]){x, w, pool, slot, position, length, mask, start}, 8, &params, out);
	return (attention_values){out[0], out[1], out[2]};
}

static status check_state(const op_call *call, const additive_stream_params *p, error *err)
{
	TRY(check_type(call, 2, "pool", DTYPE_F32, err));
	shape pool = call->in[2].shape;
	char text[96];
	if (pool.rank != 2)
		return error_set(err, STATUS_INVALID, "pool", "pool is %s, must be [slots, floats]",
		                 shape_text(pool, text, sizeof text));
	int64_t floats = additive_state_floats(shape_last(call->in[0].shape), p->heads, p->window);
	if (p->offset < 0 || floats > pool.dim[1] || p->offset > pool.dim[1] - floats)
		return error_set(err, STATUS_INVALID, "offset",
		                 "a state of %" PRId64 " floats at %" PRId64 " does not fit a slot of %" PRId64, floats,
		                 p->offset, pool.dim[1]);
	return STATUS_OK;
}

status op_additive_stream_check(op_call *call, error *err)
{
	const additive_stream_params *p = call->params;
	TRY(check_type(call, 0, "x", DTYPE_F32, err));
	shape x = call->in[0].shape;
	TRY(check_split(call, "x", p->heads, err));
	TRY(check_shape(call, 1, "w", DTYPE_F32, SHAPE1(x.dim[2]), "x's channels", err));
	TRY(check_state(call, p, err));
	TRY(check_sequences(call, 3, err));
	shape per_head = SHAPE3(x.dim[0], x.dim[1], p->heads);
	check_output(call, 0, DTYPE_F32, x);
	check_output(call, 1, DTYPE_F32, per_head);
	check_output(call, 2, DTYPE_F32, per_head);
	return STATUS_OK;
}

/* g and the normalizer include the earlier tokens; the gradient of the parallel form computes weights from them. */
status op_additive_stream_backward(graph *g, const op_node *node)
{
	const additive_stream_params *p = node->params;
	if (node->n_in > 7 && node->in[7] != VALUE_NONE)
		return graph_fail(g, STATUS_UNSUPPORTED, "start", "sequences of different lengths have no gradient");
	const value in[] = {node->in[0],  node->in[1],  node->n_in > 6 ? node->in[6] : VALUE_NONE,
	                    node->out[0], node->out[2], graph_output_gradient(g, node, 0)};
	const additive_attention_params params = {.heads = p->heads, .window = p->window};
	value grads[2];
	TRY(graph_apply(g, OP_additive_attention_grad, in, 6, &params, grads));
	graph_accumulate(g, node->in[0], grads[0]);
	graph_accumulate(g, node->in[1], grads[1]);
	return STATUS_OK;
}
