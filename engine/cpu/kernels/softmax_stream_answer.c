/* The answers to the queries of a call (softmax_stream.h).
 *
 * Keys come in tiles: the memories, then tokens of the slot, as many as are contiguous, then the call's own. Up
 * to STREAM_SHORT queries of a sequence are answered one by one, at the speed of memory: every key is one dot product
 * along the channels. More are answered as blocks (softmax_attention.h). The choice depends only on the length of the
 * sequence, and queries are independent of each other. A query therefore has the same bits in any batch and at any
 * number of threads.
 *
 * A tile of a ring of bf16 is widened to the floats that it holds. Keys and values of the call's own tokens are rounded
 * to bf16 first, so they have the bits that later queries read from the ring.
 *
 * A tile of a ring of codes is decoded for a block of queries, to the floats that a ring of floats holds. For a single
 * query decoding takes as long as reading those floats from a cache. If queries are codes too, scores are therefore
 * sums of products of codes, exact in 32 bits, with a step for each key; values are pooled as they are read. */
#include "engine/cpu/kernels/softmax_stream.h"

#include <stdatomic.h>

#include "engine/cpu/kernels/codes.h"
#include "engine/tensor/ops/quantize.h"
#include "engine/tensor/panel.h"

enum { STREAM_SHORT = 4 /* tokens one by one take as long as a block of up to a vector of them */ };

/* Tokens first … end - 1 are seen by the query of the token at position t. */
static int64_t stream_first(const stream *s, int64_t t)
{
	if (!s->k)
		return 0;
	const int64_t oldest = stream_oldest(t, s->store.places, s->segment), first = t - s->reach + 1;
	return first > oldest ? first : oldest;
}

static int64_t stream_end(const stream *s, int64_t t)
{
	return s->k ? t + 1 : s->position;
}

/* From the query of position t to memory i. */
static int64_t stream_memory_distance(const stream *s, int64_t t, int64_t i)
{
	return s->memories + t - stream_oldest(t, s->store.places, s->segment) - i;
}

/* Up to KEYS memories from i on. */
static softmax_keys stream_memories(const stream *s, int64_t i)
{
	const int64_t key_row = s->n.kv_heads * s->n.key, value_row = s->n.kv_heads * s->n.value;
	return (softmax_keys){.key = s->memory_k + i * key_row + s->key_at,
	                      .value = s->memory_v + i * value_row + s->value_at,
	                      .key_row = key_row,
	                      .value_row = value_row,
	                      .first = i,
	                      .count = kernel_min(SOFTMAX_KEYS, s->memories - i)};
}

/* Return which places from `place` on hold tokens that are keys; mask [KEYS] is scratch. NULL: all of them. */
static const int32_t *stream_mask(const stream *s, int64_t place, int64_t count, int32_t *mask)
{
	const float *present = s->state + softmax_there(s->store, place);
	int hidden = 0;
	if (s->store.format == SOFTMAX_CODES) {
#pragma omp simd reduction(| : hidden)
		for (int64_t r = 0; r < count; r++) {
			mask[r] = softmax_step_is_there(present[r]);
			hidden |= !mask[r];
		}
	} else {
#pragma omp simd reduction(| : hidden)
		for (int64_t r = 0; r < count; r++) {
			mask[r] = present[r] != 0.0f;
			hidden |= !mask[r];
		}
	}
	return hidden ? mask : NULL;
}

/* A head's codes for the tokens of a tile, which are contiguous in a ring. */
typedef struct stream_codes {
	const int8_t *key, *value;
	const float *step; /* step of each key */
	int64_t key_row, value_row;
} stream_codes;

static stream_codes stream_codes_at(const stream *s, int64_t place)
{
	return (stream_codes){.key = (const int8_t *)(s->state + softmax_key(s->store, place)) + s->key_at,
	                      .value = (const int8_t *)(s->state + softmax_value(s->store, place)) + s->value_at,
	                      .step = s->state + softmax_there(s->store, place),
	                      .key_row = 4 * s->store.key_width,
	                      .value_row = 4 * s->store.value_width};
}

/* Decode the keys and values of the places from `place` on, as many as k has, from a ring of codes into the tile. */
static void stream_decode_codes(const stream *s, int64_t place, const softmax_keys *k)
{
	const stream_codes c = stream_codes_at(s, place);
	float *keys = s->tile, *values = s->tile + SOFTMAX_KEYS * s->n.key;
	for (int64_t r = 0; r < k->count; r++) {
		codes_decode(c.key + r * c.key_row, c.step[r], s->n.key, keys + r * s->n.key);
		codes_decode(c.value + r * c.value_row, s->value_step, s->n.value, values + r * s->n.value);
	}
}

static void stream_widen_row(const ring_bf16 *x, int64_t width, float *to)
{
#pragma omp simd
	for (int64_t d = 0; d < width; d++)
		to[d] = panel_f32(x[d]);
}

static void stream_round_row(const float *x, int64_t width, float *to)
{
#pragma omp simd
	for (int64_t d = 0; d < width; d++)
		to[d] = panel_f32(panel_bf16(x[d]));
}

/* Widen those of the places from `place` on, from a ring of bf16. */
static void stream_widen(const stream *s, int64_t place, const softmax_keys *k)
{
	float *keys = s->tile, *values = s->tile + SOFTMAX_KEYS * s->n.key;
	const ring_bf16 *from_key = (const ring_bf16 *)(s->state + softmax_key(s->store, place)) + s->key_at,
	                *from_value = (const ring_bf16 *)(s->state + softmax_value(s->store, place)) + s->value_at;
	for (int64_t r = 0; r < k->count; r++) {
		stream_widen_row(from_key + 2 * r * s->store.key_width, s->n.key, keys + r * s->n.key);
		stream_widen_row(from_value + 2 * r * s->store.value_width, s->n.value, values + r * s->n.value);
	}
}

/* Round those of k, tokens of the call, into the tile. */
static void stream_round(const stream *s, const softmax_keys *k)
{
	float *keys = s->tile, *values = s->tile + SOFTMAX_KEYS * s->n.key;
	for (int64_t r = 0; r < k->count; r++) {
		stream_round_row(k->key + r * k->key_row, s->n.key, keys + r * s->n.key);
		stream_round_row(k->value + r * k->value_row, s->n.value, values + r * s->n.value);
	}
}

static void stream_use_tile(const stream *s, softmax_keys *k)
{
	k->key = s->tile;
	k->value = s->tile + SOFTMAX_KEYS * s->n.key;
	k->key_row = s->n.key;
	k->value_row = s->n.value;
}

/* Return how many of the tokens j … end - 1, j < s->position, are contiguous in a tile. */
static int64_t stream_stored(const stream *s, int64_t j, int64_t end)
{
	const int64_t count = kernel_min(kernel_min(SOFTMAX_KEYS, end - j), s->position - j);
	return kernel_min(count, s->store.places - j % s->store.places);
}

/* Return up to KEYS tokens from j on and before `end`, as many as are contiguous. mask [KEYS] is scratch. */
static softmax_keys stream_tokens(const stream *s, int64_t j, int64_t end, int32_t *mask)
{
	softmax_keys k = {.first = j, .count = kernel_min(SOFTMAX_KEYS, end - j)};
	if (j >= s->position) {
		k.key = s->k + (j - s->position) * s->k_row + s->key_at;
		k.value = s->v + (j - s->position) * s->v_row + s->value_at;
		k.key_row = s->k_row;
		k.value_row = s->v_row;
		k.mask = s->mask ? s->mask + (j - s->position) : NULL;
		if (s->store.format == SOFTMAX_BF16) {
			stream_round(s, &k);
			stream_use_tile(s, &k);
		}
		return k;
	}
	int64_t place = j % s->store.places;
	k.count = stream_stored(s, j, end);
	if (s->tile) {
		(s->store.format == SOFTMAX_BF16 ? stream_widen : stream_decode_codes)(s, place, &k);
		stream_use_tile(s, &k);
	} else {
		k.key = s->state + softmax_key(s->store, place) + s->key_at;
		k.value = s->state + softmax_value(s->store, place) + s->value_at;
		k.key_row = s->store.key_width;
		k.value_row = s->store.value_width;
	}
	if (s->k)
		k.mask = stream_mask(s, place, k.count, mask);
	return k;
}

/* --- one query ------------------------------------------------------------------------------------------- */

typedef float quad __attribute__((vector_size(4 * sizeof(float)), may_alias));

static quad add_quarters(product_vector x)
{
	quad part[PRODUCT_VECTOR / 4], sum = {0};
	memcpy(part, &x, sizeof part);
	for (int i = 0; i < PRODUCT_VECTOR / 4; i++)
		sum += part[i];
	return sum;
}

/* The sums of the lanes of four vectors. */
static quad add_lanes(const product_vector x[4])
{
	quad a = add_quarters(x[0]), b = add_quarters(x[1]), c = add_quarters(x[2]), d = add_quarters(x[3]);
	a = __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
	c = __builtin_shufflevector(c, d, 0, 1, 4, 5) + __builtin_shufflevector(c, d, 2, 3, 6, 7);
	return __builtin_shufflevector(a, c, 0, 2, 4, 6) + __builtin_shufflevector(a, c, 1, 3, 5, 7);
}

/* Result of one query of a head so far; y [n.value] is not divided by `total` yet. */
typedef struct stream_query {
	const float *query;
	const int16_t *code; /* codes of the query; NULL: it has none, and a ring of codes is decoded */
	float top, total, *y;
} stream_query;

/* score = scale · query·key of the keys r … r + 3; past the last, that of the last. */
static void stream_scores(const stream *s, const float *query, const softmax_keys *k, int64_t r, float *score)
{
	const float *key[4];
	product_vector sum[4] = {{0}};
	int64_t d = 0;
	for (int i = 0; i < 4; i++)
		key[i] = k->key + kernel_min(r + i, k->count - 1) * k->key_row;
	for (; d + PRODUCT_VECTOR <= s->n.key; d += PRODUCT_VECTOR)
		for (int i = 0; i < 4; i++)
			sum[i] += *(const product_vector *)(query + d) * *(const product_vector *)(key[i] + d);
	quad total = add_lanes(sum);
	for (; d < s->n.key; d++)
		total += query[d] * (quad){key[0][d], key[1][d], key[2][d], key[3][d]};
	total *= s->scale;
	memcpy(score, &total, sizeof total);
}

/* to [n.key]: the codes of a query. */
static void stream_query_codes(const stream *s, const float *query, int16_t *to)
{
#pragma omp simd
	for (int64_t d = 0; d < s->n.key; d++)
		to[d] = quantize_byte(query[d], s->query_step);
}

/* score [count] = scale · query·key of the keys of a tile, by codes */
static void stream_code_scores(const stream *s, const int16_t *query, const stream_codes *c, int64_t count,
                               float *score)
{
	const float factor = s->scale * s->query_step;
	int32_t dot[SOFTMAX_KEYS];
	for (int64_t r = 0; r < count; r += 4) {
		const int8_t *key[4];
		for (int i = 0; i < 4; i++) /* past the last, repeat it */
			key[i] = c->key + kernel_min(r + i, count - 1) * c->key_row;
		codes_dots(query, key, s->n.key, dot + r);
	}
#pragma omp simd
	for (int64_t r = 0; r < count; r++)
		score[r] = factor * c->step[r] * (float)dot[r];
}

/* y = shrink · y + step Σ_r p[r] value_r of codes for `vectors` vectors of channels, as stream_pool. */
static inline __attribute__((always_inline)) void stream_code_pool(const int vectors, const stream_codes *c,
                                                                   int64_t count, float step, const float *p,
                                                                   float shrink, int64_t d, float *y)
{
	product_vector sum[4][2] = {{{0}}};
	const int8_t *from = c->value + d;
	int64_t r = 0;
	for (; r + 4 <= count; r += 4)
		for (int i = 0; i < 4; i++)
			for (int v = 0; v < vectors; v++)
				sum[i][v] += p[r + i] * codes_widen(from + (r + i) * c->value_row + v * PRODUCT_VECTOR);
	for (; r < count; r++)
		for (int v = 0; v < vectors; v++)
			sum[0][v] += p[r] * codes_widen(from + r * c->value_row + v * PRODUCT_VECTOR);
	for (int v = 0; v < vectors; v++) {
		product_vector *to = (product_vector *)(y + d + v * PRODUCT_VECTOR);
		*to = shrink * *to + step * ((sum[0][v] + sum[1][v]) + (sum[2][v] + sum[3][v]));
	}
}

/* y = shrink · y + Σ_r p[r] value_r of the codes of `count` tokens. */
static void stream_pool_codes(const stream *s, const stream_codes *c, int64_t count, const float *p, float shrink,
                              float *y)
{
	int64_t d = 0;
	for (; d + 2 * PRODUCT_VECTOR <= s->n.value; d += 2 * PRODUCT_VECTOR)
		stream_code_pool(2, c, count, s->value_step, p, shrink, d, y);
	for (; d + PRODUCT_VECTOR <= s->n.value; d += PRODUCT_VECTOR)
		stream_code_pool(1, c, count, s->value_step, p, shrink, d, y);
	for (; d < s->n.value; d++) {
		float sum = 0.0f;
		for (int64_t r = 0; r < count; r++)
			sum += p[r] * (float)c->value[r * c->value_row + d];
		y[d] = shrink * y[d] + s->value_step * sum;
	}
}

/* y = shrink · y + Σ_r p[r] value_r for `vectors` vectors of channels, in four chains. */
static inline __attribute__((always_inline)) void stream_pool(const int vectors, const softmax_keys *k, const float *p,
                                                              float shrink, int64_t d, float *y)
{
	product_vector sum[4][2] = {{{0}}};
	const float *from = k->value + d;
	int64_t r = 0;
	for (; r + 4 <= k->count; r += 4)
		for (int i = 0; i < 4; i++)
			for (int v = 0; v < vectors; v++)
				sum[i][v] += p[r + i] * *(const product_vector *)(from + (r + i) * k->value_row +
				                                                  v * PRODUCT_VECTOR);
	for (; r < k->count; r++)
		for (int v = 0; v < vectors; v++)
			sum[0][v] += p[r] * *(const product_vector *)(from + r * k->value_row + v * PRODUCT_VECTOR);
	for (int v = 0; v < vectors; v++) {
		product_vector *to = (product_vector *)(y + d + v * PRODUCT_VECTOR);
		*to = shrink * *to + ((sum[0][v] + sum[1][v]) + (sum[2][v] + sum[3][v]));
	}
}

/* y = shrink · y + Σ_r p[r] value_r */
static void stream_pool_values(const stream *s, const softmax_keys *k, const float *p, float shrink, float *y)
{
	int64_t d = 0;
	for (; d + 2 * PRODUCT_VECTOR <= s->n.value; d += 2 * PRODUCT_VECTOR)
		stream_pool(2, k, p, shrink, d, y);
	for (; d + PRODUCT_VECTOR <= s->n.value; d += PRODUCT_VECTOR)
		stream_pool(1, k, p, shrink, d, y);
	for (; d < s->n.value; d++) {
		y[d] *= shrink;
		for (int64_t r = 0; r < k->count; r++)
			y[d] += p[r] * k->value[r * k->value_row + d];
	}
}

/* Attend to a tile, whose keys and values are those of `codes` where that is not NULL. bias: of the tile's first key,
 * the next n.heads before it; NULL: none. */
static void stream_attend(const stream *s, const softmax_keys *k, const stream_codes *codes, const float *bias,
                          stream_query *q)
{
	float p[SOFTMAX_KEYS];
	float high = q->top, sum = 0.0f;
	int64_t r;
	if (codes)
		stream_code_scores(s, q->code, codes, k->count, p);
	for (r = 0; !codes && r < k->count; r += 4)
		stream_scores(s, q->query, k, r, p + r);
	for (r = 0; bias && r < k->count; r++)
		p[r] += bias[-r * s->n.heads];
	for (r = 0; k->mask && r < k->count; r++)
		p[r] = k->mask[r] ? p[r] : -INFINITY;
#pragma omp simd reduction(max : high)
	for (r = 0; r < k->count; r++)
		high = p[r] > high ? p[r] : high;
	if (high == -INFINITY)
		return;
	const float shrink = math_exp(q->top - high);
#pragma omp simd reduction(+ : sum)
	for (r = 0; r < k->count; r++) {
		p[r] = math_exp(p[r] - high);
		sum += p[r];
	}
	q->top = high;
	q->total = shrink * q->total + sum;
	if (codes)
		stream_pool_codes(s, codes, k->count, p, shrink, q->y);
	else
		stream_pool_values(s, k, p, shrink, q->y);
}

/* The bias of a distance, or NULL. */
static const float *stream_bias(const stream *s, int64_t distance)
{
	return s->bias ? s->bias + distance * s->n.heads + s->head : NULL;
}

static void stream_put_normalizer(const stream *s, int64_t i, float top, float total)
{
	if (s->log_normalizer)
		s->log_normalizer[i * s->n.heads + s->head] = total > 0.0f ? top + math_log(total) : -INFINITY;
}

/* The call's token i. */
static void stream_token(const stream *s, int64_t i)
{
	const int64_t t = s->position + i, end = stream_end(s, t);
	stream_query q = {.query = s->q + i * s->q_row + s->head * s->n.key,
	                  .top = -INFINITY,
	                  .y = s->y + (i * s->n.heads + s->head) * s->n.value};
	int32_t mask[SOFTMAX_KEYS];
	softmax_keys k;
	if (s->query_step > 0) { /* in the tile, which nothing is decoded to then */
		stream_query_codes(s, q.query, (int16_t *)s->tile);
		q.code = (const int16_t *)s->tile;
	}
	memset(q.y, 0, (size_t)s->n.value * sizeof *q.y);
	const int64_t hidden = s->past > 0 ? stream_memory_distance(s, t, 0) - s->past : 0;
	for (int64_t m = hidden > 0 ? hidden : 0; m < s->memories; m += k.count) {
		k = stream_memories(s, m);
		stream_attend(s, &k, NULL, stream_bias(s, stream_memory_distance(s, t, m)), &q);
	}
	int64_t j = stream_first(s, t);
	for (; q.code && j < kernel_min(end, s->position); j += k.count) {
		const int64_t place = j % s->store.places;
		const stream_codes codes = stream_codes_at(s, place);
		k = (softmax_keys){.first = j, .count = stream_stored(s, j, end)};
		k.mask = stream_mask(s, place, k.count, mask);
		stream_attend(s, &k, &codes, stream_bias(s, t - j), &q);
	}
	for (; j < end; j += k.count) {
		k = stream_tokens(s, j, end, mask);
		stream_attend(s, &k, NULL, stream_bias(s, t - j), &q);
	}
	const float inverse = q.total > 0.0f ? 1.0f / q.total : 0.0f;
	for (int64_t d = 0; d < s->n.value; d++)
		q.y[d] *= inverse;
	stream_put_normalizer(s, i, q.top, q.total);
}

/* --- a block of queries ------------------------------------------------------------------------------------ */

/* The biases of a tile of memories, and hide those too far back. */
static void stream_place_memories(const stream *s, const softmax_queries *q, const softmax_keys *k, float *score)
{
	const int64_t lanes = softmax_lanes(q);
	for (int64_t r = 0; r < k->count && (s->bias || s->past > 0); r++)
		for (int64_t l = 0; l < lanes; l++) {
			const int64_t distance = stream_memory_distance(s, q->first + l, k->first + r);
			float *to = score + r * SOFTMAX_LANES + l;
			if (s->bias)
				*to += s->bias[distance * s->n.heads + s->head];
			if (s->past > 0 && distance > s->past)
				*to = -INFINITY;
		}
}

/* `count` tokens of the call from i on, at most as many as a block holds, all of one segment. */
static void stream_block(const stream *s, const softmax_block *w, int64_t i, int64_t count)
{
	softmax_queries q = {.first = s->position + i,
	                     .count = count,
	                     .window = s->k ? s->reach : s->position + s->length,
	                     .dh = s->n.key,
	                     .dv = s->n.value,
	                     .bidirectional = !s->k};
	if (s->bias)
		q.bias = (softmax_bias){s->bias + s->head, s->n.heads, 0, s->store.places};
	const int64_t end = stream_end(s, q.first + q.count - 1);
	int32_t mask[SOFTMAX_KEYS];
	softmax_keys k;
	softmax_block_open(w, &q, s->q + i * s->q_row + s->head * s->n.key, s->q_row, s->scale);
	for (int64_t m = 0; m < s->memories; m += k.count) {
		k = stream_memories(s, m);
		product(k.count, softmax_lanes(&q), q.dh, (product_matrix){k.key, k.key_row, 1}, w->query,
		        SOFTMAX_LANES, w->score, SOFTMAX_LANES, false);
		stream_place_memories(s, &q, &k, w->score);
		softmax_block_pool(w, &q, &k, NULL);
	}
	for (int64_t j = stream_first(s, q.first); j < end; j += k.count) {
		k = stream_tokens(s, j, end, mask);
		softmax_block_tile(w, &q, &k, NULL);
	}
	softmax_block_close(w, &q, s->y + (i * s->n.heads + s->head) * s->n.value, s->n.heads * s->n.value);
	for (int64_t l = 0; l < count; l++)
		stream_put_normalizer(s, i + l, w->top[l], w->total[l]);
}

/* --- the call -------------------------------------------------------------------------------------------------- */

static void stream_take_head(stream *s, int64_t head)
{
	const int64_t group = s->n.heads == s->n.kv_heads ? head : head / (s->n.heads / s->n.kv_heads);
	s->head = head;
	s->key_at = group * s->n.key;
	s->value_at = group * s->n.value;
}

/* The call's tokens from i on, as many as a block holds, however many there are. */
static void stream_some(const stream *s, const softmax_block *w, int64_t i)
{
	const int64_t end = kernel_min(i + SOFTMAX_LANES, s->length);
	for (int64_t count; s->length > STREAM_SHORT && i < end; i += count) {
		count = end - i;
		if (s->segment > 0)
			count = kernel_min(count, s->segment - (s->position + i) % s->segment);
		stream_block(s, w, i, count);
	}
	for (; s->length <= STREAM_SHORT && i < s->length; i++)
		stream_token(s, i);
}

/* Zeros for the tokens that a sequence does not read. */
static void stream_clear_rest(const stream *s)
{
	const int64_t width = s->n.heads * s->n.value;
	if (s->length == s->room)
		return;
	memset(s->y + s->length * width, 0, (size_t)((s->room - s->length) * width) * sizeof(float));
	if (s->log_normalizer)
		memset(s->log_normalizer + s->length * s->n.heads, 0,
		       (size_t)((s->room - s->length) * s->n.heads) * sizeof(float));
}

/* Scratch of a thread: a block, and a tile of a ring that does not hold floats. */
static int64_t stream_floats(softmax_heads n, softmax_format format)
{
	return softmax_block_floats(n.key, n.value, false) +
	       (format != SOFTMAX_F32 ? SOFTMAX_KEYS * (n.key + n.value) : 0);
}

static float *stream_tile(const stream *common, float *memory)
{
	const softmax_heads n = common->n;
	return common->store.format != SOFTMAX_F32 ? memory + softmax_block_floats(n.key, n.value, false) : NULL;
}

/* On the caller's thread. */
static void stream_answer_here(const op_call *call, const stream_call *all)
{
	const softmax_heads n = all->common.n;
	const softmax_block w = softmax_block_in(call->scratch, n.key, n.value);
	for (int64_t sequence = 0; sequence < all->sequences; sequence++) {
		stream s = stream_at(call, all, sequence);
		s.tile = stream_tile(&all->common, call->scratch);
		for (int64_t head = 0; head < n.heads; head++) {
			stream_take_head(&s, head);
			for (int64_t i = 0; i < s.length; i += SOFTMAX_LANES)
				stream_some(&s, &w, i);
		}
		stream_clear_rest(&s);
	}
}

/* On several: a unit is a block of a head of a sequence, of up to `blocks` blocks. */
static void stream_answer_by(int threads, const op_call *call, const stream_call *all, int64_t blocks)
{
	const softmax_heads n = all->common.n;
	const int64_t floats = stream_floats(n, all->common.store.format), units = all->sequences * n.heads * blocks;
	_Atomic int64_t next = 0;
#pragma omp parallel for schedule(static, 1) num_threads(threads)
	for (int thread = 0; thread < threads; thread++) {
		float *memory = (float *)call->scratch + thread * floats;
		const softmax_block w = softmax_block_in(memory, n.key, n.value);
		for (;;) {
			const int64_t unit = atomic_fetch_add(&next, 1), i = unit % blocks * SOFTMAX_LANES;
			if (unit >= units)
				break;
			stream s = stream_at(call, all, unit / blocks / n.heads);
			s.tile = stream_tile(&all->common, memory);
			stream_take_head(&s, unit / blocks % n.heads);
			if (i < s.length)
				stream_some(&s, &w, i);
			if (unit % (n.heads * blocks) == 0)
				stream_clear_rest(&s);
		}
	}
}

/* Keys and channels that the sequences of the call read, a value for each; and the tokens of the longest. */
static int64_t stream_work(const op_call *call, const stream_call *all, int64_t *longest)
{
	const softmax_heads n = all->common.n;
	int64_t pairs = 0;
	*longest = 0;
	for (int64_t i = 0; i < all->sequences; i++) {
		const stream s = stream_at(call, all, i);
		pairs += (kernel_min(s.position, s.store.places) + s.memories + s.length) * s.length;
		*longest = s.length > *longest ? s.length : *longest;
	}
	return pairs * n.heads * (n.key + n.value) / 2;
}

size_t KERNEL(stream_answer_scratch)(const backend *b, softmax_heads n, softmax_format format)
{
	return (size_t)(((const cpu *)b)->threads * stream_floats(n, format)) * sizeof(float);
}

void KERNEL(stream_answer)(backend *b, const op_call *call, const stream_call *all)
{
	int64_t longest;
	const softmax_heads n = all->common.n;
	const int64_t work = stream_work(call, all, &longest), blocks = kernel_parts(longest, SOFTMAX_LANES);
	const int threads = (int)kernel_min(kernel_threads(b, work), all->sequences * n.heads * blocks);
	if (!all->common.y)
		return;
	if (threads <= 1) /* a parallel region costs 0.2 µs even with one thread */
		stream_answer_here(call, all);
	else
		stream_answer_by(threads, call, all, blocks);
}
