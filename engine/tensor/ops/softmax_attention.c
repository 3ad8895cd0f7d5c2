/* softmax_attention, softmax_attention_grad. */
#include "engine/tensor/ops/softmax_attention.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/softmax.h"
#include "engine/tensor/ops/table.h"

#include <inttypes.h>

value op_softmax_attention(graph *g, value q, value k, value v, value mask, value bias, value rng,
                           softmax_params params)
{
	value out[2];
	graph_apply(g, OP_softmax_attention, (value[]){q, k, v, mask, bias, rng}, 6, &params, out);
	return out[0];
}

/* q, k and v, of their own or as one. */
static status check_values(const op_call *call, error *err)
{
	const softmax_params *p = call->params;
	char text[96];
	const int64_t kv_heads = p->kv_heads ? p->kv_heads : p->heads;
	if (p->heads < 1)
		return error_set(err, STATUS_INVALID, "heads", "%" PRId64 " heads, must be at least 1", p->heads);
	if (kv_heads < 1 || p->heads % kv_heads != 0)
		return error_set(err, STATUS_INVALID, "kv_heads",
		                 "%" PRId64 " heads of keys do not divide %" PRId64 " heads", kv_heads, p->heads);
	if (!check_present(call, 1) && !check_present(call, 2)) {
		if (kv_heads != p->heads)
			return error_set(err, STATUS_INVALID, "kv_heads",
			                 "q, k and v in one have %" PRId64 " heads each, not %" PRId64 " of keys",
			                 p->heads, kv_heads);
		return check_qkv(call, p->heads, err);
	}
	TRY(check_real(call, 0, "q", err));
	const shape q = call->in[0].shape;
	if (q.rank != 3 || q.dim[2] % p->heads != 0)
		return error_set(err, STATUS_INVALID, "q", "q is %s, must be [batch, queries, %" PRId64 " heads]",
		                 shape_text(q, text, sizeof text), p->heads);
	TRY(check_type(call, 1, "k", call->in[0].type, err));
	const shape k = call->in[1].shape;
	if (k.rank != 3 || k.dim[0] != q.dim[0] || k.dim[2] != q.dim[2] / p->heads * kv_heads)
		return error_set(err, STATUS_INVALID, "k", "k is %s, must be [%" PRId64 ", keys, %" PRId64 "]",
		                 shape_text(k, text, sizeof text), q.dim[0], q.dim[2] / p->heads * kv_heads);
	TRY(check_type(call, 2, "v", call->in[0].type, err));
	const shape v = call->in[2].shape;
	if (v.rank != 3 || v.dim[0] != k.dim[0] || v.dim[1] != k.dim[1] || v.dim[2] % kv_heads != 0)
		return error_set(err, STATUS_INVALID, "v",
		                 "v is %s, must be [%" PRId64 ", %" PRId64 ", %" PRId64 " heads]",
		                 shape_text(v, text, sizeof text), k.dim[0], k.dim[1], kv_heads);
	return STATUS_OK;
}

/* A row of the table for each distance of a pair. */
static status check_bias(const op_call *call, const softmax_layout *l, error *err)
{
	const int64_t first = ((const softmax_params *)call->params)->bias_first;
	TRY(check_type(call, SOFTMAX_BIAS, "bias", DTYPE_F32, err));
	const shape bias = call->in[SOFTMAX_BIAS].shape;
	char text[96];
	if (bias.rank != 2 || bias.dim[1] != l->heads)
		return error_set(err, STATUS_INVALID, "bias", "bias is %s, must be [distances, %" PRId64 "]",
		                 shape_text(bias, text, sizeof text), l->heads);
	if (first > 0)
		return error_set(err, STATUS_INVALID, "bias_first", "bias_first is %" PRId64 ", must not be above 0",
		                 first);
	if (l->queries == 0 || l->keys == 0)
		return STATUS_OK;
	const int64_t low = l->ahead ? 1 - l->queries : 0, high = l->window - 1;
	if (first > low)
		return error_set(err, STATUS_INVALID, "bias_first",
		                 "the first row is of distance %" PRId64 ", distances begin at %" PRId64, first, low);
	if (bias.dim[0] + first <= high)
		return error_set(err, STATUS_INVALID, "bias",
		                 "%" PRId64 " rows from distance %" PRId64 " on do not reach %" PRId64, bias.dim[0],
		                 first, high);
	return STATUS_OK;
}

/* The inputs of both ops. */
static status check_softmax(const op_call *call, softmax_layout *l, error *err)
{
	const softmax_params *p = call->params;
	TRY(check_values(call, err));
	*l = softmax_layout_of(call);
	if (check_present(call, SOFTMAX_MASK))
		TRY(check_shape(call, SOFTMAX_MASK, "mask", DTYPE_I32, SHAPE2(l->batch, l->keys), "one for each key",
		                err));
	if (check_present(call, SOFTMAX_BIAS))
		TRY(check_bias(call, l, err));
	if (!(p->p >= 0 && p->p < 1))
		return error_set(err, STATUS_INVALID, "p", "p is %g, must be from 0 to below 1", (double)p->p);
	if (p->p > 0 || check_present(call, SOFTMAX_RNG))
		TRY(check_shape(call, SOFTMAX_RNG, "rng", DTYPE_I32, SHAPE1(4), "seed, step, 0", err));
	return STATUS_OK;
}

status op_softmax_attention_check(op_call *call, error *err)
{
	softmax_layout l;
	TRY(check_softmax(call, &l, err));
	check_output(call, 0, call->in[0].type, SHAPE3(l.batch, l.queries, l.heads * l.dv));
	check_output(call, 1, DTYPE_F32, SHAPE3(l.batch, l.queries, l.heads));
	return STATUS_OK;
}

status op_softmax_attention_backward(graph *g, const op_node *node)
{
	enum { VALUE = 2, SHARED = SOFTMAX_RNG + 1, INPUTS = SOFTMAX_DY + 1 };
	value in[INPUTS], grads[4];
	bool needed = false;
	for (int i = 0; i < SHARED; i++) {
		in[i] = i < node->n_in ? node->in[i] : VALUE_NONE;
		needed |= in[i] != VALUE_NONE && graph_needs_gradient(g, in[i]);
	}
	if (!needed)
		return STATUS_OK;
	in[SOFTMAX_Y] = node->out[0];
	in[SOFTMAX_LOG_NORMALIZER] = node->out[1];
	in[SOFTMAX_DY] = graph_output_gradient(g, node, 0);
	const graph_rule rule = graph_gradient_rule(g);
	const bool fused = in[VALUE] == VALUE_NONE;
	softmax_params params = *(const softmax_params *)node->params;
	params.frozen = rule.frozen;
	TRY(graph_apply(g, OP_softmax_attention_grad, in, INPUTS, &params, grads));
	if (rule.collects && !rule.frozen) {
		value fixed = grads[VALUE]; /* v alone */
		if (fused) {
			value all[4];
			params.frozen = true;
			TRY(graph_apply(g, OP_softmax_attention_grad, in, INPUTS, &params, all));
			fixed = all[0];
		}
		graph_collect(g, SUM_ATTENTION, op_dot_rows(g, fixed, in[fused ? 0 : VALUE], 1));
	}
	for (int i = 0; i <= VALUE; i++)
		if (in[i] != VALUE_NONE &&
		    (fused || !rule.frozen || i == VALUE)) /* with constant weights only v has one */
			graph_accumulate(g, in[i], grads[i]);
	if (in[SOFTMAX_BIAS] != VALUE_NONE && !rule.frozen)
		graph_accumulate(g, in[SOFTMAX_BIAS], grads[3]);
	return STATUS_OK;
}

status op_softmax_attention_grad_check(op_call *call, error *err)
{
	softmax_layout l;
	TRY(check_softmax(call, &l, err));
	const dtype type = call->in[0].type;
	TRY(check_shape(call, SOFTMAX_Y, "y", type, SHAPE3(l.batch, l.queries, l.heads * l.dv), "the forward's output",
	                err));
	TRY(check_shape(call, SOFTMAX_LOG_NORMALIZER, "log_normalizer", DTYPE_F32, SHAPE3(l.batch, l.queries, l.heads),
	                "one for each query and head", err));
	TRY(check_like(call, SOFTMAX_DY, "dy", SOFTMAX_Y, "y", err));
	const shape none = SHAPE1(0);
	const bool fused = l.v_input == 0, biased = check_present(call, SOFTMAX_BIAS);
	check_output(call, 0, type, call->in[0].shape);
	check_output(call, 1, type, fused ? none : call->in[1].shape);
	check_output(call, 2, type, fused ? none : call->in[2].shape);
	check_output(call, 3, DTYPE_F32, biased ? call->in[SOFTMAX_BIAS].shape : none);
	return STATUS_OK;
}
