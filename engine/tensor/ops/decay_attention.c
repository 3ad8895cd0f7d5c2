/* decay_biases, decay_merge, decay_merge_grad, and the attention that they and softmax attention make. */
#include <inttypes.h>
#include <math.h>

#include "engine/base/memory.h"
#include "engine/tensor/graph_internal.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/decay.h"
#include "engine/tensor/ops/table.h"

/* --- decay_biases -------------------------------------------------------------------------------------------- */

value op_decay_biases(graph *g, decay_biases_params params)
{
	return graph_apply_one(g, OP_decay_biases, NULL, 0, &params);
}

status op_decay_biases_check(op_call *call, error *err)
{
	const decay_biases_params *p = call->params;
	int64_t floats;
	if (p->heads < 1 || p->count < 0 || p->count > INT32_MAX || !memory_product(p->count, p->heads, &floats))
		return error_set(err, STATUS_INVALID, "count",
		                 "%" PRId64 " distances of %" PRId64 " heads are no table", p->count, p->heads);
	if (p->first > 0 || p->first < -INT32_MAX)
		return error_set(err, STATUS_INVALID, "first", "first is %" PRId64 ", must be from %d to 0", p->first,
		                 -INT32_MAX);
	if (!isfinite(p->slope) || !isfinite(p->hyper))
		return error_set(err, STATUS_INVALID, "slope", "slope and hyper must be finite");
	check_output(call, 0, DTYPE_F32, SHAPE2(p->count, p->heads));
	return STATUS_OK;
}

/* --- building ------------------------------------------------------------------------------------------------ */

/* A layer's own table, for this many tokens that a query sees including its own. */
static value biases_of(graph *g, value biases, int64_t tokens, decay_params p)
{
	if (biases != VALUE_NONE)
		return biases;
	decay_biases_params table = {.count = tokens, .heads = p.heads, .slope = p.slope, .hyper = p.hyper};
	if (p.bidirectional && tokens > 0) {
		table.first = 1 - tokens;
		table.count += tokens - 1;
	}
	return op_decay_biases(g, table);
}

/* Parameters for sequences of this many tokens. */
static softmax_params softmax_of(decay_params p, int64_t length)
{
	return (softmax_params){.heads = p.heads,
	                        .window = p.window > 0 && p.window < INT64_MAX ? p.window + 1 : 0,
	                        .bias_first = p.bidirectional && length > 0 ? 1 - length : 0,
	                        .scale = decay_scale(p.scale),
	                        .bidirectional = p.bidirectional};
}

decay_values op_decay_attention(graph *g, value q, value k, value v, value first_k, value first_v, value mask,
                                value biases, decay_params params)
{
	value out[2] = {VALUE_NONE, VALUE_NONE};
	const shape *s = q == VALUE_NONE ? NULL : &graph_value(g, q)->shape;
	const int64_t length = s && s->rank == 3 ? s->dim[1] : 0;
	const softmax_params softmax = softmax_of(params, length);
	biases = biases_of(g, biases, softmax.window > 0 && softmax.window < length ? softmax.window : length, params);
	graph_apply(g, OP_softmax_attention, (value[]){q, k, v, mask, biases}, 5, &softmax, out);
	graph_apply(g, OP_decay_merge, (value[]){q, first_k, first_v, out[0], out[1], VALUE_NONE, k, v, mask, biases},
	            DECAY_INPUTS, &params, out);
	return (decay_values){out[0], out[1]};
}

decay_values op_decay_stream(graph *g, value q, value k, value v, value first_k, value first_v, decay_codes codes,
                             stream_values at, value positions, value biases, int64_t offset, decay_params params)
{
	const bool coded = codes.key_step != VALUE_NONE;
	/* Without a window softmax_stream refuses the ring by name. */
	const int64_t ring = params.window > 0 && params.window < INT32_MAX ? params.window + 1 : 0;
	const softmax_stream_params softmax = {.heads = params.heads,
	                                       .window = ring,
	                                       .offset = offset,
	                                       .scale = decay_scale(params.scale),
	                                       .value_step = coded ? codes.value_step : 0,
	                                       .query_step = coded ? codes.query_step : 0};
	value out[2] = {VALUE_NONE, VALUE_NONE};
	biases = biases_of(g, biases, ring, params);
	const softmax_stream_values tokens = op_softmax_stream_codes(g, q, k, v, codes.key_step, at, biases, softmax);
	graph_apply(g, OP_decay_merge, (value[]){q, first_k, first_v, tokens.y, tokens.log_normalizer, positions},
	            DECAY_POSITIONS + 1, &params, out);
	return (decay_values){out[0], out[1]};
}

int64_t decay_state_floats(int64_t key_width, int64_t value_width, int64_t window, bool codes)
{
	return codes ? softmax_code_state_floats(key_width, value_width, window + 1)
	             : softmax_state_floats(key_width, value_width, window + 1);
}

/* --- decay_merge --------------------------------------------------------------------------------------------- */

/* The arguments that decay_merge and its gradient share: q, first_k, first_v, rows of values, log-normalizers. */
static status check_merge(const op_call *call, const char *values, int positions, error *err)
{
	const decay_params *p = call->params;
	char text[96];
	TRY(check_real(call, DECAY_Q, "q", err));
	const dtype type = call->in[DECAY_Q].type;
	const shape q = call->in[DECAY_Q].shape;
	if (q.rank != 3)
		return error_set(err, STATUS_INVALID, "q", "q is %s, must be [batch, length, channels]",
		                 shape_text(q, text, sizeof text));
	if (p->heads < 1 || q.dim[2] % p->heads != 0)
		return error_set(err, STATUS_INVALID, "heads",
		                 "%" PRId64 " channels cannot be split into %" PRId64 " heads", q.dim[2], p->heads);
	if (!isfinite(p->scale) || !isfinite(p->slope) || !isfinite(p->hyper))
		return error_set(err, STATUS_INVALID, "scale", "scale, slope and hyper must be finite");
	if (p->bidirectional && p->window > 0)
		return error_set(err, STATUS_INVALID, "window", "bidirectional attention has no window");
	TRY(check_type(call, DECAY_Y, values, type, err));
	const int64_t width = shape_last(call->in[DECAY_Y].shape);
	if (shape_rows(call->in[DECAY_Y].shape) != shape_rows(q) || width % p->heads != 0)
		return error_set(err, STATUS_INVALID, values, "%s is %s, must have the rows of q and %" PRId64 " heads",
		                 values, shape_text(call->in[DECAY_Y].shape, text, sizeof text), p->heads);
	TRY(check_count(call, DECAY_FIRST_K, "first_k", type, q.dim[2], "the channels of q", err));
	TRY(check_count(call, DECAY_FIRST_V, "first_v", type, width, "the channels of a value", err));
	TRY(check_count(call, DECAY_LOG_NORMALIZER, "log_normalizer", DTYPE_F32, shape_rows(q) * p->heads,
	                "one for each query and head", err));
	if (check_present(call, positions))
		TRY(check_count(call, positions, "positions", DTYPE_I32, shape_rows(q), "one for each row", err));
	return STATUS_OK;
}

status op_decay_merge_check(op_call *call, error *err)
{
	const decay_params *p = call->params;
	TRY(check_merge(call, "y", DECAY_POSITIONS, err));
	if (check_present(call, DECAY_K) || check_present(call, DECAY_V)) {
		TRY(check_like(call, DECAY_K, "k", DECAY_Q, "q", err));
		TRY(check_like(call, DECAY_V, "v", DECAY_Y, "y", err));
	}
	const shape q = call->in[DECAY_Q].shape;
	check_output(call, 0, call->in[DECAY_Q].type, SHAPE3(q.dim[0], q.dim[1], shape_last(call->in[DECAY_Y].shape)));
	check_output(call, 1, DTYPE_F32, SHAPE3(q.dim[0], q.dim[1], p->heads));
	if (check_present(call, DECAY_POSITIONS)) /* else a row's place in its sequence counts */
		check_by_rows(call, 1u << DECAY_Q | 1u << DECAY_Y | 1u << DECAY_LOG_NORMALIZER | 1u << DECAY_POSITIONS,
		              3);
	return STATUS_OK;
}

static value input(const op_node *node, int i)
{
	return i < node->n_in ? node->in[i] : VALUE_NONE;
}

/* The gradient of the tokens' keys and values, and of the queries by them: that of softmax attention whose
 * probabilities and results are those of the whole. */
static status tokens_backward(graph *g, const op_node *node, value du)
{
	const graph_rule rule = graph_gradient_rule(g);
	const value q = node->in[DECAY_Q], k = input(node, DECAY_K), v = input(node, DECAY_V);
	softmax_params params = softmax_of(*(const decay_params *)node->params, graph_value(g, q)->shape.dim[1]);
	params.frozen = rule.frozen;
	value grads[4],
	    in[] = {q, k, v, input(node, DECAY_MASK), input(node, DECAY_BIASES), VALUE_NONE, node->out[0], node->out[1],
	            du};
	if (k == VALUE_NONE) /* a stream */
		return graph_fail(g, STATUS_UNSUPPORTED, "k", "decay_merge without keys has no gradient");
	TRY(graph_apply(g, OP_softmax_attention_grad, in, sizeof in / sizeof *in, &params, grads));
	if (rule.collects && !rule.frozen)
		graph_collect(g, SUM_ATTENTION, op_dot_rows(g, grads[2], v, 1));
	graph_accumulate(g, v, grads[2]);
	if (rule.frozen) /* with constant weights only values have one */
		return STATUS_OK;
	graph_accumulate(g, q, grads[0]);
	graph_accumulate(g, k, grads[1]);
	return STATUS_OK;
}

status op_decay_merge_backward(graph *g, const op_node *node)
{
	const bool frozen = graph_gradient_rule(g).frozen;
	const value du = graph_output_gradient(g, node, 0), q = node->in[DECAY_Q], first_k = node->in[DECAY_FIRST_K],
	            first_v = node->in[DECAY_FIRST_V];
	value grads[3], in[] = {q, first_k, first_v, node->out[0], node->out[1], du, input(node, DECAY_POSITIONS)};
	TRY(tokens_backward(g, node, du));
	TRY(graph_apply(g, OP_decay_merge_grad, in, DECAY_GRAD_INPUTS, node->params, grads));
	graph_accumulate(g, first_v, grads[2]);
	if (frozen)
		return STATUS_OK;
	graph_accumulate(g, q, grads[0]);
	graph_accumulate(g, first_k, grads[1]);
	return STATUS_OK;
}

status op_decay_merge_grad_check(op_call *call, error *err)
{
	TRY(check_merge(call, "u", DECAY_GRAD_POSITIONS, err));
	TRY(check_like(call, DECAY_DU, "du", DECAY_Y, "u", err));
	for (int i = 0; i < 3; i++)
		check_output(call, i, call->in[DECAY_Q].type, call->in[i].shape);
	return STATUS_OK;
}
