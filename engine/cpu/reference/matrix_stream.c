/* The recurrent form of attention with its matrix, over the ring of engine/tensor/ops/matrix_stream.h: a token, a head
 * and a column at a time. */
#include "engine/tensor/ops/matrix_stream.h"

#include <string.h>

#include "engine/cpu/reference/reference.h"
#include "engine/tensor/ops/sequence.h"
#include "engine/tensor/ops/softmax_stream.h"

enum { START = 7, MEMORY = 8 }; /* inputs */

/* Data that is constant for one sequence. */
typedef struct stream {
	matrix_ring ring;
	float *state;
	const float *memory; /* [memories, width] or NULL */
	int64_t memories, position, length;
	bool source; /* position: its tokens */
	sequence tokens;
} stream;

static stream stream_at(const op_call *call, int64_t s, bool keys)
{
	const matrix_stream_params *p = call->params;
	const int32_t slot = ((const int32_t *)call->in[3].data)[s];
	stream r = {.ring = {p->key_width, p->value_width, p->window, p->segment, p->near, p->far},
	            .state = (float *)call->in[2].data + slot * call->in[2].shape.dim[1] + p->offset,
	            .position = ((const int32_t *)call->in[4].data)[s],
	            .length = ((const int32_t *)call->in[5].data)[s],
	            .source = p->source,
	            .tokens = sequence_at(call, START, s)};
	if (p->source)
		r.position =
		    source_count(softmax_store_of(p->key_width, p->value_width, p->window, SOFTMAX_F32), r.state);
	if (p->stored.count) {
		r.memory = (float *)call->in[2].data + slot * call->in[2].shape.dim[1] + p->stored.offset +
		           (keys ? 0 : p->stored.count * p->key_width);
		r.memories = p->stored.count;
	}
	if (call->n_in > MEMORY && call->in[MEMORY].data) {
		r.memory = call->in[MEMORY].data;
		r.memories = shape_rows(call->in[MEMORY].shape);
	}
	return r;
}

static const int32_t *mask_of(const op_call *call)
{
	return call->n_in > 6 ? call->in[6].data : NULL;
}

/* Contents of the columns for token i of the call. */
static matrix_columns reference_matrix_stream_columns_of(const stream *s, int64_t i)
{
	return matrix_columns_at(s->source ? s->position - 1 : s->position + i, s->ring, s->memories);
}

/* Contents of a column of token i of the call: a row of `call_rows`, of the ring or of the memories; NULL: none.
 * `place`: offset of the rows in the state. *token: its index; -1: a memory. */
static const float *row_at(const stream *s, int64_t i, int64_t column, const float *call_rows, int64_t width,
                           int64_t (*place)(matrix_ring r, int64_t token), int64_t *token)
{
	const matrix_columns c = reference_matrix_stream_columns_of(s, i);
	*token = -1;
	if (column < c.first)
		return NULL;
	if (column < c.tokens)
		return s->memory + (column - c.first) * width;
	*token = c.oldest + column - c.tokens;
	if (*token < s->position)
		return s->state + place(s->ring, *token);
	return call_rows + (s->tokens.first + *token - s->position) * width;
}

/* True if a column of token i is in the part that is read. */
static bool is_read(const stream *s, int64_t i, int64_t column)
{
	const matrix_columns c = reference_matrix_stream_columns_of(s, i);
	return column >= c.begin && column < c.end;
}

/* True if a token of the call or the ring is not masked. */
static bool matrix_stream_is_there(const op_call *call, const stream *s, int64_t token)
{
	const int32_t *mask = mask_of(call);
	if (token < 0 || s->source)
		return true;
	if (token < s->position)
		return s->state[matrix_ring_there(s->ring, token)] != 0;
	return !mask || mask[s->tokens.first + token - s->position] != 0;
}

/* q [B, N, H·h], k [B, N, G·h], … -> scores [R, H, 1, W], visible [R, W] */
status reference_stream_scores(backend *unused, const op_call *call)
{
	(void)unused;
	const matrix_stream_params *p = call->params;
	const int64_t group = p->kv_heads > 0 ? p->heads / p->kv_heads : 1, d = call->in[0].shape.dim[2];
	const int64_t columns = call->out[1].shape.dim[1], width = d / p->heads;
	float *scores = call->out[0].data;
	int32_t *visible = call->out[1].data;
	for (int64_t b = 0; b < sequence_count(call, START); b++) {
		const stream s = stream_at(call, b, true);
		for (int64_t e = 0; e < s.tokens.room * p->heads * columns; e++) {
			const int64_t i = e / columns / p->heads, head = e / columns % p->heads, column = e % columns;
			const int64_t row = s.tokens.first + i;
			const float *query = (const float *)call->in[0].data + row * d + head * width;
			int64_t token;
			const float *key = i < s.length ? row_at(&s, i, column, call->in[1].data, p->key_width,
			                                         matrix_ring_key, &token)
			                                : NULL;
			double sum = 0;
			for (int64_t c = 0; key && is_read(&s, i, column) && c < width; c++)
				sum += (double)query[c] * (double)key[head / group * width + c];
			if (scores)
				scores[(row * p->heads + head) * columns + column] = (float)((double)p->scale * sum);
			if (visible)
				visible[row * columns + column] = key && matrix_stream_is_there(call, &s, token);
		}
	}
	return STATUS_OK;
}

/* v [B, N, G·w], weights [R, H, 1, W], … -> y [B, N, H·w] */
status reference_stream_apply(backend *unused, const op_call *call)
{
	(void)unused;
	const matrix_stream_params *p = call->params;
	const int64_t group = p->kv_heads > 0 ? p->heads / p->kv_heads : 1, d = call->out[0].shape.dim[2];
	const int64_t columns = call->in[1].shape.dim[3], width = d / p->heads;
	for (int64_t b = 0; b < sequence_count(call, START); b++) {
		const stream s = stream_at(call, b, false);
		for (int64_t e = 0; e < s.tokens.room * d; e++) {
			const int64_t i = e / d, head = e % d / width, row = s.tokens.first + i;
			const float *weights = (const float *)call->in[1].data + (row * p->heads + head) * columns;
			double sum = 0;
			for (int64_t column = 0; column < columns && i < s.length; column++) {
				int64_t token;
				const float *v =
				    row_at(&s, i, column, call->in[0].data, p->value_width, matrix_ring_value, &token);
				if (v && is_read(&s, i, column))
					sum += (double)weights[column] * (double)v[head / group * width + e % width];
			}
			((float *)call->out[0].data)[row * d + e % d] = (float)sum;
		}
	}
	return STATUS_OK;
}

/* k [B, N, G·h], v [B, N, G·w], … into the state */
status reference_stream_store(backend *unused, const op_call *call)
{
	(void)unused;
	const matrix_stream_params *p = call->params;
	for (int64_t b = 0; b < sequence_count(call, START); b++) {
		const stream s = stream_at(call, b, true);
		for (int64_t i = 0; i < s.length; i++) {
			const int64_t row = s.tokens.first + i, token = s.position + i;
			const float *k = (const float *)call->in[0].data + row * p->key_width;
			const float *v = (const float *)call->in[1].data + row * p->value_width;
			memcpy(s.state + matrix_ring_key(s.ring, token), k, (size_t)p->key_width * sizeof *k);
			memcpy(s.state + matrix_ring_value(s.ring, token), v, (size_t)p->value_width * sizeof *v);
			s.state[matrix_ring_there(s.ring, token)] = matrix_stream_is_there(call, &s, token) ? 1 : 0;
		}
	}
	return STATUS_OK;
}
