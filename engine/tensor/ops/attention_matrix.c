/* attention_scores, attention_apply, attention_weights, mix_heads and their gradients. */
#include "engine/tensor/ops/attention_matrix.h"

#include <inttypes.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

/* --- products ------------------------------------------------------------------------------------------------- */

static int64_t key_heads(const attention_matrix_params *p)
{
	return p->kv_heads > 0 ? p->kv_heads : p->heads;
}

static status check_heads(const attention_matrix_params *p, error *err)
{
	if (p->heads < 1)
		return error_set(err, STATUS_INVALID, "heads", "heads is %" PRId64 ", must be at least 1", p->heads);
	if (p->kv_heads < 0 || p->heads % key_heads(p) != 0)
		return error_set(err, STATUS_INVALID, "kv_heads",
		                 "%" PRId64 " kv_heads do not divide %" PRId64 " heads", p->kv_heads, p->heads);
	return STATUS_OK;
}

/* As a gradient an argument may have fewer dimensions; the other one of the product then has them all. */

/* Argument i is a matrix view of [batch, length, channels of `heads` heads] with these rows. */
static status attention_matrix_check_tokens(const op_call *call, int i, const char *name, int64_t heads, int64_t rows,
                                            error *err)
{
	const shape s = call->in[i].shape;
	char text[96];
	if (s.rank > 0 && shape_rows(s) == rows && shape_last(s) % heads == 0)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, name, "%s is %s, must have %" PRId64 " rows of %" PRId64 " heads", name,
	                 shape_text(s, text, sizeof text), rows, heads);
}

static status check_rank(const op_call *call, int i, const char *name, int rank, const char *dimensions, error *err)
{
	char text[96];
	if (call->in[i].shape.rank == rank)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, name, "%s is %s, must be %s", name,
	                 shape_text(call->in[i].shape, text, sizeof text), dimensions);
}

#define TOKENS "[batch, length, channels]"
#define MATRIX "[batch, heads, queries, keys]"

/* Argument i is a matrix view of [batch, heads, queries, keys]. */
static status check_matrix(const op_call *call, int i, const char *name, shape want, error *err)
{
	const shape s = call->in[i].shape;
	char mine[96], expected[96];
	TRY(check_type(call, i, name, DTYPE_F32, err));
	if (s.rank > 0 && shape_rows(s) == shape_rows(want) && shape_last(s) == shape_last(want))
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, name, "%s is %s, must be %s", name, shape_text(s, mine, sizeof mine),
	                 shape_text(want, expected, sizeof expected));
}

value op_attention_scores(graph *g, value q, value k, attention_matrix_params params)
{
	return graph_apply_one(g, OP_attention_scores, (value[]){q, k}, 2, &params);
}

/* Rows of each of `batches` sequences. */
static int64_t length_of(shape s, int64_t batches)
{
	return s.rank == 3 ? s.dim[1] : batches > 0 ? shape_rows(s) / batches : 0;
}

status op_attention_scores_check(op_call *call, error *err)
{
	const attention_matrix_params *p = call->params;
	TRY(check_heads(p, err));
	TRY(check_real(call, 0, "q", err));
	TRY(check_type(call, 1, "k", call->in[0].type, err));
	TRY(check_rank(call, 1, "k", 3, TOKENS, err));
	const shape q = call->in[0].shape, k = call->in[1].shape;
	const int64_t n = q.rank > 0 ? length_of(q, k.dim[0]) : 0;
	TRY(attention_matrix_check_tokens(call, 0, "q", p->heads, k.dim[0] * n, err));
	TRY(attention_matrix_check_tokens(call, 1, "k", key_heads(p), k.dim[0] * k.dim[1], err));
	if (k.dim[2] / key_heads(p) != shape_last(q) / p->heads)
		return error_set(err, STATUS_INVALID, "k", "k has heads of %" PRId64 " channels, q of %" PRId64,
		                 k.dim[2] / key_heads(p), shape_last(q) / p->heads);
	check_output(call, 0, DTYPE_F32, SHAPE4(k.dim[0], p->heads, n, k.dim[1]));
	return STATUS_OK;
}

static value apply_matrix(graph *g, op_id id, value x, value v, const attention_matrix_params *params)
{
	value out;
	graph_apply(g, id, (value[]){x, v}, 2, params, &out);
	return out;
}

status op_attention_scores_backward(graph *g, const op_node *node)
{
	const value q = node->in[0], k = node->in[1], dx = graph_output_gradient(g, node, 0);
	if (graph_needs_gradient(g, q))
		graph_accumulate(g, q, apply_matrix(g, OP_attention_apply, dx, k, node->params));
	if (graph_needs_gradient(g, k))
		graph_accumulate(g, k, apply_matrix(g, OP_attention_apply_transposed, dx, q, node->params));
	return STATUS_OK;
}

value op_attention_apply(graph *g, value x, value v, attention_matrix_params params)
{
	params.scale = 1;
	return apply_matrix(g, OP_attention_apply, x, v, &params);
}

status op_attention_apply_check(op_call *call, error *err)
{
	const attention_matrix_params *p = call->params;
	TRY(check_heads(p, err));
	TRY(check_type(call, 0, "x", DTYPE_F32, err));
	TRY(check_real(call, 1, "v", err));
	TRY(check_rank(call, 1, "v", 3, TOKENS, err));
	const shape x = call->in[0].shape, v = call->in[1].shape;
	const int64_t all = v.dim[0] * p->heads;
	const int64_t n = x.rank == 4 ? x.dim[2] : x.rank > 0 && all > 0 ? shape_rows(x) / all : 0;
	TRY(check_matrix(call, 0, "x", SHAPE4(v.dim[0], p->heads, n, v.dim[1]), err));
	TRY(attention_matrix_check_tokens(call, 1, "v", key_heads(p), v.dim[0] * v.dim[1], err));
	check_output(call, 0, call->in[1].type, SHAPE3(v.dim[0], n, v.dim[2] / key_heads(p) * p->heads));
	return STATUS_OK;
}

status op_attention_apply_backward(graph *g, const op_node *node)
{
	const value x = node->in[0], v = node->in[1], dy = graph_output_gradient(g, node, 0);
	const graph_rule rule = graph_gradient_rule(g);
	if (graph_needs_gradient(g, v)) {
		const value dv = apply_matrix(g, OP_attention_apply_transposed, x, dy, node->params);
		if (rule.collects && !rule.frozen)
			graph_collect(g, SUM_ATTENTION, op_dot_rows(g, dv, v, 1));
		graph_accumulate(g, v, dv);
	}
	if (graph_needs_gradient(g, x) && !rule.frozen)
		graph_accumulate(g, x, op_attention_scores(g, dy, v, *(const attention_matrix_params *)node->params));
	return STATUS_OK;
}

status op_attention_apply_transposed_check(op_call *call, error *err)
{
	const attention_matrix_params *p = call->params;
	TRY(check_heads(p, err));
	TRY(check_type(call, 0, "x", DTYPE_F32, err));
	TRY(check_real(call, 1, "y", err));
	const shape x = call->in[0].shape, y = call->in[1].shape;
	if (x.rank != 4)
		TRY(check_rank(call, 1, "y", 3, TOKENS " where x is not " MATRIX, err));
	const int64_t batches = x.rank == 4 ? x.dim[0] : y.dim[0], n = x.rank == 4 ? x.dim[2] : y.dim[1];
	const int64_t keys = x.rank > 0 ? shape_last(x) : 0;
	TRY(check_matrix(call, 0, "x", SHAPE4(batches, p->heads, n, keys), err));
	TRY(attention_matrix_check_tokens(call, 1, "y", p->heads, batches * n, err));
	check_output(call, 0, call->in[1].type, SHAPE3(batches, keys, shape_last(y) / p->heads * key_heads(p)));
	return STATUS_OK;
}

matrix_product attention_scores_product(const op_call *call)
{
	const attention_matrix_params *p = call->params;
	const shape x = call->out[0].shape;
	const int64_t n = x.dim[2], s = x.dim[3], q_width = shape_last(call->in[0].shape);
	const int64_t k_width = shape_last(call->in[1].shape), width = q_width / p->heads;
	return (matrix_product){.batches = x.dim[0],
	                        .heads = p->heads,
	                        .rows = n,
	                        .columns = s,
	                        .depth = width,
	                        .terms = 1,
	                        .a_batch = n * q_width,
	                        .a_head = width,
	                        .a_row = q_width,
	                        .a_step = 1,
	                        .b_batch = s * k_width,
	                        .b_head = width,
	                        .b_share = p->heads / key_heads(p),
	                        .b_row = 1,
	                        .b_column = k_width,
	                        .c_batch = p->heads * n * s,
	                        .c_head = n * s,
	                        .c_row = s,
	                        .factor = p->scale};
}

matrix_product attention_apply_product(const op_call *call)
{
	const attention_matrix_params *p = call->params;
	const shape y = call->out[0].shape, v = call->in[1].shape;
	const int64_t n = y.dim[1], s = v.dim[1], width = v.dim[2] / key_heads(p);
	return (matrix_product){.batches = y.dim[0],
	                        .heads = p->heads,
	                        .rows = n,
	                        .columns = width,
	                        .depth = s,
	                        .terms = 1,
	                        .a_batch = p->heads * n * s,
	                        .a_head = n * s,
	                        .a_row = s,
	                        .a_step = 1,
	                        .b_batch = s * v.dim[2],
	                        .b_head = width,
	                        .b_share = p->heads / key_heads(p),
	                        .b_row = v.dim[2],
	                        .b_column = 1,
	                        .c_batch = n * p->heads * width,
	                        .c_head = width,
	                        .c_row = p->heads * width,
	                        .factor = p->scale};
}

matrix_product attention_apply_transposed_product(const op_call *call)
{
	const attention_matrix_params *p = call->params;
	const shape z = call->out[0].shape, y = call->in[1].shape;
	const int64_t share = p->heads / key_heads(p), width = shape_last(y) / p->heads;
	const int64_t n = length_of(y, z.dim[0]), s = z.dim[1];
	return (matrix_product){.batches = z.dim[0],
	                        .heads = key_heads(p),
	                        .rows = s,
	                        .columns = width,
	                        .depth = n,
	                        .terms = share,
	                        .a_batch = p->heads * n * s,
	                        .a_head = share * n * s,
	                        .a_term = n * s,
	                        .a_row = 1,
	                        .a_step = s,
	                        .b_batch = n * shape_last(y),
	                        .b_head = share * width,
	                        .b_share = 1,
	                        .b_term = width,
	                        .b_row = shape_last(y),
	                        .b_column = 1,
	                        .c_batch = s * key_heads(p) * width,
	                        .c_head = width,
	                        .c_row = key_heads(p) * width,
	                        .factor = p->scale};
}

/* --- weights ---------------------------------------------------------------------------------------------------- */

value op_attention_weights(graph *g, value scores, value mask, value visible, value bias,
                           attention_weights_params params)
{
	value out[2];
	graph_apply(g, OP_attention_weights, (value[]){scores, mask, visible, bias}, 4, &params, out);
	return out[0];
}

/* visible is one of three trailing parts of [B, H, N, S]. */
static status check_visible(const op_call *call, int i, shape matrix, error *err)
{
	if (!check_present(call, i))
		return STATUS_OK;
	TRY(check_type(call, i, "visible", DTYPE_I32, err));
	const shape s = call->in[i].shape;
	char mine[96], whole[96];
	bool fits = s.rank >= 2 && s.rank <= 4;
	for (int d = 0; d < s.rank && fits; d++)
		fits = s.dim[d] == matrix.dim[4 - s.rank + d];
	if (fits)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, "visible",
	                 "visible is %s, must be %s, or this without the batch, or without batch and heads",
	                 shape_text(s, mine, sizeof mine), shape_text(matrix, whole, sizeof whole));
}

/* bias [T, H] has a row for every distance of a key in sight. */
static status check_bias(const op_call *call, int i, shape matrix, error *err)
{
	if (!check_present(call, i))
		return STATUS_OK;
	const attention_weights_params *p = call->params;
	const shape bias = call->in[i].shape;
	char text[96];
	TRY(check_type(call, i, "bias", DTYPE_F32, err));
	if (bias.rank != 2 || bias.dim[1] != matrix.dim[1])
		return error_set(err, STATUS_INVALID, "bias", "bias is %s, must be [distances, %" PRId64 " heads]",
		                 shape_text(bias, text, sizeof text), matrix.dim[1]);
	const int64_t queries = matrix.dim[2], keys = matrix.dim[3];
	const int64_t low = p->bidirectional ? 1 - queries : 0;
	const int64_t high = p->window > 0 && p->window < keys ? p->window - 1 : keys - 1;
	if (queries == 0 || keys == 0 || low > high)
		return STATUS_OK;
	if (p->bias_first > low || high - p->bias_first >= bias.dim[0])
		return error_set(err, STATUS_INVALID, "bias",
		                 "bias has distances %" PRId64 " … %" PRId64 ", must have %" PRId64 " … %" PRId64,
		                 p->bias_first, p->bias_first + bias.dim[0] - 1, low, high);
	return STATUS_OK;
}

status op_attention_weights_check(op_call *call, error *err)
{
	TRY(check_type(call, 0, "scores", DTYPE_F32, err));
	TRY(check_rank(call, 0, "scores", 4, MATRIX, err));
	const shape s = call->in[0].shape;
	if (check_present(call, 1))
		TRY(check_shape(call, 1, "mask", DTYPE_I32, SHAPE2(s.dim[0], s.dim[3]), "one for each key", err));
	TRY(check_visible(call, 2, s, err));
	TRY(check_bias(call, 3, s, err));
	check_output(call, 0, DTYPE_F32, s);
	check_output(call, 1, DTYPE_F32, SHAPE3(s.dim[0], s.dim[1], s.dim[2]));
	return STATUS_OK;
}

status op_attention_weights_backward(graph *g, const op_node *node)
{
	if (graph_gradient_rule(g).frozen)
		return STATUS_OK;
	const attention_weights_params *p = node->params;
	const value scores = node->in[0], bias = node->n_in > 3 ? node->in[3] : VALUE_NONE;
	value grads[2], in[] = {node->out[0], graph_output_gradient(g, node, 0), p->uniform ? node->out[1] : VALUE_NONE,
	                        graph_needs_gradient(g, bias) ? bias : VALUE_NONE};
	TRY(graph_apply(g, OP_attention_weights_grad, in, 4, p, grads));
	graph_accumulate(g, scores, grads[0]);
	graph_accumulate(g, bias, grads[1]);
	return STATUS_OK;
}

status op_attention_weights_grad_check(op_call *call, error *err)
{
	const attention_weights_params *p = call->params;
	TRY(check_type(call, 0, "weights", DTYPE_F32, err));
	TRY(check_rank(call, 0, "weights", 4, MATRIX, err));
	const shape s = call->in[0].shape;
	TRY(check_like(call, 1, "dweights", 0, "weights", err));
	if (p->uniform || check_present(call, 2))
		TRY(check_shape(call, 2, "log_normalizer", DTYPE_F32, SHAPE3(s.dim[0], s.dim[1], s.dim[2]),
		                "one for each query and head", err));
	TRY(check_bias(call, 3, s, err));
	check_output(call, 0, DTYPE_F32, s);
	check_output(call, 1, DTYPE_F32, check_present(call, 3) ? call->in[3].shape : SHAPE2(0, s.dim[1]));
	return STATUS_OK;
}

/* --- mix_heads ---------------------------------------------------------------------------------------------------- */

static value mix(graph *g, value x, value p, value like, bool transposed)
{
	return graph_apply_one(g, OP_mix_heads, (value[]){x, p, like}, 3, &(mix_heads_params){transposed});
}

value op_mix_heads(graph *g, value x, value p)
{
	return mix(g, x, p, VALUE_NONE, false);
}

status op_mix_heads_check(op_call *call, error *err)
{
	const bool transposed = ((const mix_heads_params *)call->params)->transposed;
	TRY(check_type(call, 1, "p", DTYPE_F32, err));
	TRY(check_rank(call, 1, "p", 2, "[heads of the result, heads]", err));
	const int whole = check_present(call, 2) ? 2 : 0;
	const int64_t from = call->in[1].shape.dim[transposed ? 0 : 1], to = call->in[1].shape.dim[transposed ? 1 : 0];
	TRY(check_rank(call, whole, whole ? "like" : "x", 4, MATRIX, err));
	shape x = call->in[whole].shape, y = x;
	x.dim[1] = from;
	y.dim[1] = to;
	TRY(check_matrix(call, 0, "x", x, err));
	if (whole)
		TRY(check_matrix(call, 2, "like", y, err));
	check_output(call, 0, DTYPE_F32, y);
	return STATUS_OK;
}

status op_mix_heads_backward(graph *g, const op_node *node)
{
	const bool transposed = ((const mix_heads_params *)node->params)->transposed;
	const value x = node->in[0], p = node->in[1], dy = graph_output_gradient(g, node, 0);
	if (graph_needs_gradient(g, x))
		graph_accumulate(g, x, mix(g, dy, p, x, !transposed));
	if (graph_needs_gradient(g, p)) {
		value dp, in[] = {transposed ? dy : x, transposed ? x : dy, p};
		TRY(graph_apply(g, OP_mix_heads_grad, in, 3, NULL, &dp));
		graph_accumulate(g, p, dp);
	}
	return STATUS_OK;
}

status op_mix_heads_grad_check(op_call *call, error *err)
{
	TRY(check_type(call, 2, "p", DTYPE_F32, err));
	TRY(check_rank(call, 2, "p", 2, "[heads of the result, heads]", err));
	if (check_present(call, 0) && call->in[0].shape.rank != 4)
		TRY(check_rank(call, 1, "dy", 4, MATRIX " where x is not", err));
	const shape p = call->in[2].shape;
	shape x = call->in[call->in[0].shape.rank == 4 ? 0 : 1].shape, dy = x;
	dy.dim[1] = p.dim[0];
	x.dim[1] = p.dim[1];
	TRY(check_matrix(call, 0, "x", x, err));
	TRY(check_matrix(call, 1, "dy", dy, err));
	check_output(call, 0, DTYPE_F32, p);
	return STATUS_OK;
}

matrix_product mix_heads_product(const op_call *call)
{
	const bool transposed = ((const mix_heads_params *)call->params)->transposed;
	const shape p = call->in[1].shape, y = call->out[0].shape;
	const int64_t each = y.dim[2] * y.dim[3], heads = p.dim[1], from = p.dim[transposed ? 0 : 1];
	return (matrix_product){.batches = y.dim[0],
	                        .heads = 1,
	                        .rows = y.dim[1],
	                        .columns = each,
	                        .depth = from,
	                        .terms = 1,
	                        .a_row = transposed ? 1 : heads,
	                        .a_step = transposed ? heads : 1,
	                        .b_batch = from * each,
	                        .b_share = 1,
	                        .b_row = each,
	                        .b_column = 1,
	                        .c_batch = y.dim[1] * each,
	                        .c_row = each,
	                        .factor = 1};
}

matrix_product mix_heads_grad_product(const op_call *call)
{
	enum { PART = 4096 }; /* elements of a head */
	const shape x = call->in[call->in[0].shape.rank == 4 ? 0 : 1].shape, dp = call->out[0].shape;
	const int64_t each = x.dim[2] * x.dim[3], parts = (each + PART - 1) / PART;
	return (matrix_product){.batches = x.dim[0],
	                        .heads = parts,
	                        .rows = dp.dim[0],
	                        .columns = dp.dim[1],
	                        .depth = PART,
	                        .terms = 1,
	                        .a_batch = dp.dim[0] * each,
	                        .a_head = PART,
	                        .a_row = each,
	                        .a_step = 1,
	                        .b_batch = dp.dim[1] * each,
	                        .b_head = PART,
	                        .b_share = 1,
	                        .b_row = 1,
	                        .b_column = each,
	                        .c_batch = parts * dp.dim[0] * dp.dim[1],
	                        .c_head = dp.dim[0] * dp.dim[1],
	                        .c_row = dp.dim[1],
	                        .whole = each,
	                        .factor = 1};
}
