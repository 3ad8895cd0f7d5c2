/* softmax_stream: queries against the ring of engine/tensor/ops/softmax_stream.h.
 *
 * Nothing is stored in the ring before all queries of the call are answered. The call's keys and values are read from
 * its inputs, older ones from the ring, so no token overwrites one that an earlier query still needs. */
#include "engine/cpu/kernels/softmax_stream.h"

#include <assert.h>

#include "engine/tensor/ops/quantize.h"
#include "engine/tensor/ops/sequence.h"
#include "engine/tensor/panel.h"

/* Input numbers. */
enum { Q, K, V, POOL, SLOT, POSITION, LENGTH, MASK, START, MEMORY_K, MEMORY_V, BIAS, KEY_STEP };

static softmax_heads heads_of(const op_call *call)
{
	const softmax_stream_params *p = call->params;
	const bool packed = !call->in[K].data;
	const int64_t q = call->in[Q].shape.dim[2] / (packed ? 3 : 1);
	return softmax_heads_of(q, packed ? q : call->in[V].shape.dim[2], p->heads, p->kv_heads);
}

/* Data that is independent of the sequence; pointers to tokens are to those of the call. */
static stream common_of(const op_call *call)
{
	const softmax_stream_params *p = call->params;
	const softmax_heads n = heads_of(call);
	const float *key_step = kernel_optional(call, KEY_STEP);
	const softmax_format format = softmax_format_of(key_step, p->bf16);
	stream s = {.n = n,
	            .store = softmax_store_of(n.kv_heads * n.key, n.kv_heads * n.value, p->window, format),
	            .key_step = key_step,
	            .value_step = p->value_step,
	            .query_step = p->query_step,
	            .q = call->in[Q].data,
	            .k = call->in[K].data,
	            .v = call->in[V].data,
	            .q_row = call->in[Q].shape.dim[2],
	            .mask = kernel_optional(call, MASK),
	            .y = call->out[0].data,
	            .log_normalizer = call->out[1].data,
	            .memory_k = kernel_optional(call, MEMORY_K),
	            .memory_v = kernel_optional(call, MEMORY_V),
	            .bias = kernel_optional(call, BIAS),
	            .reach = p->past > 0 && p->past < p->window ? p->past + 1 : p->window,
	            .past = p->past,
	            .segment = p->segment,
	            .scale = p->scale};
	s.k_row = s.k ? n.kv_heads * n.key : s.q_row;
	s.v_row = s.k ? n.kv_heads * n.value : s.q_row;
	if (!s.k) {
		s.k = s.q + n.heads * n.key;
		s.v = s.k + n.heads * n.key;
	}
	s.memories = s.memory_k ? shape_rows(call->in[MEMORY_K].shape) : p->stored.count;
	return s;
}

static void set_sequence(const op_call *call, int64_t row, stream *s)
{
	const softmax_stream_params *p = call->params;
	const sequence tokens = sequence_at(call, START, row);
	const int32_t slot = ((const int32_t *)call->in[SLOT].data)[row];
	s->q += tokens.first * s->q_row;
	s->k += tokens.first * s->k_row;
	s->v += tokens.first * s->v_row;
	if (s->mask)
		s->mask += tokens.first;
	if (s->key_step)
		s->key_step += tokens.first;
	if (s->y)
		s->y += tokens.first * s->n.heads * s->n.value;
	if (s->log_normalizer)
		s->log_normalizer += tokens.first * s->n.heads;
	float *state = (float *)call->in[POOL].data + slot * call->in[POOL].shape.dim[1];
	s->state = state + p->offset;
	if (p->stored.count) {
		s->memory_k = state + p->stored.offset;
		s->memory_v = s->memory_k + p->stored.count * s->n.kv_heads * s->n.key;
	}
	s->position = ((const int32_t *)call->in[POSITION].data)[row];
	s->length = ((const int32_t *)call->in[LENGTH].data)[row];
	s->room = tokens.room;
	assert(s->length >= 0 && s->length <= s->room && s->position >= 0 && slot >= 0 &&
	       slot < call->in[POOL].shape.dim[0]);
}

/* to [width]: the codes of x, and zeros to the end of the last float. */
static void softmax_stream_encode(const float *x, int64_t width, float step, int8_t *to)
{
#pragma omp simd
	for (int64_t d = 0; d < width; d++)
		to[d] = quantize_byte(x[d], step);
	for (int64_t d = width; d < 4 * softmax_row_floats(width, SOFTMAX_CODES); d++)
		to[d] = 0;
}

static void remember_codes(const stream *s, int64_t i, int64_t place)
{
	const float step = s->key_step[i];
	softmax_stream_encode(s->k + i * s->k_row, s->n.kv_heads * s->n.key, step,
	                      (int8_t *)(s->state + softmax_key(s->store, place)));
	softmax_stream_encode(s->v + i * s->v_row, s->n.kv_heads * s->n.value, s->value_step,
	                      (int8_t *)(s->state + softmax_value(s->store, place)));
	s->state[softmax_there(s->store, place)] = !s->mask || s->mask[i] ? step : SOFTMAX_MASKED_STEP;
}

/* to [width]: x rounded to nearest even, and zero to the end of the last float. */
static void softmax_stream_narrow(const float *x, int64_t width, ring_bf16 *to)
{
#pragma omp simd
	for (int64_t d = 0; d < width; d++)
		to[d] = panel_bf16(x[d]);
	if (width % 2)
		to[width] = 0;
}

static void remember_bf16(const stream *s, int64_t i, int64_t place)
{
	softmax_stream_narrow(s->k + i * s->k_row, s->n.kv_heads * s->n.key,
	                      (ring_bf16 *)(s->state + softmax_key(s->store, place)));
	softmax_stream_narrow(s->v + i * s->v_row, s->n.kv_heads * s->n.value,
	                      (ring_bf16 *)(s->state + softmax_value(s->store, place)));
}

static void remember_floats(const stream *s, int64_t i, int64_t place)
{
	memcpy(s->state + softmax_key(s->store, place), s->k + i * s->k_row,
	       (size_t)s->store.key_width * sizeof(float));
	memcpy(s->state + softmax_value(s->store, place), s->v + i * s->v_row,
	       (size_t)s->store.value_width * sizeof(float));
}

/* Put the call's tokens into the ring. */
static void softmax_stream_remember(const stream *s)
{
	const softmax_store ring = s->store;
	for (int64_t i = s->length < ring.places ? 0 : s->length - ring.places; i < s->length; i++) {
		int64_t place = (s->position + i) % ring.places;
		if (s->key_step) {
			remember_codes(s, i, place);
			continue;
		}
		(ring.format == SOFTMAX_BF16 ? remember_bf16 : remember_floats)(s, i, place);
		s->state[softmax_there(ring, place)] = !s->mask || s->mask[i] ? 1.0f : 0.0f;
	}
}

/* Floats of an unused y when only log_normalizer is requested; they follow the rest of the scratch. */
static int64_t spare_floats(const op_call *call)
{
	return call->out[1].data ? kernel_spare_floats(call, 0) : 0;
}

size_t KERNEL(softmax_stream_scratch)(const backend *b, const op_call *call)
{
	return KERNEL(stream_answer_scratch)(b, heads_of(call), common_of(call).store.format) +
	       (size_t)spare_floats(call) * sizeof(float);
}

status KERNEL(softmax_stream)(backend *b, const op_call *call)
{
	stream_call all = {sequence_count(call, START), common_of(call), set_sequence};
	if (spare_floats(call) > 0)
		all.common.y = (float *)((char *)call->scratch +
		                         KERNEL(stream_answer_scratch)(b, all.common.n, all.common.store.format));
	KERNEL(stream_answer)(b, call, &all);
	for (int64_t row = 0; row < all.sequences; row++) {
		const stream s = stream_at(call, &all, row);
		softmax_stream_remember(&s);
	}
	return STATUS_OK;
}
