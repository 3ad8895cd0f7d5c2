/* softmax_stream: queries against the ring of engine/tensor/ops/softmax_stream.h and the call's own tokens.
 *
 * Nothing is put into the ring before all queries of the call are answered: the call's keys and values are read from
 * qkv, older ones from the ring, so no token overwrites one that an earlier query still needs, and queries are
 * independent of each other. Up to SHORT tokens are read one by one, at the speed of memory: every key is one dot
 * product along the channels. More are read as blocks of queries (softmax_attention.h). Which of the two it is depends
 * on the length of the row alone. */
#include "engine/tensor/ops/softmax_stream.h"

#include <assert.h>
#include <stdatomic.h>

#include "engine/cpu/kernels/softmax_attention.h"
#include "engine/tensor/ops/sequence.h"

enum {
	SHORT = 4, /* tokens one by one take as long as a block of up to a vector of them */
	START = 6  /* the input */
};

/* One sequence. */
typedef struct stream {
	const float *qkv;
	const int32_t *mask; /* of the call's tokens, or NULL */
	float *state, *y;
	int64_t position, length, room, window;
	int64_t d, heads, dh;
	float scale;
} stream;

static stream stream_of(const op_call *call, int64_t row)
{
	const softmax_stream_params *p = call->params;
	shape s = call->in[0].shape, pool = call->in[1].shape;
	const sequence tokens = sequence_at(call, START, row);
	int64_t d = s.dim[2] / 3;
	const int32_t slot = ((const int32_t *)call->in[2].data)[row];
	const int32_t *mask = kernel_optional(call, 5);
	stream r = {.qkv = (const float *)call->in[0].data + tokens.first * 3 * d,
	            .mask = mask ? mask + tokens.first : NULL,
	            .state = (float *)call->in[1].data + slot * pool.dim[1] + p->offset,
	            .y = call->out[0].data ? (float *)call->out[0].data + tokens.first * d : NULL,
	            .position = ((const int32_t *)call->in[3].data)[row],
	            .length = ((const int32_t *)call->in[4].data)[row],
	            .room = tokens.room,
	            .window = p->window,
	            .d = d,
	            .heads = p->heads,
	            .dh = d / p->heads,
	            .scale = p->scale};
	assert(r.length >= 0 && r.length <= r.room && r.position >= 0 && slot >= 0 && slot < pool.dim[0]);
	return r;
}

/* Head h of up to KEYS tokens from j on, before `end`: as many as lie one after another. mask [KEYS] is scratch. */
static inline softmax_keys keys_at(const stream *s, int64_t h, int64_t j, int64_t end, int32_t *mask)
{
	softmax_keys k = {.first = j, .count = kernel_min(SOFTMAX_KEYS, end - j)};
	if (j >= s->position) {
		const float *row = s->qkv + (j - s->position) * 3 * s->d + h * s->dh;
		k.key = row + s->d;
		k.value = row + 2 * s->d;
		k.key_row = k.value_row = 3 * s->d;
		k.mask = s->mask ? s->mask + (j - s->position) : NULL;
		return k;
	}
	int64_t place = j % s->window;
	k.count = kernel_min(k.count, kernel_min(s->position - j, s->window - place));
	k.key = s->state + softmax_key(s->d, place) + h * s->dh;
	k.value = s->state + softmax_value(s->d, s->window, place) + h * s->dh;
	k.key_row = k.value_row = s->d;
	const float *there = s->state + softmax_there(s->d, s->window, place);
	int hidden = 0;
#pragma omp simd reduction(| : hidden)
	for (int64_t r = 0; r < k.count; r++) {
		mask[r] = there[r] != 0.0f;
		hidden |= !mask[r];
	}
	k.mask = hidden ? mask : NULL;
	return k;
}

/* --- one query ------------------------------------------------------------------------------------------- */

typedef float quad __attribute__((vector_size(4 * sizeof(float)), may_alias));

static inline quad add_quarters(product_vector x)
{
	quad part[PRODUCT_VECTOR / 4], sum = {0};
	memcpy(part, &x, sizeof part);
	for (int i = 0; i < PRODUCT_VECTOR / 4; i++)
		sum += part[i];
	return sum;
}

/* The sums of the lanes of four vectors. */
static inline quad add_lanes(const product_vector x[4])
{
	quad a = add_quarters(x[0]), b = add_quarters(x[1]), c = add_quarters(x[2]), d = add_quarters(x[3]);
	a = __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
	c = __builtin_shufflevector(c, d, 0, 1, 4, 5) + __builtin_shufflevector(c, d, 2, 3, 6, 7);
	return __builtin_shufflevector(a, c, 0, 2, 4, 6) + __builtin_shufflevector(a, c, 1, 3, 5, 7);
}

/* score = scale · query·key of the keys r … r + 3; past the last, that of the last. */
static inline void scores(const stream *s, const float *query, const softmax_keys *k, int64_t r, float *score)
{
	const float *key[4];
	product_vector sum[4] = {{0}};
	int64_t d = 0;
	for (int i = 0; i < 4; i++)
		key[i] = k->key + kernel_min(r + i, k->count - 1) * k->key_row;
	for (; d + PRODUCT_VECTOR <= s->dh; d += PRODUCT_VECTOR)
		for (int i = 0; i < 4; i++)
			sum[i] += *(const product_vector *)(query + d) * *(const product_vector *)(key[i] + d);
	quad total = add_lanes(sum);
	for (; d < s->dh; d++)
		total += query[d] * (quad){key[0][d], key[1][d], key[2][d], key[3][d]};
	total *= s->scale;
	memcpy(score, &total, sizeof total);
}

/* y = shrink · y + Σ_r p[r] value_r for `vectors` vectors of channels, in four chains. */
static inline __attribute__((always_inline)) void pool(const int vectors, const softmax_keys *k, const float *p,
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

/* Attend to a tile; y [dh] is not divided by *total yet. */
static inline void attend(const stream *s, const softmax_keys *k, const float *query, float *top, float *total,
                          float *y)
{
	float p[SOFTMAX_KEYS];
	float high = *top, sum = 0.0f;
	int64_t r;
	for (r = 0; r < k->count; r += 4)
		scores(s, query, k, r, p + r);
	for (r = 0; k->mask && r < k->count; r++)
		p[r] = k->mask[r] ? p[r] : -INFINITY;
#pragma omp simd reduction(max : high)
	for (r = 0; r < k->count; r++)
		high = p[r] > high ? p[r] : high;
	if (high == -INFINITY)
		return;
	const float shrink = math_exp(*top - high);
#pragma omp simd reduction(+ : sum)
	for (r = 0; r < k->count; r++) {
		p[r] = math_exp(p[r] - high);
		sum += p[r];
	}
	*top = high;
	*total = shrink * *total + sum;
	int64_t d = 0;
	for (; d + 2 * PRODUCT_VECTOR <= s->dh; d += 2 * PRODUCT_VECTOR)
		pool(2, k, p, shrink, d, y);
	for (; d + PRODUCT_VECTOR <= s->dh; d += PRODUCT_VECTOR)
		pool(1, k, p, shrink, d, y);
	for (; d < s->dh; d++) {
		y[d] *= shrink;
		for (r = 0; r < k->count; r++)
			y[d] += p[r] * k->value[r * k->value_row + d];
	}
}

/* The call's token i. */
static void token(const stream *s, int64_t h, int64_t i)
{
	int64_t t = s->position + i;
	const float *query = s->qkv + i * 3 * s->d + h * s->dh;
	float *y = s->y + i * s->d + h * s->dh, top = -INFINITY, total = 0.0f;
	int32_t mask[SOFTMAX_KEYS];
	softmax_keys k;
	memset(y, 0, (size_t)s->dh * sizeof *y);
	for (int64_t j = t < s->window ? 0 : t - s->window + 1; j <= t; j += k.count) {
		k = keys_at(s, h, j, t + 1, mask);
		attend(s, &k, query, &top, &total, y);
	}
	const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
	for (int64_t d = 0; d < s->dh; d++)
		y[d] *= inverse;
}

/* --- a block of queries ------------------------------------------------------------------------------------ */

static void block(const stream *s, const softmax_block *w, int64_t h, int64_t i)
{
	softmax_queries q = {.first = s->position + i,
	                     .count = kernel_min(SOFTMAX_LANES, s->length - i),
	                     .window = s->window,
	                     .dh = s->dh,
	                     .dv = s->dh};
	int32_t mask[SOFTMAX_KEYS];
	softmax_keys k;
	softmax_block_open(w, &q, s->qkv + i * 3 * s->d + h * s->dh, 3 * s->d, s->scale);
	int64_t end = q.first + q.count;
	for (int64_t j = q.first < q.window ? 0 : q.first - q.window + 1; j < end; j += k.count) {
		k = keys_at(s, h, j, end, mask);
		softmax_block_tile(w, &q, &k, NULL);
	}
	softmax_block_close(w, &q, s->y + i * s->d + h * s->dh, s->d);
}

/* --- the call -------------------------------------------------------------------------------------------------- */

/* Put the call's tokens into the ring, and zeros past the row's length. */
static void finish(const stream *s)
{
	size_t bytes = (size_t)s->d * sizeof(float);
	for (int64_t i = s->length < s->window ? 0 : s->length - s->window; i < s->length; i++) {
		int64_t place = (s->position + i) % s->window;
		const float *row = s->qkv + i * 3 * s->d;
		memcpy(s->state + softmax_key(s->d, place), row + s->d, bytes);
		memcpy(s->state + softmax_value(s->d, s->window, place), row + 2 * s->d, bytes);
		s->state[softmax_there(s->d, s->window, place)] = !s->mask || s->mask[i] ? 1.0f : 0.0f;
	}
	if (s->y)
		memset(s->y + s->length * s->d, 0, (size_t)(s->room - s->length) * bytes);
}

/* Unit: block `unit % blocks` of head `unit / blocks % heads` of a row. */
static void run(const op_call *call, const softmax_block *w, int64_t blocks, int64_t unit)
{
	int64_t heads = ((const softmax_stream_params *)call->params)->heads;
	int64_t h = unit / blocks % heads, i = unit % blocks * SOFTMAX_LANES;
	stream s = stream_of(call, unit / blocks / heads);
	if (s.length > SHORT && i < s.length)
		block(&s, w, h, i);
	for (; s.length <= SHORT && i < s.length; i++)
		token(&s, h, i);
}

/* Keys and channels that the sequences of the call read, a value for each; and the tokens of the longest. */
static int64_t work_of(const op_call *call, int64_t *longest)
{
	int64_t work = 0;
	*longest = 0;
	for (int64_t row = 0; row < sequence_count(call, START); row++) {
		stream s = stream_of(call, row);
		work += kernel_min(s.position + s.length, s.window + s.length) * s.length * s.d;
		*longest = s.length > *longest ? s.length : *longest;
	}
	return work;
}

size_t KERNEL(softmax_stream_scratch)(const backend *b, const op_call *call)
{
	const softmax_stream_params *p = call->params;
	const int64_t dh = call->in[0].shape.dim[2] / 3 / p->heads, floats = softmax_block_floats(dh, dh, false);
	return (size_t)(((const cpu *)b)->threads * floats) * sizeof(float);
}

status KERNEL(softmax_stream)(backend *b, const op_call *call)
{
	const softmax_stream_params *p = call->params;
	int64_t rows = sequence_count(call, START), longest;
	int64_t dh = call->in[0].shape.dim[2] / 3 / p->heads, floats = softmax_block_floats(dh, dh, false);
	const int64_t work = work_of(call, &longest), blocks = kernel_parts(longest, SOFTMAX_LANES);
	const int64_t units = call->out[0].data ? rows * p->heads * blocks : 0;
	int threads = (int)kernel_min(kernel_threads(b, work), units);
	if (threads <= 1) { /* a parallel region costs 0.2 µs even with one thread */
		softmax_block w = softmax_block_in(call->scratch, dh, dh);
		for (int64_t unit = 0; unit < units; unit++)
			run(call, &w, blocks, unit);
	} else {
		_Atomic int64_t next = 0;
#pragma omp parallel for schedule(static, 1) num_threads(threads)
		for (int thread = 0; thread < threads; thread++) {
			softmax_block w = softmax_block_in((float *)call->scratch + thread * floats, dh, dh);
			for (;;) {
				const int64_t unit = atomic_fetch_add(&next, 1);
				if (unit >= units)
					break;
				run(call, &w, blocks, unit);
			}
		}
	}
	for (int64_t row = 0; row < rows; row++) {
		stream s = stream_of(call, row);
		finish(&s);
	}
	return STATUS_OK;
}
