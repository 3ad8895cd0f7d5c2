/* stream_scores, stream_apply and stream_store, and the size of their state. Their arguments have the same order:
 * tokens [B, N, ·], k or weights or v, pool, slot, position, length, mask?, start?, memory?. */
#include "engine/tensor/ops/matrix_stream.h"

#include <inttypes.h>

#include "engine/base/memory.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

int64_t matrix_stream_floats(matrix_stream_params params)
{
	return (params.key_width + params.value_width + 1) * params.window;
}

static status matrix_stream_apply(graph *g, op_id id, value tokens, value other, stream_values at, value memory,
                                  const matrix_stream_params *params, value *out)
{
	value in[] = {tokens, other, at.pool, at.slot, at.position, at.length, at.mask, at.start, memory};
	return graph_apply(g, id, in, id == OP_stream_store ? 8 : 9, params, out);
}

stream_scores_values op_stream_scores(graph *g, value q, value k, value memory_k, stream_values at,
                                      matrix_stream_params params)
{
	value out[2];
	matrix_stream_apply(g, OP_stream_scores, q, k, at, memory_k, &params, out);
	return (stream_scores_values){out[0], out[1]};
}

value op_stream_apply(graph *g, value v, value weights, value memory_v, stream_values at, matrix_stream_params params)
{
	value out;
	matrix_stream_apply(g, OP_stream_apply, v, weights, at, memory_v, &params, &out);
	return out;
}

void op_stream_store(graph *g, value k, value v, stream_values at, matrix_stream_params params)
{
	matrix_stream_apply(g, OP_stream_store, k, v, at, VALUE_NONE, &params, NULL);
}

static int64_t key_heads(const matrix_stream_params *p)
{
	return p->kv_heads > 0 ? p->kv_heads : p->heads;
}

static status check_params(const matrix_stream_params *p, error *err)
{
	int64_t floats;
	if (p->heads < 1)
		return error_set(err, STATUS_INVALID, "heads", "heads is %" PRId64 ", must be at least 1", p->heads);
	if (p->kv_heads < 0 || p->heads % key_heads(p) != 0)
		return error_set(err, STATUS_INVALID, "kv_heads",
		                 "%" PRId64 " kv_heads do not divide %" PRId64 " heads", p->kv_heads, p->heads);
	if (p->key_width < 0 || p->key_width > INT32_MAX || p->key_width % key_heads(p) != 0)
		return error_set(err, STATUS_INVALID, "key_width", "%" PRId64 " kv_heads do not divide %" PRId64,
		                 key_heads(p), p->key_width);
	if (p->value_width < 0 || p->value_width > INT32_MAX || p->value_width % key_heads(p) != 0)
		return error_set(err, STATUS_INVALID, "value_width", "%" PRId64 " kv_heads do not divide %" PRId64,
		                 key_heads(p), p->value_width);
	if (p->window < 1 || p->window > INT32_MAX ||
	    !memory_product(p->window, p->key_width + p->value_width + 1, &floats))
		return error_set(err, STATUS_INVALID, "window", "window is %" PRId64 ", must be from 1 to %d",
		                 p->window, INT32_MAX);
	if (p->near < 0 || p->near > INT32_MAX || p->far < 0 || p->far > INT32_MAX || (p->far && p->far <= p->near) ||
	    (p->segment == 0 && p->near + p->far > 0))
		return error_set(err, STATUS_INVALID, "near",
		                 "no part of a segment's row lies from %" PRId64 " to %" PRId64 " segments back",
		                 p->near, p->far - 1);
	if (p->source && (p->segment || p->window > SOURCE_MOST))
		return error_set(err, STATUS_INVALID, "source", "a source is in no segments and has at most %d tokens",
		                 SOURCE_MOST);
	return check_segment(p->segment, p->window, err);
}

/* Argument i is f32, [batch, length, width]. */
static status matrix_stream_check_tokens(const op_call *call, int i, const char *name, int64_t width, error *err)
{
	TRY(check_type(call, i, name, DTYPE_F32, err));
	const shape s = call->in[i].shape;
	char text[96];
	if (s.rank == 3 && s.dim[2] == width)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, name, "%s is %s, must be [batch, length, %" PRId64 "]", name,
	                 shape_text(s, text, sizeof text), width);
}

static status check_memory(const op_call *call, const char *name, int64_t width, int64_t *count, error *err)
{
	const matrix_stream_params *p = call->params;
	*count = p->stored.count;
	TRY(check_stored(call, 2, p->stored, p->key_width + p->value_width, 8, name, err));
	if (!check_present(call, 8))
		return STATUS_OK;
	const shape s = call->in[8].shape;
	char text[96];
	TRY(check_type(call, 8, name, DTYPE_F32, err));
	if (s.rank < 2 || shape_last(s) != width)
		return error_set(err, STATUS_INVALID, name, "%s is %s, must be [memories, %" PRId64 "]", name,
		                 shape_text(s, text, sizeof text), width);
	*count = shape_rows(s);
	return STATUS_OK;
}

/* The state in the slots, and which tokens are read. */
static status check_state(const op_call *call, error *err)
{
	const matrix_stream_params *p = call->params;
	const int64_t floats =
	    p->source ? source_state_floats(p->key_width, p->value_width, p->window) : matrix_stream_floats(*p);
	TRY(check_type(call, 2, "pool", DTYPE_F32, err));
	const shape pool = call->in[2].shape;
	if (pool.rank != 2 || p->offset < 0 || p->offset > pool.dim[1] || floats > pool.dim[1] - p->offset)
		return error_set(err, STATUS_INVALID, "pool",
		                 "a slot of the pool has no room for %" PRId64 " floats at %" PRId64, floats,
		                 p->offset);
	if (p->source && check_present(call, 6))
		return error_set(err, STATUS_INVALID, "mask",
		                 "mask is given, and the tokens of a source are all there");
	return check_sequences(call, 3, err);
}

status op_stream_scores_check(op_call *call, error *err)
{
	const matrix_stream_params *p = call->params;
	int64_t memories;
	TRY(check_params(p, err));
	TRY(matrix_stream_check_tokens(call, 0, "q", p->key_width / key_heads(p) * p->heads, err));
	const shape q = call->in[0].shape;
	if (!p->source)
		TRY(check_shape(call, 1, "k", DTYPE_F32, SHAPE3(q.dim[0], q.dim[1], p->key_width),
		                "a row for each of q", err));
	else if (check_present(call, 1))
		return error_set(err, STATUS_INVALID, "k", "k is given, and the slot has the keys of a source");
	TRY(check_state(call, err));
	TRY(check_memory(call, "memory_k", p->key_width, &memories, err));
	const int64_t rows = q.dim[0] * q.dim[1], columns = memories + p->window;
	check_output(call, 0, DTYPE_F32, SHAPE4(rows, p->heads, 1, columns));
	check_output(call, 1, DTYPE_I32, SHAPE2(rows, columns));
	return STATUS_OK;
}

status op_stream_apply_check(op_call *call, error *err)
{
	const matrix_stream_params *p = call->params;
	int64_t memories;
	TRY(check_params(p, err));
	const int64_t width = p->source ? shape_last(call->in[0].shape) : p->value_width;
	TRY(matrix_stream_check_tokens(call, 0, "v", width, err));
	const shape v = call->in[0].shape;
	TRY(check_state(call, err));
	TRY(check_memory(call, "memory_v", p->value_width, &memories, err));
	TRY(check_shape(call, 1, "weights", DTYPE_F32, SHAPE4(v.dim[0] * v.dim[1], p->heads, 1, memories + p->window),
	                "a row for each token and head", err));
	check_output(call, 0, DTYPE_F32, SHAPE3(v.dim[0], v.dim[1], p->value_width / key_heads(p) * p->heads));
	return STATUS_OK;
}

status op_stream_store_check(op_call *call, error *err)
{
	const matrix_stream_params *p = call->params;
	TRY(check_params(p, err));
	if (p->source)
		return error_set(err, STATUS_INVALID, "source", "a source is stored by source_store");
	TRY(matrix_stream_check_tokens(call, 0, "k", p->key_width, err));
	const shape k = call->in[0].shape;
	TRY(check_shape(call, 1, "v", DTYPE_F32, SHAPE3(k.dim[0], k.dim[1], p->value_width), "a row for each of k",
	                err));
	return check_state(call, err);
}
