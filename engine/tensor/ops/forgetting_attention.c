/* forgetting_attention, forgetting_attention_grad, forgetting_stream. */
#include "engine/tensor/graph_internal.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

#include <inttypes.h>

enum { STREAM_F = 8, STREAM_BONUS = 9 };

pooled_values op_forgetting_attention(graph *g, value v, value a, value f, value bonus, value mask)
{
	value out[3];
	graph_apply(g, OP_forgetting_attention, (value[]){v, a, f, mask, bonus}, 5, &(no_params){0}, out);
	return (pooled_values){out[0], out[1]};
}

/* v [B, N, D], whose type has been checked, a [B, N, H], f? and bonus? as inputs `f` and `bonus`. */
static status check_pooling(const op_call *call, int f, int bonus, error *err)
{
	TRY(check_type(call, 1, "a", DTYPE_F32, err));
	const shape v = call->in[0].shape;
	const int64_t heads = shape_last(call->in[1].shape);
	TRY(check_split(call, "v", heads, err));
	TRY(check_count(call, 1, "a", DTYPE_F32, v.dim[0] * v.dim[1] * heads, "v's rows times heads", err));
	if (check_present(call, f) && shape_count(call->in[f].shape) != heads)
		TRY(check_like(call, f, "f", 1, "a", err));
	if (check_present(call, f))
		TRY(check_type(call, f, "f", DTYPE_F32, err));
	if (!check_present(call, bonus))
		return STATUS_OK;
	if (heads != v.dim[2])
		return error_set(err, STATUS_INVALID, "bonus", "a bonus needs heads of one channel");
	return check_count(call, bonus, "bonus", DTYPE_F32, heads, "the heads", err);
}

static void set_outputs(op_call *call, int bonus)
{
	const shape v = call->in[0].shape;
	check_output(call, 0, call->in[0].type, v);
	check_output(call, 1, DTYPE_F32, SHAPE3(v.dim[0], v.dim[1], shape_last(call->in[1].shape)));
	check_output(call, 2, call->in[0].type, check_present(call, bonus) ? v : SHAPE1(0));
}

static status check_mask(const op_call *call, error *err)
{
	const shape v = call->in[0].shape;
	return check_present(call, 3) ? check_shape(call, 3, "mask", DTYPE_I32, SHAPE2(v.dim[0], v.dim[1]),
	                                            "v's batch and length", err)
	                              : STATUS_OK;
}

status op_forgetting_attention_check(op_call *call, error *err)
{
	TRY(check_real(call, 0, "v", err));
	TRY(check_pooling(call, 2, 4, err));
	TRY(check_mask(call, err));
	set_outputs(call, 4);
	return STATUS_OK;
}

/* Append the gradient of a node, whose inputs f, mask and bonus have these numbers. */
static status pull_back(graph *g, const op_node *node, int f, int mask, int bonus)
{
	const value rate = node->n_in > f ? node->in[f] : VALUE_NONE;
	const value own = node->n_in > bonus ? node->in[bonus] : VALUE_NONE;
	const value in[] = {node->in[0],
	                    node->in[1],
	                    rate,
	                    node->n_in > mask ? node->in[mask] : VALUE_NONE,
	                    own == VALUE_NONE ? node->out[0] : node->out[2],
	                    node->out[1],
	                    graph_output_gradient(g, node, 0),
	                    own};
	const graph_rule rule = graph_gradient_rule(g);
	value grads[4];
	TRY(graph_apply(g, OP_forgetting_attention_grad, in, 8, &(forgetting_params){rule.frozen}, grads));
	if (rule.collects && !rule.frozen) {
		value fixed[4];
		TRY(graph_apply(g, OP_forgetting_attention_grad, in, 8, &(forgetting_params){true}, fixed));
		graph_collect(g, SUM_ATTENTION, op_dot_rows(g, fixed[0], node->in[0], 1));
	}
	graph_accumulate(g, node->in[0], grads[0]);
	if (rule.frozen)
		return STATUS_OK;
	graph_accumulate(g, node->in[1], grads[1]);
	if (rate != VALUE_NONE)
		graph_accumulate(g, rate, grads[2]);
	if (own != VALUE_NONE)
		graph_accumulate(g, own, grads[3]);
	return STATUS_OK;
}

status op_forgetting_attention_backward(graph *g, const op_node *node)
{
	return pull_back(g, node, 2, 3, 4);
}

status op_forgetting_attention_grad_check(op_call *call, error *err)
{
	TRY(check_real(call, 0, "v", err));
	TRY(check_pooling(call, 2, 7, err));
	TRY(check_mask(call, err));
	TRY(check_like(call, 4, "g", 0, "v", err));
	TRY(check_like(call, 5, "log_normalizer", 1, "a", err));
	TRY(check_like(call, 6, "dg", 0, "v", err));
	check_output(call, 0, call->in[0].type, call->in[0].shape);
	check_output(call, 1, DTYPE_F32, call->in[1].shape);
	check_output(call, 2, DTYPE_F32, check_present(call, 2) ? call->in[2].shape : SHAPE1(0));
	check_output(call, 3, DTYPE_F32, check_present(call, 7) ? call->in[7].shape : SHAPE1(0));
	return STATUS_OK;
}

/* --- the recurrent form -------------------------------------------------------------------------------------- */

int64_t forgetting_state_floats(int64_t d, int64_t heads)
{
	return d + 3 * heads;
}

pooled_values op_forgetting_stream(graph *g, value v, value a, value f, value bonus, stream_values at, int64_t offset)
{
	value out[3];
	graph_apply(g, OP_forgetting_stream,
	            (value[]){v, a, at.pool, at.slot, at.position, at.length, at.mask, at.start, f, bonus}, 10,
	            &(forgetting_stream_params){offset}, out);
	return (pooled_values){out[0], out[1]};
}

status op_forgetting_stream_check(op_call *call, error *err)
{
	const forgetting_stream_params *p = call->params;
	TRY(check_type(call, 0, "v", DTYPE_F32, err));
	TRY(check_pooling(call, STREAM_F, STREAM_BONUS, err));
	TRY(check_type(call, 2, "pool", DTYPE_F32, err));
	const shape pool = call->in[2].shape;
	const int64_t floats = forgetting_state_floats(call->in[0].shape.dim[2], shape_last(call->in[1].shape));
	if (pool.rank != 2 || p->offset < 0 || floats > pool.dim[1] || p->offset > pool.dim[1] - floats)
		return error_set(err, STATUS_INVALID, "pool",
		                 "a slot of the pool has no room for a state of %" PRId64 " floats at %" PRId64, floats,
		                 p->offset);
	TRY(check_sequences(call, 3, err));
	set_outputs(call, STREAM_BONUS);
	return STATUS_OK;
}

/* g and l include the earlier tokens, so the gradient of the parallel form applies. */
status op_forgetting_stream_backward(graph *g, const op_node *node)
{
	if (node->n_in > 7 && node->in[7] != VALUE_NONE)
		return graph_fail(g, STATUS_UNSUPPORTED, "start", "sequences of different lengths have no gradient");
	return pull_back(g, node, STREAM_F, 6, STREAM_BONUS);
}
