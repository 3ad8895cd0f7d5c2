/* softmax_layer.h - a layer of recurrent softmax attention on any backend, with a ring of any format, and the
 * texts that it reads. Include after cmocka.h.
 *
 * A layer's pool has MOST + 1 slots of NaN. Text i of a call is in slot i + 1, its state between two margins. */
#ifndef TESTS_UNIT_SUPPORT_SOFTMAX_LAYER_H
#define TESTS_UNIT_SUPPORT_SOFTMAX_LAYER_H

#include <stdlib.h>
#include <string.h>

#include "engine/tensor/backend.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/quantize.h"
#include "engine/tensor/ops/softmax_stream.h"
#include "engine/tensor/panel.h"
#include "tests/unit/support/buffer.h"
#include "tests/unit/support/random.h"

enum { MARGIN = 4, MOST = 4 };

/* Options of a layer. `together`: q, k and v are one tensor. `stored`: the slots have the memories, at a place that is
 * no multiple of 16 bytes. */
typedef struct kind {
	int64_t heads, kv_heads, key, value, window, past, memories;
	bool biased, masked, together, stored;
} kind;

static inline int64_t key_width(const kind *k)
{
	return k->kv_heads * k->key;
}

static inline int64_t value_width(const kind *k)
{
	return k->kv_heads * k->value;
}

/* --- texts ---------------------------------------------------------------------------------------------------- */

/* One sequence: its tokens, the layer's outputs, and the number of tokens read. `step`: the step of each token's keys;
 * NULL if they are not multiples of steps. */
typedef struct text {
	int64_t n, read;
	float *q, *k, *v, *step, *y, *log_normalizer;
	int32_t *mask;
} text;

static inline float *numbers(int64_t count, uint64_t seed)
{
	float *x = malloc((size_t)(count + 1) * sizeof *x);
	assert_non_null(x);
	random_normal(x, count, seed, 1);
	return x;
}

static inline text text_new(const kind *k, int64_t n, uint64_t seed)
{
	text t = {.n = n};
	t.q = numbers(n * k->heads * k->key, seed);
	t.k = numbers(n * key_width(k), seed + 1);
	t.v = numbers(n * value_width(k), seed + 2);
	t.y = numbers(n * k->heads * k->value, seed + 3);
	t.log_normalizer = numbers(n * k->heads, seed + 6);
	t.mask = malloc((size_t)(n + 1) * sizeof *t.mask);
	assert_non_null(t.mask);
	random_integers(t.mask, n, seed + 4, 0, 2);
	for (int64_t i = 0; i < n; i++) /* some queries see no token */
		t.mask[i] = !k->masked || (t.mask[i] && i % 50 > 12);
	return t;
}

/* A text whose keys and values are multiples of steps. Loud values are cut at both ends of the codes; token 3 has keys
 * of 0. */
static inline text coded_new(const kind *k, int64_t n, uint64_t seed)
{
	text t = text_new(k, n, seed);
	const int64_t keys = key_width(k);
	t.step = numbers(n, seed + 5);
	for (int64_t i = 0; i < n; i++) {
		double squares = 0;
		for (int64_t d = 0; d < keys; d++) {
			t.k[i * keys + d] *= i == 3 ? 0 : 1 + (float)(i % 7);
			squares += (double)t.k[i * keys + d] * (double)t.k[i * keys + d];
		}
		t.step[i] = quantize_step(squares, keys);
		for (int64_t d = 0; d < keys; d++)
			t.k[i * keys + d] = quantize_value(t.k[i * keys + d], t.step[i], 8);
	}
	for (int64_t i = 0; i < n * value_width(k); i++)
		t.v[i] = quantize_value(3 * t.v[i], QUANTIZE_FIXED_STEP, 8);
	return t;
}

/* Round the keys and values of a text to bf16. */
static inline void text_round(const kind *k, text *t)
{
	for (int64_t i = 0; i < t->n * key_width(k); i++)
		t->k[i] = panel_f32(panel_bf16(t->k[i]));
	for (int64_t i = 0; i < t->n * value_width(k); i++)
		t->v[i] = panel_f32(panel_bf16(t->v[i]));
}

static inline void text_free(text *t)
{
	free(t->q);
	free(t->k);
	free(t->v);
	free(t->step);
	free(t->y);
	free(t->log_normalizer);
	free(t->mask);
}

/* --- layers --------------------------------------------------------------------------------------------------- */

typedef struct layer {
	backend *b;
	void (*run)(backend *b, op_id id, op_call *call); /* allocates and requests all outputs */
	kind k;
	softmax_format format;
	softmax_stream_params p;
	tensor pool, memory_k, memory_v, bias;
} layer;

static inline tensor layer_tensor(dtype type, shape s)
{
	return (tensor){buffer_new((size_t)shape_count(s) * dtype_bytes(type)), type, s};
}

static inline tensor layer_normal(shape s, uint64_t seed)
{
	tensor t = layer_tensor(DTYPE_F32, s);
	random_normal(t.data, shape_count(s), seed, 1);
	return t;
}

static inline tensor integers_of(const int32_t *x, int64_t n)
{
	tensor t = layer_tensor(DTYPE_I32, SHAPE1(n));
	memcpy(t.data, x, (size_t)n * sizeof *x);
	return t;
}

static inline layer layer_new(backend *b, void (*run)(backend *, op_id, op_call *), kind k, softmax_format format)
{
	const int64_t state = softmax_ring_floats(softmax_store_of(key_width(&k), value_width(&k), k.window, format));
	const int64_t memories = k.stored ? k.memories * (key_width(&k) + value_width(&k)) : 0,
	              at = MARGIN + (state + 3) / 4 * 4 + (k.stored ? 3 : 0);
	const shape pool = SHAPE2(MOST + 1, (at + memories + 3) / 4 * 4 + MARGIN);
	layer l = {.b = b, .run = run, .k = k, .format = format, .pool = layer_tensor(DTYPE_F32, pool)};
	l.p = (softmax_stream_params){.heads = k.heads,
	                              .window = k.window,
	                              .offset = MARGIN,
	                              .scale = 0.3f,
	                              .kv_heads = k.kv_heads,
	                              .past = k.past,
	                              .value_step = format == SOFTMAX_CODES ? QUANTIZE_FIXED_STEP : 0,
	                              .bf16 = format == SOFTMAX_BF16};
	if (k.stored)
		l.p.stored = (slot_rows){.count = k.memories, .offset = at};
	for (int64_t i = 0; k.stored && i <= MOST; i++)
		random_normal((float *)l.pool.data + i * pool.dim[1] + at, memories, 3, 1);
	if (k.memories && !k.stored) {
		l.memory_k = layer_normal(SHAPE2(k.memories, key_width(&k)), 3);
		l.memory_v = layer_normal(SHAPE2(k.memories, value_width(&k)), 4);
	}
	if (k.biased)
		l.bias = layer_normal(SHAPE2(k.window + k.memories, k.heads), 5);
	return l;
}

static inline void layer_free(layer *l)
{
	buffer_free(l->pool.data);
	buffer_free(l->memory_k.data);
	buffer_free(l->memory_v.data);
	buffer_free(l->bias.data);
}

/* --- reading -------------------------------------------------------------------------------------------------- */

/* Copy `width` floats of each of the tokens first … first + n - 1 to tokens at … of a tensor, from channel `column`
 * on. */
static inline void put(tensor *to, int64_t at, int64_t column, const float *from, int64_t first, int64_t n,
                       int64_t width)
{
	const int64_t row = to->shape.dim[2];
	for (int64_t i = 0; i < n; i++)
		memcpy((float *)to->data + (at + i) * row + column, from + (first + i) * width,
		       (size_t)width * sizeof(float));
}

/* Read the next `length` tokens of each text, in slot i + 1, in one call. Texts are rows; with `ragged` they are
 * concatenated, with room for i more tokens after text i. */
static inline void read_texts(layer *l, text *const *some, const int32_t *length, int64_t count, bool ragged)
{
	const kind *k = &l->k;
	int32_t start[MOST + 1] = {0}, slot[MOST], position[MOST], most = 0;
	for (int64_t i = 0; i < count; i++)
		most = length[i] > most ? length[i] : most;
	for (int64_t i = 0; i < count; i++) {
		start[i + 1] = start[i] + (ragged ? length[i] + (int32_t)i : most);
		slot[i] = (int32_t)i + 1;
		position[i] = (int32_t)some[i]->read;
	}
	const int64_t rows = ragged ? 1 : count, tokens = start[count] / rows, queries = k->heads * k->key;
	op_call call = {.params = &l->p, .n_in = 13};
	if (k->together) {
		call.in[0] = layer_tensor(DTYPE_F32, SHAPE3(rows, tokens, 3 * queries));
	} else {
		call.in[0] = layer_tensor(DTYPE_F32, SHAPE3(rows, tokens, queries));
		call.in[1] = layer_tensor(DTYPE_F32, SHAPE3(rows, tokens, key_width(k)));
		call.in[2] = layer_tensor(DTYPE_F32, SHAPE3(rows, tokens, value_width(k)));
	}
	call.in[3] = l->pool;
	call.in[4] = integers_of(slot, count);
	call.in[5] = integers_of(position, count);
	call.in[6] = integers_of(length, count);
	if (k->masked)
		call.in[7] = layer_tensor(DTYPE_I32, SHAPE2(rows, tokens));
	if (ragged)
		call.in[8] = integers_of(start, count);
	if (l->format == SOFTMAX_CODES)
		call.in[12] = layer_tensor(DTYPE_F32, SHAPE1(rows * tokens));
	call.in[9] = l->memory_k;
	call.in[10] = l->memory_v;
	call.in[11] = l->bias;
	for (int64_t i = 0; i < count; i++) {
		const text *t = some[i];
		const int64_t n = length[i];
		put(&call.in[0], start[i], 0, t->q, t->read, n, queries);
		put(&call.in[k->together ? 0 : 1], start[i], k->together ? queries : 0, t->k, t->read, n, key_width(k));
		put(&call.in[k->together ? 0 : 2], start[i], k->together ? 2 * queries : 0, t->v, t->read, n,
		    value_width(k));
		if (k->masked)
			memcpy((int32_t *)call.in[7].data + start[i], t->mask + t->read, (size_t)n * sizeof(int32_t));
		if (l->format == SOFTMAX_CODES)
			memcpy((float *)call.in[12].data + start[i], t->step + t->read, (size_t)n * sizeof(float));
	}
	l->run(l->b, OP_softmax_stream, &call);
	const int64_t width = k->heads * k->value;
	for (int64_t i = 0; i < count; i++) {
		const float *y = (const float *)call.out[0].data + start[i] * width;
		memcpy(some[i]->y + some[i]->read * width, y, (size_t)(length[i] * width) * sizeof *y);
		memcpy(some[i]->log_normalizer + some[i]->read * k->heads,
		       (const float *)call.out[1].data + start[i] * k->heads,
		       (size_t)(length[i] * k->heads) * sizeof(float));
		for (int64_t e = length[i] * width; e < (start[i + 1] - start[i]) * width; e++)
			assert_true(y[e] == 0);
		some[i]->read += length[i];
	}
	call.in[3].data = call.in[9].data = call.in[10].data = call.in[11].data = NULL;
	for (int i = 0; i < call.n_in; i++)
		buffer_free(call.in[i].data);
	for (int i = 0; i < call.n_out; i++)
		buffer_free(call.out[i].data);
}

static inline void read_one(layer *l, text *t, int64_t n)
{
	read_texts(l, &t, &(int32_t){(int32_t)n}, 1, false);
}

static inline void read_in_chunks(layer *l, text *t, int64_t chunk)
{
	for (int64_t left; (left = t->n - t->read) > 0;)
		read_one(l, t, left < chunk ? left : chunk);
}

#endif
