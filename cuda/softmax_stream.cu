/* softmax_stream: queries against memories, the ring of engine/tensor/ops/softmax_stream.h and the call's own tokens.
 * source_attention: queries against memories and a source. Both ops are calls of the kernels of softmax_stream.cuh.
 * This file sets their inputs, the division into chunks, and the scratch that the sums of chunks take. */
#include "cuda/softmax_stream.cuh"

extern "C" {
#include "engine/tensor/ops/softmax.h"
}

enum {
	CHUNK = 2 * TILE,
	MOST_CHUNKS = 32, /* chunks of a longer window have more keys */
	WIDEST = 128,     /* channels of a head for the kernel of long runs */
	LOAD = 32         /* queries of all heads per processor from which a call is split */
};

/* Input numbers. */
enum { Q_IN, K_IN, V_IN, POOL_IN, SLOT_IN, POSITION_IN, LENGTH_IN, MASK_IN, START_IN, MEMORY_K_IN, MEMORY_V_IN, BIAS_IN,
       KEY_STEP_IN };

/* Divide `longest` keys into chunks, in order, and set the values that depend on the sizes. */
static void softmax_stream_cut(ring_call *c, softmax_heads n, int64_t longest)
{
	const int64_t long_chunk = (c->store.places / MOST_CHUNKS + TILE) / TILE * TILE;
	c->heads = n.heads;
	c->group = n.heads / n.kv_heads;
	c->dh = n.key;
	c->dv = n.value;
	c->chunk = max(long_chunk, (int64_t)CHUNK);
	c->memory_chunks = (unsigned)((c->memories + c->chunk - 1) / c->chunk);
	c->chunks = c->memory_chunks + (unsigned)((longest + c->chunk - 1) / c->chunk);
}

static void set_tokens(ring_call *c, const op_call *call, int pool, int slot, int length, int start, int memory)
{
	c->q = (const float *)call->in[Q_IN].data;
	c->q_row = call->in[Q_IN].shape.dim[2];
	c->pool = (float *)call->in[pool].data;
	c->slot = (const int32_t *)call->in[slot].data;
	c->length = (const int32_t *)call->in[length].data;
	c->start = (const int32_t *)cuda_optional(call, start);
	c->memory_k = (const float *)cuda_optional(call, memory);
	c->memory_v = (const float *)cuda_optional(call, memory + 1);
	c->memories = c->memory_k ? shape_rows(call->in[memory].shape) : 0;
	c->y = (float *)call->out[0].data;
	c->rows = (unsigned)call->in[slot].shape.dim[0];
	c->n = call->in[Q_IN].shape.dim[1];
	c->tokens = call->in[Q_IN].shape.dim[0] * c->n;
	c->slot_floats = call->in[pool].shape.dim[1];
}

static ring_call ring_call_of(const op_call *call)
{
	const softmax_stream_params *p = (const softmax_stream_params *)call->params;
	const bool packed = !call->in[K_IN].data;
	const int64_t q_width = call->in[Q_IN].shape.dim[2] / (packed ? 3 : 1);
	const softmax_heads n =
	    softmax_heads_of(q_width, packed ? q_width : call->in[V_IN].shape.dim[2], p->heads, p->kv_heads);
	ring_call c = {};
	set_tokens(&c, call, POOL_IN, SLOT_IN, LENGTH_IN, START_IN, MEMORY_K_IN);
	c.key_step = (const float *)cuda_optional(call, KEY_STEP_IN);
	c.value_step = p->value_step;
	c.keys = n.kv_heads * n.key;
	c.values = n.kv_heads * n.value;
	c.store = softmax_store_of(c.keys, c.values, p->window, softmax_format_of(c.key_step, p->bf16));
	c.channel_bytes = sizeof(float) / c.store.format;
	c.k = packed ? c.q + q_width : (const float *)call->in[K_IN].data;
	c.v = packed ? c.k + q_width : (const float *)call->in[V_IN].data;
	c.k_row = packed ? c.q_row : c.keys;
	c.v_row = packed ? c.q_row : c.values;
	c.position = (const int32_t *)call->in[POSITION_IN].data;
	c.mask = (const int32_t *)cuda_optional(call, MASK_IN);
	c.bias = (const float *)cuda_optional(call, BIAS_IN);
	c.log_normalizer = (float *)call->out[1].data;
	c.past = p->past;
	c.segment = p->segment;
	c.reach = p->past > 0 && p->past < p->window ? p->past + 1 : p->window;
	c.offset = p->offset;
	if (p->stored.count) {
		c.memories = p->stored.count;
		c.stored = p->stored.offset;
	}
	c.scale = p->scale;
	softmax_stream_cut(&c, n, c.reach);
	c.chunks = c.memory_chunks + (unsigned)((c.reach + QUERIES - 2 + c.chunk - 1) / c.chunk + 1);
	return c;
}

static ring_call source_call_of(const op_call *call)
{
	const source_params *p = (const source_params *)call->params;
	const softmax_heads n = softmax_heads_of(call->in[Q_IN].shape.dim[2], p->value_width, p->heads, p->kv_heads);
	ring_call c = {};
	set_tokens(&c, call, 1, 2, 3, 4, 5);
	c.keys = n.kv_heads * n.key;
	c.values = p->value_width;
	c.store = softmax_store_of(c.keys, c.values, p->capacity, SOFTMAX_F32);
	c.channel_bytes = sizeof(float);
	c.reach = UINT32_MAX;
	c.offset = p->offset;
	c.scale = p->scale;
	softmax_stream_cut(&c, n, p->capacity);
	return c;
}

/* Tokens from which a call occupies the device. */
static int64_t full_load(const backend *b, const ring_call *c)
{
	return (LOAD * (int64_t)cuda_of(b)->processors + c->heads - 1) / c->heads;
}

/* Choose the kernels of a call by its shapes. Segments, codes, wide heads and short or few runs are left to attend. */
static ring_call split(const backend *b, ring_call c)
{
	c.split = attends(c) && is_packed(c) && c.store.format != SOFTMAX_CODES && c.segment == 0 && max(c.dh, c.dv) <= WIDEST &&
	          c.tokens > QUERIES * (int64_t)c.rows && c.tokens >= full_load(b, &c) && c.tokens <= INT32_MAX;
	c.sum_tokens = c.split ? (int64_t)c.rows * QUERIES : c.tokens;
	return c;
}

/* Number of pairs of a query and a chunk. */
static int64_t partials(const ring_call *c)
{
	return c->heads * c->sum_tokens * c->chunks;
}

/* Scratch of a call, and of smaller calls of its plan, which may have sums for all their tokens. */
static size_t scratch_bytes(const backend *b, ring_call c)
{
	c = split(b, c);
	if (c.split)
		c.sum_tokens = max(c.sum_tokens, full_load(b, &c));
	return attends(c) ? (size_t)partials(&c) * ((size_t)sum_width(c.dv) * sizeof(float) + sizeof(float2)) : 0;
}

size_t cuda_softmax_stream_scratch(const backend *b, const op_call *call)
{
	return scratch_bytes(b, ring_call_of(call));
}

size_t cuda_source_attention_scratch(const backend *b, const op_call *call)
{
	return scratch_bytes(b, source_call_of(call));
}

static status answer(backend *b, const op_call *call, ring_call of_call)
{
	ring_call c = split(b, of_call);
	c.sum = (float *)call->scratch;
	c.norm = (float2 *)(c.sum + (attends(c) ? partials(&c) * sum_width(c.dv) : 0));
	if (c.split)
		TRY(cuda_softmax_long(b, &c));
	if (attends(c))
		TRY(cuda_softmax_attend(b, &c));
	return cuda_softmax_finish(b, &c);
}

status cuda_softmax_stream(backend *b, const op_call *call)
{
	return shape_count(call->in[Q_IN].shape) == 0 ? STATUS_OK : answer(b, call, ring_call_of(call));
}

status cuda_source_attention(backend *b, const op_call *call)
{
	return shape_count(call->in[Q_IN].shape) == 0 || !call->out[0].data ? STATUS_OK
	                                                                 : answer(b, call, source_call_of(call));
}
