/* source_store and source_attention, over the store of engine/tensor/ops/softmax_stream.h. */
#include "engine/cpu/kernels/softmax_stream.h"

#include <assert.h>

#include "engine/tensor/ops/sequence.h"

/* --- storing ----------------------------------------------------------------------------------------------- */

status KERNEL(source_store)(backend *unused, const op_call *call)
{
	(void)unused; /* an encoder has just computed these rows, which takes far longer than copying them */
	const source_params *p = call->params;
	const shape k = call->in[0].shape, pool = call->in[2].shape;
	const softmax_store store = softmax_store_of(k.dim[2], p->value_width, p->capacity, SOFTMAX_F32);
	const int32_t *length = kernel_optional(call, 4), *mask = kernel_optional(call, 5);
	for (int64_t b = 0; b < k.dim[0]; b++) {
		const int32_t slot = ((const int32_t *)call->in[3].data)[b];
		const int64_t tokens = length ? length[b] : k.dim[1];
		float *state = (float *)call->in[2].data + slot * pool.dim[1] + p->offset;
		int64_t count = 0;
		assert(tokens >= 0 && tokens <= k.dim[1] && slot >= 0 && slot < pool.dim[0]);
		if (tokens == 0)
			continue;
		for (int64_t row = b * k.dim[1]; row < b * k.dim[1] + tokens; row++) {
			if (mask && !mask[row])
				continue;
			memcpy(state + softmax_key(store, count),
			       (const float *)call->in[0].data + row * store.key_width,
			       (size_t)store.key_width * sizeof(float));
			memcpy(state + softmax_value(store, count),
			       (const float *)call->in[1].data + row * store.value_width,
			       (size_t)store.value_width * sizeof(float));
			count++;
		}
		state[source_count_at(store)] = (float)count;
	}
	return STATUS_OK;
}

/* --- attending --------------------------------------------------------------------------------------------- */

/* Input numbers. */
enum { Q, POOL, SLOT, LENGTH, START, MEMORY_K, MEMORY_V };

static softmax_heads heads_of(const op_call *call)
{
	const source_params *p = call->params;
	return softmax_heads_of(call->in[Q].shape.dim[2], p->value_width, p->heads, p->kv_heads);
}

static stream common_of(const op_call *call)
{
	const source_params *p = call->params;
	const softmax_heads n = heads_of(call);
	stream s = {.n = n,
	            .store = softmax_store_of(n.kv_heads * n.key, p->value_width, p->capacity, SOFTMAX_F32),
	            .q = call->in[Q].data,
	            .q_row = call->in[Q].shape.dim[2],
	            .y = call->out[0].data,
	            .memory_k = kernel_optional(call, MEMORY_K),
	            .memory_v = kernel_optional(call, MEMORY_V),
	            .scale = p->scale};
	if (s.memory_k)
		s.memories = shape_rows(call->in[MEMORY_K].shape);
	return s;
}

static void set_sequence(const op_call *call, int64_t row, stream *s)
{
	const sequence tokens = sequence_at(call, START, row);
	const int32_t slot = ((const int32_t *)call->in[SLOT].data)[row];
	s->q += tokens.first * s->q_row;
	if (s->y)
		s->y += tokens.first * s->n.heads * s->n.value;
	s->state = (float *)call->in[POOL].data + slot * call->in[POOL].shape.dim[1] +
	           ((const source_params *)call->params)->offset;
	s->length = ((const int32_t *)call->in[LENGTH].data)[row];
	s->room = tokens.room;
	assert(s->length >= 0 && s->length <= s->room && slot >= 0 && slot < call->in[POOL].shape.dim[0]);
	s->position = s->length > 0 ? source_count(s->store, s->state) : 0;
}

size_t KERNEL(source_attention_scratch)(const backend *b, const op_call *call)
{
	return KERNEL(stream_answer_scratch)(b, heads_of(call), SOFTMAX_F32);
}

status KERNEL(source_attention)(backend *b, const op_call *call)
{
	KERNEL(stream_answer)(b, call, &(stream_call){sequence_count(call, START), common_of(call), set_sequence});
	return STATUS_OK;
}
