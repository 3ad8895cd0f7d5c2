/* linear_attention, linear_attention_grad, linear_stream, linear_stream_grad and the size of its state. */
#include "engine/tensor/ops/linear_attention.h"
#include "engine/tensor/graph_internal.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

#include <inttypes.h>
#include <math.h>

#include "engine/base/memory.h"

linear_attention_values op_linear_attention(graph *g, value q, value k, value v, value mask,
                                            linear_attention_params params)
{
	value out[2];
	graph_apply(g, OP_linear_attention, (value[]){q, k, v, mask}, 4, &params, out);
	return (linear_attention_values){out[0], out[1]};
}

/* Check q [B, N, D] against the parameters that all three ops share. */
static status check_query(const op_call *call, int64_t heads, float eps, error *err)
{
	TRY(check_split(call, "q", heads, err));
	if (!(eps >= 0 && eps < INFINITY))
		return error_set(err, STATUS_INVALID, "eps", "eps is %g, must be a finite number from 0 on",
		                 (double)eps);
	return STATUS_OK;
}

/* q, k, v, mask?: what the forward and the gradient share. */
static status check_linear_attention(const op_call *call, error *err)
{
	const linear_attention_params *p = call->params;
	TRY(check_real(call, 0, "q", err));
	TRY(check_query(call, p->heads, p->eps, err));
	TRY(check_type(call, 1, "k", call->in[0].type, err));
	const shape q = call->in[0].shape, k = call->in[1].shape;
	char mine[96], theirs[96];
	if (k.rank != 3 || k.dim[0] != q.dim[0] || k.dim[2] != q.dim[2] || (p->causal && k.dim[1] != q.dim[1]))
		return error_set(err, STATUS_INVALID, "k", "k is %s, must have the batch and the channels%s of q, %s",
		                 shape_text(k, mine, sizeof mine), p->causal ? " and the length" : "",
		                 shape_text(q, theirs, sizeof theirs));
	TRY(check_like(call, 2, "v", 1, "k", err));
	if (check_present(call, 3))
		TRY(check_shape(call, 3, "mask", DTYPE_I32, SHAPE2(k.dim[0], k.dim[1]), "one for each key", err));
	return STATUS_OK;
}

status op_linear_attention_check(op_call *call, error *err)
{
	TRY(check_linear_attention(call, err));
	const linear_attention_params *p = call->params;
	const shape q = call->in[0].shape;
	check_output(call, 0, call->in[0].type, q);
	check_output(call, 1, DTYPE_F32, SHAPE3(q.dim[0], q.dim[1], p->heads));
	return STATUS_OK;
}

/* States are computed again; the normalizer is for explanations and has no gradient of its own. */
status op_linear_attention_backward(graph *g, const op_node *node)
{
	value grads[3], in[] = {node->in[0],
	                        node->in[1],
	                        node->in[2],
	                        node->n_in > 3 ? node->in[3] : VALUE_NONE,
	                        node->out[0],
	                        node->out[1],
	                        graph_output_gradient(g, node, 0)};
	TRY(graph_apply(g, OP_linear_attention_grad, in, 7, node->params, grads));
	const graph_rule rule = graph_gradient_rule(g);
	if (rule.collects && !rule.frozen)
		graph_collect(g, SUM_ATTENTION, op_dot_rows(g, grads[2], node->in[2], 1));
	for (int i = rule.frozen ? 2 : 0; i < 3; i++) /* with constant weights only v has one */
		graph_accumulate(g, node->in[i], grads[i]);
	return STATUS_OK;
}

status op_linear_attention_grad_check(op_call *call, error *err)
{
	TRY(check_linear_attention(call, err));
	const linear_attention_params *p = call->params;
	const shape q = call->in[0].shape, k = call->in[1].shape;
	TRY(check_like(call, 4, "y", 0, "q", err));
	TRY(check_shape(call, 5, "normalizer", DTYPE_F32, SHAPE3(q.dim[0], q.dim[1], p->heads),
	                "one for each query and head", err));
	TRY(check_like(call, 6, "dy", 0, "q", err));
	check_output(call, 0, call->in[0].type, q);
	check_output(call, 1, call->in[0].type, k);
	check_output(call, 2, call->in[0].type, k);
	return STATUS_OK;
}

linear_attention_values op_linear_stream(graph *g, value q, value k, value v, value pool, value slot, value position,
                                         value length, value mask, value start, value before,
                                         linear_stream_params params)
{
	value out[2];
	graph_apply(g, OP_linear_stream, (value[]){q, k, v, pool, slot, position, length, mask, start, before}, 10,
	            &params, out);
	return (linear_attention_values){out[0], out[1]};
}

int64_t linear_state_floats(int64_t d, int64_t heads)
{
	return heads * linear_head_floats(d / heads);
}

void linear_state_of_tokens(const float *k, const float *v, int64_t count, int64_t d, int64_t heads, float *state)
{
	const int64_t dh = d / heads;
	for (int64_t h = 0; h < heads; h++) {
		float *sums = state + linear_sums(dh, h), *normals = state + linear_normals(dh, h);
		for (int64_t c = 0; c < dh; c++) {
			for (int64_t t = 0; t < count; t++) {
				const float x = k[t * d + h * dh + c], feature = x > 0 ? x + 1 : expf(x);
				normals[c] += feature;
				for (int64_t m = 0; m < dh; m++)
					sums[c * dh + m] += feature * v[t * d + h * dh + m];
			}
		}
	}
}

status op_linear_stream_check(op_call *call, error *err)
{
	const linear_stream_params *p = call->params;
	TRY(check_type(call, 0, "q", DTYPE_F32, err));
	TRY(check_query(call, p->heads, p->eps, err));
	TRY(check_like(call, 1, "k", 0, "q", err));
	TRY(check_like(call, 2, "v", 0, "q", err));
	TRY(check_type(call, 3, "pool", DTYPE_F32, err));
	const shape q = call->in[0].shape, pool = call->in[3].shape;
	int64_t floats;
	if (!memory_product(q.dim[2], q.dim[2] / p->heads + 1, &floats))
		return error_set(err, STATUS_INVALID, "q", "the state of %" PRId64 " channels is too large", q.dim[2]);
	if (pool.rank != 2 || p->offset < 0 || p->offset > pool.dim[1] || floats > pool.dim[1] - p->offset)
		return error_set(err, STATUS_INVALID, "pool",
		                 "a slot of the pool has no room for %" PRId64 " floats at %" PRId64, floats,
		                 p->offset);
	TRY(check_sequences(call, 4, err));
	if (check_present(call, 9))
		TRY(check_like(call, 9, "before", 3, "pool", err));
	check_output(call, 0, DTYPE_F32, q);
	check_output(call, 1, DTYPE_F32, SHAPE3(q.dim[0], q.dim[1], p->heads));
	return STATUS_OK;
}

status op_linear_stream_backward(graph *g, const op_node *node)
{
	const linear_stream_params *p = node->params;
	if (node->n_in > 8 && node->in[8] != VALUE_NONE)
		return graph_fail(g, STATUS_UNSUPPORTED, "start", "sequences of different lengths have no gradient");
	if (node->n_in < 10 || node->in[9] == VALUE_NONE)
		return graph_fail(g, STATUS_UNSUPPORTED, "before", "the gradient needs the pool as it was");
	const value dy = graph_output_gradient(g, node, 0);
	const value whole[] = {node->in[0], node->in[1], node->in[2], node->in[7], node->out[0], node->out[1], dy};
	const value early[] = {node->in[0], node->in[9], node->in[4], node->in[5], node->out[0], node->out[1], dy};
	const linear_attention_params params = {.heads = p->heads, .causal = true, .eps = p->eps};
	value grads[3], from_before;
	TRY(graph_apply(g, OP_linear_attention_grad, whole, 7, &params, grads));
	TRY(graph_apply(g, OP_linear_stream_grad, early, 7, p, &from_before));
	graph_accumulate(g, node->in[0], op_add(g, grads[0], from_before));
	graph_accumulate(g, node->in[1], grads[1]);
	graph_accumulate(g, node->in[2], grads[2]);
	return STATUS_OK;
}

status op_linear_stream_grad_check(op_call *call, error *err)
{
	const linear_stream_params *p = call->params;
	TRY(check_type(call, 0, "q", DTYPE_F32, err));
	TRY(check_query(call, p->heads, p->eps, err));
	TRY(check_type(call, 1, "before", DTYPE_F32, err));
	const shape q = call->in[0].shape, before = call->in[1].shape;
	if (before.rank != 2 || p->offset < 0 || p->offset + linear_state_floats(q.dim[2], p->heads) > before.dim[1])
		return error_set(err, STATUS_INVALID, "before", "a slot has no room for the state at %" PRId64,
		                 p->offset);
	TRY(check_shape(call, 2, "slot", DTYPE_I32, SHAPE1(q.dim[0]), "one for each sequence", err));
	TRY(check_shape(call, 3, "position", DTYPE_I32, SHAPE1(q.dim[0]), "one for each sequence", err));
	TRY(check_like(call, 4, "y", 0, "q", err));
	TRY(check_shape(call, 5, "normalizer", DTYPE_F32, SHAPE3(q.dim[0], q.dim[1], p->heads),
	                "one for each query and head", err));
	TRY(check_like(call, 6, "dy", 0, "q", err));
	check_output(call, 0, DTYPE_F32, q);
	return STATUS_OK;
}
