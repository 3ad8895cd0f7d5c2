/* Softmax attention over the ring of engine/tensor/ops/softmax_stream.h, one token and one head at a time. */
#include "engine/tensor/ops/softmax_stream.h"

#include <math.h>
#include <string.h>

#include "engine/cpu/reference/reference.h"
#include "engine/cpu/reference/softmax_keys.h"
#include "engine/tensor/ops/quantize.h"
#include "engine/tensor/ops/sequence.h"
#include "engine/tensor/ops/softmax.h"
#include "engine/tensor/panel.h"

/* Input numbers. */
enum { Q, K, V, POOL, SLOT, POSITION, LENGTH, MASK, START, MEMORY_K, MEMORY_V, BIAS, KEY_STEP };

/* Data that is constant for one sequence. */
typedef struct stream {
	float *state; /* this layer's floats in the slot */
	softmax_store ring;
	softmax_heads n;
	int64_t memories, past, segment;
	const float *memory_k, *memory_v, *bias; /* NULL: none */
	double scale;
	const float *key_step; /* for the call's first row; NULL: no ring of codes */
	float value_step;
	float *key, *value; /* scratch of a ring of codes or bf16: a head of a token */
} stream;

static const float *optional(const op_call *call, int i)
{
	return i < call->n_in ? call->in[i].data : NULL;
}

/* Channels of a token's keys and of its values. */
static int64_t key_width(const stream *s)
{
	return s->n.kv_heads * s->n.key;
}

static int64_t value_width(const stream *s)
{
	return s->n.kv_heads * s->n.value;
}

static stream stream_of(const op_call *call)
{
	const softmax_stream_params *p = call->params;
	const bool packed = !optional(call, K);
	const int64_t query = call->in[Q].shape.dim[2] / (packed ? 3 : 1);
	stream s = {.past = p->past,
	            .segment = p->segment,
	            .memory_k = optional(call, MEMORY_K),
	            .memory_v = optional(call, MEMORY_V),
	            .bias = optional(call, BIAS),
	            .scale = (double)p->scale,
	            .key_step = optional(call, KEY_STEP),
	            .value_step = p->value_step};
	s.n = softmax_heads_of(query, packed ? query : call->in[V].shape.dim[2], p->heads, p->kv_heads);
	s.ring = softmax_store_of(key_width(&s), value_width(&s), p->window, softmax_format_of(s.key_step, p->bf16));
	s.memories = s.memory_k ? shape_rows(call->in[MEMORY_K].shape) : p->stored.count;
	return s;
}

/* to [whole floats]: x [width] in the ring's format, and zeros. step: of codes. */
static void put_row(const stream *s, const float *x, int64_t width, float step, float *to)
{
	const int64_t floats = softmax_row_floats(width, s->ring.format);
	memset(to, 0, (size_t)floats * sizeof *to);
	for (int64_t d = 0; d < width; d++) {
		const uint16_t half = panel_bf16(x[d]);
		if (s->ring.format == SOFTMAX_CODES)
			((int8_t *)to)[d] = quantize_byte(x[d], step);
		else if (s->ring.format == SOFTMAX_BF16)
			memcpy((char *)to + (size_t)d * sizeof half, &half, sizeof half);
		else
			to[d] = x[d];
	}
}

/* Put token t, a row of the call, into the ring: k [G·h], v [G·w]. */
static void softmax_stream_append(const stream *s, int64_t t, int64_t row, bool masked, const float *k, const float *v)
{
	const int64_t place = t % s->ring.places;
	const float step = s->key_step ? s->key_step[row] : 1;
	put_row(s, k, key_width(s), step, s->state + softmax_key(s->ring, place));
	put_row(s, v, value_width(s), s->value_step, s->state + softmax_value(s->ring, place));
	s->state[softmax_there(s->ring, place)] = !masked ? step : s->key_step ? SOFTMAX_MASKED_STEP : 0;
}

/* Return channels first … first + n - 1 of a row of the ring; x [n] is scratch. step: of codes. */
static const float *read_row(const stream *s, const float *row, int64_t first, int64_t n, float step, float *x)
{
	if (s->ring.format == SOFTMAX_F32)
		return row + first;
	for (int64_t d = 0; d < n; d++) {
		uint16_t half;
		if (s->ring.format == SOFTMAX_CODES) {
			x[d] = (float)((const int8_t *)row)[first + d] * step;
			continue;
		}
		memcpy(&half, (const char *)row + (size_t)(first + d) * sizeof half, sizeof half);
		x[d] = panel_f32(half);
	}
	return x;
}

/* The key of a place and group of heads, and its value. */
static const float *key_at(const stream *s, int64_t place, int64_t group)
{
	const float *row = s->state + softmax_key(s->ring, place);
	return read_row(s, row, group * s->n.key, s->n.key, s->state[softmax_there(s->ring, place)], s->key);
}

static const float *value_at(const stream *s, int64_t place, int64_t group)
{
	const float *row = s->state + softmax_value(s->ring, place);
	return read_row(s, row, group * s->n.value, s->n.value, s->value_step, s->value);
}

static bool softmax_stream_is_there(const stream *s, int64_t place)
{
	const float present = s->state[softmax_there(s->ring, place)];
	return s->key_step ? softmax_step_is_there(present) : present != 0;
}

/* Token t, in the ring already, attends: query [h], y [w] (NULL: not requested) of head n; sum [w] is scratch. Its
 * log-normalizer. */
static double softmax_stream_attend(const stream *s, int64_t n, int64_t t, const float *query, double *sum, float *y)
{
	const int64_t group = n / (s->n.heads / s->n.kv_heads), window = s->ring.places;
	const int64_t last = s->memories + t - stream_oldest(t, window, s->segment);
	softmax_sum all = softmax_sum_of(sum, s->n.value);
	for (int64_t place = 0; place <= last; place++) {
		const int64_t distance = last - place, at = (t - distance) % window;
		const bool memory = place < s->memories;
		if ((s->past > 0 && distance > s->past) || (!memory && !softmax_stream_is_there(s, at)))
			continue;
		const float *k = memory ? s->memory_k + place * key_width(s) + group * s->n.key : key_at(s, at, group);
		const float *v =
		    memory ? s->memory_v + place * value_width(s) + group * s->n.value : value_at(s, at, group);
		double score = s->scale * softmax_dot(query, k, s->n.key);
		if (s->bias)
			score += (double)s->bias[distance * s->n.heads + n];
		softmax_sum_add(&all, score, v);
	}
	return softmax_sum_end(&all, y);
}

/* One head's y in double, its key and its value. */
size_t reference_softmax_stream_scratch(const backend *b, const op_call *call)
{
	(void)b;
	const softmax_heads n = stream_of(call).n;
	return (size_t)n.value * sizeof(double) + (size_t)(n.key + n.value) * sizeof(float);
}

/* q [B, N, H·h], k? [B, N, G·h], v? [B, N, G·w], pool [slots, floats], slot, position, length [B], mask? [B, N],
 * start?, memory_k? [m, G·h], memory_v? [m, G·w], bias? [T, H], key_step? [B·N] -> y [B, N, H·w], log_normalizer [B, N,
 * H] */
status reference_softmax_stream(backend *unused, const op_call *call)
{
	(void)unused;
	const softmax_stream_params *p = call->params;
	const int32_t *slot = call->in[SLOT].data, *position = call->in[POSITION].data, *length = call->in[LENGTH].data;
	const int32_t *mask = MASK < call->n_in ? call->in[MASK].data : NULL;
	const float *k_in = optional(call, K), *v_in = optional(call, V);
	const int64_t row_floats = call->in[Q].shape.dim[2];
	float *y = call->out[0].data, *log_normalizer = call->out[1].data;
	stream s = stream_of(call);
	const int64_t width = s.n.heads * s.n.value;
	s.key = (float *)((double *)call->scratch + s.n.value);
	s.value = s.key + s.n.key;
	for (int64_t b = 0; b < sequence_count(call, START); b++) {
		const sequence tokens = sequence_at(call, START, b);
		float *state = (float *)call->in[POOL].data + slot[b] * call->in[POOL].shape.dim[1];
		s.state = state + p->offset;
		if (p->stored.count) {
			s.memory_k = state + p->stored.offset;
			s.memory_v = s.memory_k + p->stored.count * key_width(&s);
		}
		for (int64_t i = 0; i < tokens.room; i++) {
			int64_t row = tokens.first + i, t = (int64_t)position[b] + i;
			const float *q = (const float *)call->in[Q].data + row * row_floats;
			if (y)
				memset(y + row * width, 0, (size_t)width * sizeof *y);
			if (log_normalizer)
				memset(log_normalizer + row * s.n.heads, 0, (size_t)s.n.heads * sizeof *log_normalizer);
			if (i >= length[b])
				continue;
			softmax_stream_append(&s, t, row, mask && !mask[row],
			                      k_in ? k_in + row * key_width(&s) : q + row_floats / 3,
			                      v_in ? v_in + row * value_width(&s) : q + row_floats / 3 * 2);
			for (int64_t n = 0; n < s.n.heads && (y || log_normalizer); n++) {
				const double m = softmax_stream_attend(&s, n, t, q + n * s.n.key, call->scratch,
				                                       y ? y + row * width + n * s.n.value : NULL);
				if (log_normalizer)
					log_normalizer[row * s.n.heads + n] = (float)m;
			}
		}
	}
	return STATUS_OK;
}
