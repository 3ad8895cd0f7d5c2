/* softmax_stream, source_store and source_attention, and the sizes of their states. */
#include "engine/tensor/ops/softmax_stream.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/softmax.h"
#include "engine/tensor/ops/table.h"

#include <inttypes.h>
#include <math.h>

#include "engine/base/memory.h"

int64_t softmax_state_floats(int64_t key_width, int64_t value_width, int64_t window)
{
	return softmax_ring_floats(softmax_store_of(key_width, value_width, window, SOFTMAX_F32));
}

int64_t softmax_bf16_state_floats(int64_t key_width, int64_t value_width, int64_t window)
{
	return softmax_ring_floats(softmax_store_of(key_width, value_width, window, SOFTMAX_BF16));
}

int64_t softmax_code_state_floats(int64_t key_width, int64_t value_width, int64_t window)
{
	return softmax_ring_floats(softmax_store_of(key_width, value_width, window, SOFTMAX_CODES));
}

int64_t source_state_floats(int64_t key_width, int64_t value_width, int64_t capacity)
{
	return (key_width + value_width) * capacity + 1;
}

status check_qkv(const op_call *call, int64_t heads, error *err)
{
	TRY(check_real(call, 0, "qkv", err));
	shape qkv = call->in[0].shape;
	char text[96];
	if (qkv.rank != 3 || qkv.dim[2] % 3 != 0)
		return error_set(err, STATUS_INVALID, "qkv", "qkv is %s, must be [batch, length, 3 * channels]",
		                 shape_text(qkv, text, sizeof text));
	if (heads < 1 || qkv.dim[2] / 3 % heads != 0)
		return error_set(err, STATUS_INVALID, "heads", "%" PRId64 " heads do not divide %" PRId64 " channels",
		                 heads, qkv.dim[2] / 3);
	return STATUS_OK;
}

static int64_t groups_of(int64_t heads, int64_t kv_heads)
{
	return kv_heads > 0 ? kv_heads : heads;
}

/* Argument i is [batch, length, channels] in f32, the channels a multiple of `heads`. */
static status check_channels(const op_call *call, int i, const char *name, int64_t heads, error *err)
{
	TRY(check_type(call, i, name, DTYPE_F32, err));
	shape s = call->in[i].shape;
	char text[96];
	if (s.rank != 3)
		return error_set(err, STATUS_INVALID, name, "%s is %s, must be [batch, length, channels]", name,
		                 shape_text(s, text, sizeof text));
	if (s.dim[2] < 1 || s.dim[2] % heads != 0)
		return error_set(err, STATUS_INVALID, name,
		                 "%" PRId64 " channels of %s cannot be split into %" PRId64 " heads", s.dim[2], name,
		                 heads);
	return STATUS_OK;
}

/* `kv_heads` as in the parameters, 0 for `heads`. */
static status check_heads(int64_t heads, int64_t kv_heads, error *err)
{
	if (heads < 1)
		return error_set(err, STATUS_INVALID, "heads", "heads is %" PRId64 ", must be at least 1", heads);
	if (kv_heads < 0 || (kv_heads > 0 && heads % kv_heads != 0))
		return error_set(err, STATUS_INVALID, "kv_heads",
		                 "%" PRId64 " heads of keys do not divide %" PRId64 " heads", kv_heads, heads);
	return STATUS_OK;
}

/* A slot of argument i has room at `offset` for `rows` rows of `width` floats and `more` floats. */
static status check_pool(const op_call *call, int i, int64_t offset, int64_t rows, int64_t width, int64_t more,
                         error *err)
{
	TRY(check_type(call, i, "pool", DTYPE_F32, err));
	shape pool = call->in[i].shape;
	int64_t floats;
	if (pool.rank == 2 && offset >= 0 && offset <= pool.dim[1] && memory_product(rows, width, &floats) &&
	    floats <= pool.dim[1] - offset && more <= pool.dim[1] - offset - floats)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, "pool",
	                 "a slot of the pool has no room at %" PRId64 " for %" PRId64 " tokens of %" PRId64 " floats",
	                 offset, rows, width);
}

/* Argument i is f32 with rows of `width`, `count` of them, or if that is -1 any number. */
static status check_rows(const op_call *call, int i, const char *name, int64_t count, int64_t width, error *err)
{
	TRY(check_type(call, i, name, DTYPE_F32, err));
	const shape s = call->in[i].shape;
	char text[96];
	if (shape_last(s) == width && (count < 0 || shape_rows(s) == count))
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, name,
	                 "%s is %s, must have rows of %" PRId64 ", as many of keys as of values", name,
	                 shape_text(s, text, sizeof text), width);
}

/* Arguments i and i + 1, both or neither: memories with rows of key_width and value_width; how many into *count. */
static status check_memories(const op_call *call, int i, int64_t key_width, int64_t value_width, int64_t *count,
                             error *err)
{
	*count = 0;
	if (!check_present(call, i) && !check_present(call, i + 1))
		return STATUS_OK;
	TRY(check_rows(call, i, "memory_k", -1, key_width, err));
	*count = shape_rows(call->in[i].shape);
	return check_rows(call, i + 1, "memory_v", *count, value_width, err);
}

/* --- softmax_stream ------------------------------------------------------------------------------------- */

value op_softmax_stream(graph *g, value q, value k, value v, value pool, value slot, value position, value length,
                        value mask, value start, value memory_k, value memory_v, value bias,
                        softmax_stream_params params)
{
	value out[2], in[] = {q, k, v, pool, slot, position, length, mask, start, memory_k, memory_v, bias};
	graph_apply(g, OP_softmax_stream, in, 12, &params, out);
	return out[0];
}

softmax_stream_values op_softmax_stream_codes(graph *g, value q, value k, value v, value key_step, stream_values at,
                                              value bias, softmax_stream_params params)
{
	value out[2], in[] = {q,       k,        v,          at.pool,    at.slot, at.position, at.length,
	                      at.mask, at.start, VALUE_NONE, VALUE_NONE, bias,    key_step};
	graph_apply(g, OP_softmax_stream, in, 13, &params, out);
	return (softmax_stream_values){out[0], out[1]};
}

/* q, k?, v?: the widths of a token's keys and values into *store. */
static status softmax_stream_check_tokens(const op_call *call, softmax_store *store, error *err)
{
	const softmax_stream_params *p = call->params;
	const shape q = call->in[0].shape;
	if (!check_present(call, 1) && !check_present(call, 2)) {
		TRY(check_type(call, 0, "qkv", DTYPE_F32, err));
		TRY(check_qkv(call, p->heads, err));
		if (p->kv_heads > 0 && p->kv_heads != p->heads)
			return error_set(err, STATUS_INVALID, "kv_heads",
			                 "kv_heads is %" PRId64 ", must be %" PRId64 " like heads where k is missing",
			                 p->kv_heads, p->heads);
		store->key_width = store->value_width = q.dim[2] / 3;
		return STATUS_OK;
	}
	TRY(check_heads(p->heads, p->kv_heads, err));
	TRY(check_channels(call, 0, "q", p->heads, err));
	const int64_t groups = groups_of(p->heads, p->kv_heads);
	TRY(check_channels(call, 2, "v", groups, err));
	*store = (softmax_store){.key_width = q.dim[2] / p->heads * groups, .value_width = call->in[2].shape.dim[2]};
	TRY(check_shape(call, 1, "k", DTYPE_F32, SHAPE3(q.dim[0], q.dim[1], store->key_width),
	                "q's tokens, and heads as wide as its own", err));
	return check_shape(call, 2, "v", DTYPE_F32, SHAPE3(q.dim[0], q.dim[1], store->value_width), "q's tokens", err);
}

/* Check the steps of a ring of codes. */
static status check_codes(const op_call *call, bool codes, error *err)
{
	const softmax_stream_params *p = call->params;
	if (p->bf16 && codes)
		return error_set(err, STATUS_INVALID, "bf16", "bf16 excludes key_step");
	if (codes ? !(p->value_step > 0 && isfinite(p->value_step)) : p->value_step != 0)
		return error_set(err, STATUS_INVALID, "value_step", "value_step is %g, must be %s",
		                 (double)p->value_step, codes ? "above 0" : "0 without key_step");
	const int64_t head = call->in[0].shape.dim[2] / p->heads;
	if (!(p->query_step >= 0 && isfinite(p->query_step)) ||
	    (p->query_step > 0 && (!codes || head > SOFTMAX_MOST_CODES)))
		return error_set(err, STATUS_INVALID, "query_step",
		                 "query_step is %g, must be 0 or, with key_step and heads of up to %d channels, above",
		                 (double)p->query_step, SOFTMAX_MOST_CODES);
	if (!codes)
		return STATUS_OK;
	if (!check_present(call, 1))
		return error_set(err, STATUS_INVALID, "k", "keys must be apart from queries where they are codes");
	return check_count(call, 12, "key_step", DTYPE_F32, shape_rows(call->in[1].shape), "one for each row of k",
	                   err);
}

status op_softmax_stream_check(op_call *call, error *err)
{
	const softmax_stream_params *p = call->params;
	softmax_store store = {0};
	int64_t memories;
	const bool codes = check_present(call, 12);
	TRY(softmax_stream_check_tokens(call, &store, err));
	TRY(check_codes(call, codes, err));
	if (p->window < 1 || p->window > INT32_MAX)
		return error_set(err, STATUS_INVALID, "window", "window is %" PRId64 ", must be from 1 to %d",
		                 p->window, INT32_MAX);
	TRY(check_segment(p->segment, p->window, err));
	const softmax_store ring =
	    softmax_store_of(store.key_width, store.value_width, p->window, softmax_format_of(codes, p->bf16));
	TRY(check_pool(call, 3, p->offset, p->window, ring.key_width + ring.value_width + 1, 0, err));
	TRY(check_sequences(call, 4, err));
	TRY(check_memories(call, 9, store.key_width, store.value_width, &memories, err));
	TRY(check_stored(call, 3, p->stored, store.key_width + store.value_width, 9, "memory_k", err));
	memories += p->stored.count;
	if (check_present(call, 11)) {
		const shape bias = call->in[11].shape;
		TRY(check_shape(call, 11, "bias", DTYPE_F32, SHAPE2(shape_rows(bias), p->heads),
		                "one for each distance and head", err));
		if (bias.dim[0] - memories < p->window)
			return error_set(err, STATUS_INVALID, "bias",
			                 "bias has %" PRId64 " distances, must have %" PRId64
			                 " of the window and %" PRId64 " of memories",
			                 bias.dim[0], p->window, memories);
	}
	const shape q = call->in[0].shape;
	const int64_t groups = groups_of(p->heads, p->kv_heads);
	check_output(call, 0, DTYPE_F32, SHAPE3(q.dim[0], q.dim[1], store.value_width / groups * p->heads));
	check_output(call, 1, DTYPE_F32, SHAPE3(q.dim[0], q.dim[1], p->heads));
	return STATUS_OK;
}

/* --- source ------------------------------------------------------------------------------------------------ */

void op_source_store(graph *g, value k, value v, value pool, value slot, value length, value mask, source_params params)
{
	graph_apply(g, OP_source_store, (value[]){k, v, pool, slot, length, mask}, 6, &params, NULL);
}

value op_source_attention(graph *g, value q, value pool, value slot, value length, value start, value memory_k,
                          value memory_v, source_params params)
{
	value out;
	graph_apply(g, OP_source_attention, (value[]){q, pool, slot, length, start, memory_k, memory_v}, 7, &params,
	            &out);
	return out;
}

/* The parameters, and the pool that is argument i; a token's keys have key_width floats. */
static status check_source(const op_call *call, int i, int64_t key_width, error *err)
{
	const source_params *p = call->params;
	const int64_t groups = groups_of(p->heads, p->kv_heads);
	if (p->value_width < 0 || p->value_width % groups != 0)
		return error_set(err, STATUS_INVALID, "value_width",
		                 "%" PRId64 " channels of values cannot be split into %" PRId64 " heads",
		                 p->value_width, groups);
	if (p->capacity < 1 || p->capacity > SOURCE_MOST)
		return error_set(err, STATUS_INVALID, "capacity", "capacity is %" PRId64 ", must be from 1 to %d",
		                 p->capacity, SOURCE_MOST);
	return check_pool(call, i, p->offset, p->capacity, key_width + p->value_width, 1, err);
}

status op_source_store_check(op_call *call, error *err)
{
	const source_params *p = call->params;
	TRY(check_heads(p->heads, p->kv_heads, err));
	TRY(check_channels(call, 0, "k", groups_of(p->heads, p->kv_heads), err));
	const shape k = call->in[0].shape;
	TRY(check_source(call, 2, k.dim[2], err));
	TRY(check_shape(call, 1, "v", DTYPE_F32, SHAPE3(k.dim[0], k.dim[1], p->value_width), "k's tokens", err));
	if (k.dim[1] > p->capacity)
		return error_set(err, STATUS_INVALID, "k", "k has %" PRId64 " tokens, a slot has room for %" PRId64,
		                 k.dim[1], p->capacity);
	TRY(check_shape(call, 3, "slot", DTYPE_I32, SHAPE1(k.dim[0]), "one for each sequence", err));
	if (check_present(call, 4))
		TRY(check_shape(call, 4, "length", DTYPE_I32, SHAPE1(k.dim[0]), "one for each sequence", err));
	if (check_present(call, 5))
		TRY(check_shape(call, 5, "mask", DTYPE_I32, SHAPE2(k.dim[0], k.dim[1]), "one for each token", err));
	return STATUS_OK;
}

status op_source_attention_check(op_call *call, error *err)
{
	const source_params *p = call->params;
	int64_t memories;
	TRY(check_heads(p->heads, p->kv_heads, err));
	TRY(check_channels(call, 0, "q", p->heads, err));
	const shape q = call->in[0].shape;
	const int64_t groups = groups_of(p->heads, p->kv_heads), key_width = q.dim[2] / p->heads * groups;
	TRY(check_source(call, 1, key_width, err));
	int64_t sequences;
	TRY(check_start(call, 4, &sequences, err));
	TRY(check_shape(call, 2, "slot", DTYPE_I32, SHAPE1(sequences), "one for each sequence", err));
	TRY(check_shape(call, 3, "length", DTYPE_I32, SHAPE1(sequences), "one for each sequence", err));
	TRY(check_memories(call, 5, key_width, p->value_width, &memories, err));
	check_output(call, 0, DTYPE_F32, SHAPE3(q.dim[0], q.dim[1], p->value_width / groups * p->heads));
	return STATUS_OK;
}
