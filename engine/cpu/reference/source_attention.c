/* Storing a source and attending to it, one token and one head at a time. */
#include <string.h>

#include "engine/cpu/reference/reference.h"
#include "engine/cpu/reference/softmax_keys.h"
#include "engine/tensor/ops/sequence.h"
#include "engine/tensor/ops/softmax.h"
#include "engine/tensor/ops/softmax_stream.h"

/* k [B, S, G·h], v [B, S, G·w], pool [slots, floats], slot, length? [B], mask? [B, S] */
status reference_source_store(backend *unused, const op_call *call)
{
	(void)unused;
	const source_params *p = call->params;
	const shape k = call->in[0].shape;
	const softmax_store store = softmax_store_of(k.dim[2], p->value_width, p->capacity, SOFTMAX_F32);
	const int32_t *slot = call->in[3].data, *length = call->n_in > 4 ? call->in[4].data : NULL,
	              *mask = call->n_in > 5 ? call->in[5].data : NULL;
	for (int64_t b = 0; b < k.dim[0]; b++) {
		const int64_t tokens = length ? length[b] : k.dim[1];
		float *state = (float *)call->in[2].data + slot[b] * call->in[2].shape.dim[1] + p->offset;
		int64_t count = 0;
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

/* One head's y in double. */
size_t reference_source_attention_scratch(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)((const source_params *)call->params)->value_width * sizeof(double);
}

/* q [B, N, H·h], pool [slots, floats], slot, length [B], start?, memory_k? [m, G·h], memory_v? [m, G·w]
 * -> y [B, N, H·w] */
status reference_source_attention(backend *unused, const op_call *call)
{
	(void)unused;
	const source_params *p = call->params;
	const int64_t q_width = call->in[0].shape.dim[2];
	const softmax_heads n = softmax_heads_of(q_width, p->value_width, p->heads, p->kv_heads);
	const softmax_store store = softmax_store_of(n.kv_heads * n.key, p->value_width, p->capacity, SOFTMAX_F32);
	const int32_t *slot = call->in[2].data, *length = call->in[3].data;
	const bool remembers = call->n_in > 5 && call->in[5].data;
	const int64_t memories = remembers ? shape_rows(call->in[5].shape) : 0, y_width = n.heads * n.value;
	float *y = call->out[0].data;
	for (int64_t b = 0; b < sequence_count(call, 4) && y; b++) {
		const sequence tokens = sequence_at(call, 4, b);
		const float *state = (const float *)call->in[1].data + slot[b] * call->in[1].shape.dim[1] + p->offset;
		memset(y + tokens.first * y_width, 0, (size_t)(tokens.room * y_width) * sizeof *y);
		for (int64_t i = 0; i < length[b] * n.heads; i++) {
			const int64_t row = tokens.first + i / n.heads, head = i % n.heads;
			const int64_t group = head / (n.heads / n.kv_heads);
			const float *query = (const float *)call->in[0].data + row * q_width + head * n.key;
			softmax_sum all = softmax_sum_of(call->scratch, n.value);
			for (int64_t j = -memories; j < source_count(store, state); j++) {
				const float *k =
				    j < 0 ? (const float *)call->in[5].data + (memories + j) * store.key_width
				          : state + softmax_key(store, j);
				const float *v =
				    j < 0 ? (const float *)call->in[6].data + (memories + j) * store.value_width
				          : state + softmax_value(store, j);
				softmax_sum_add(&all, (double)p->scale * softmax_dot(query, k + group * n.key, n.key),
				                v + group * n.value);
			}
			softmax_sum_end(&all, y + row * y_width + head * n.value);
		}
	}
	return STATUS_OK;
}
