/* dilated_attention, dilated_attention_grad, dilated_stream and the size of its state. */
#include <inttypes.h>
#include <math.h>

#include "engine/base/memory.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/dilated.h"
#include "engine/tensor/ops/table.h"

dilated_values op_dilated_attention(graph *g, value q, value k, value v, value mask, value mixture,
                                    dilated_params params)
{
	value out[2];
	graph_apply(g, OP_dilated_attention, (value[]){q, k, v, mask, mixture}, 5, &params, out);
	return (dilated_values){out[0], out[1]};
}

static status check_pattern(const dilated_pattern *p, error *err)
{
	if (p->branches < 1 || p->branches > DILATED_MAX_BRANCHES)
		return error_set(err, STATUS_INVALID, "branches", "%" PRId64 " branches, must be from 1 to %d",
		                 p->branches, DILATED_MAX_BRANCHES);
	for (int64_t i = 0; i < p->branches; i++) {
		if (p->segment[i] < 1 || p->segment[i] > INT32_MAX)
			return error_set(err, STATUS_INVALID, "segment",
			                 "segment %" PRId64 " has %" PRId64 " tokens, must have from 1 to %d", i,
			                 p->segment[i], INT32_MAX);
		if (p->dilation[i] < 1 || p->dilation[i] > INT32_MAX)
			return error_set(err, STATUS_INVALID, "dilation",
			                 "dilation %" PRId64 " is %" PRId64 ", must be from 1 to %d", i, p->dilation[i],
			                 INT32_MAX);
	}
	if (p->offset != DILATED_BLOCK && p->offset != DILATED_MOD && p->offset != DILATED_FIRST)
		return error_set(err, STATUS_INVALID, "offset", "offset is %d, which is none", (int)p->offset);
	return STATUS_OK;
}

/* q [B, N, D], checked to be of a type, k and v like it, and the parameters that all three ops share. */
static status check_rows(const op_call *call, const dilated_pattern *pattern, int64_t heads, float scale, error *err)
{
	TRY(check_split(call, "q", heads, err));
	if (!isfinite(scale))
		return error_set(err, STATUS_INVALID, "scale", "scale is %g, must be finite", (double)scale);
	TRY(check_pattern(pattern, err));
	TRY(check_like(call, 1, "k", 0, "q", err));
	return check_like(call, 2, "v", 0, "q", err);
}

static status check_dilated(const op_call *call, error *err)
{
	const dilated_params *p = call->params;
	TRY(check_real(call, 0, "q", err));
	TRY(check_rows(call, &p->pattern, p->heads, p->scale, err));
	const shape q = call->in[0].shape;
	if (check_present(call, 3))
		TRY(check_shape(call, 3, "mask", DTYPE_I32, SHAPE2(q.dim[0], q.dim[1]), "one for each token", err));
	if (check_present(call, 4))
		TRY(check_shape(call, 4, "mixture", DTYPE_F32, SHAPE1(p->pattern.branches), "one for each branch",
		                err));
	return STATUS_OK;
}

static shape normalizers(const op_call *call)
{
	const dilated_params *p = call->params;
	const shape q = call->in[0].shape;
	return SHAPE4(p->pattern.branches, q.dim[0], q.dim[1], p->heads);
}

status op_dilated_attention_check(op_call *call, error *err)
{
	TRY(check_dilated(call, err));
	check_output(call, 0, call->in[0].type, call->in[0].shape);
	check_output(call, 1, DTYPE_F32, normalizers(call));
	return STATUS_OK;
}

status op_dilated_attention_backward(graph *g, const op_node *node)
{
	const value mask = node->n_in > 3 ? node->in[3] : VALUE_NONE,
	            mixture = node->n_in > 4 ? node->in[4] : VALUE_NONE;
	value grads[4], in[] = {node->in[0], node->in[1],  node->in[2],  mask,
	                        mixture,     node->out[0], node->out[1], graph_output_gradient(g, node, 0)};
	TRY(graph_apply(g, OP_dilated_attention_grad, in, 8, node->params, grads));
	const graph_rule rule = graph_gradient_rule(g);
	if (rule.collects && !rule.frozen)
		graph_collect(g, SUM_ATTENTION, op_dot_rows(g, grads[2], node->in[2], 1));
	for (int i = rule.frozen ? 2 : 0; i < 3; i++) /* with constant weights only v has one */
		graph_accumulate(g, node->in[i], grads[i]);
	if (mixture != VALUE_NONE && !rule.frozen)
		graph_accumulate(g, mixture, grads[3]);
	return STATUS_OK;
}

status op_dilated_attention_grad_check(op_call *call, error *err)
{
	const dilated_params *p = call->params;
	TRY(check_dilated(call, err));
	TRY(check_like(call, 5, "y", 0, "q", err));
	TRY(check_shape(call, 6, "log_normalizer", DTYPE_F32, normalizers(call), "one for each branch, token and head",
	                err));
	TRY(check_like(call, 7, "dy", 0, "q", err));
	for (int i = 0; i < 3; i++)
		check_output(call, i, call->in[0].type, call->in[0].shape);
	check_output(call, 3, DTYPE_F32, SHAPE1(check_present(call, 4) ? p->pattern.branches : 0));
	return STATUS_OK;
}

value op_dilated_stream(graph *g, value q, value k, value v, value pool, value slot, value position, value length,
                        value mask, value start, dilated_stream_params params)
{
	value out;
	graph_apply(g, OP_dilated_stream, (value[]){q, k, v, pool, slot, position, length, mask, start}, 9, &params,
	            &out);
	return out;
}

int64_t dilated_state_floats(int64_t d, const dilated_pattern *pattern)
{
	return (2 * d + 1) * dilated_window(pattern);
}

status op_dilated_stream_check(op_call *call, error *err)
{
	const dilated_stream_params *p = call->params;
	TRY(check_type(call, 0, "q", DTYPE_F32, err));
	TRY(check_rows(call, &p->pattern, p->heads, p->scale, err));
	TRY(check_type(call, 3, "pool", DTYPE_F32, err));
	const shape q = call->in[0].shape, pool = call->in[3].shape;
	int64_t floats;
	if (!memory_product(dilated_window(&p->pattern), 2 * q.dim[2] + 1, &floats))
		return error_set(err, STATUS_INVALID, "segment", "the state of a segment of %" PRId64 " is too large",
		                 dilated_window(&p->pattern));
	if (pool.rank != 2 || p->offset < 0 || p->offset > pool.dim[1] || floats > pool.dim[1] - p->offset)
		return error_set(err, STATUS_INVALID, "pool",
		                 "a slot of the pool has no room for %" PRId64 " floats at %" PRId64, floats,
		                 p->offset);
	TRY(check_sequences(call, 4, err));
	check_output(call, 0, DTYPE_F32, q);
	return STATUS_OK;
}
