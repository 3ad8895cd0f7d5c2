/* dilated_stream: queries against the ring of engine/tensor/ops/dilated.h and the call's own tokens.
 *
 * As in softmax_stream, the ring is written after all queries of the call are answered. Up to SHORT tokens are read one
 * by one, every key a dot product along the channels, with one online softmax through all branches. More are read as
 * the parallel form reads them (dilated_attention.h). */
#include <assert.h>
#include <stdatomic.h>

#include "engine/cpu/kernels/dilated_attention.h"
#include "engine/tensor/ops/sequence.h"

enum { SHORT = 4, START = 8 /* the input */ };

/* One sequence. */
typedef struct stream {
	const float *query, *key, *value;
	const int32_t *mask; /* for the call's tokens, or NULL */
	float *state, *y;
	int64_t position, length, room, window, d;
} stream;

static stream stream_of(const op_call *call, int64_t row)
{
	const dilated_stream_params *p = call->params;
	const sequence tokens = sequence_at(call, START, row);
	const int64_t d = shape_last(call->in[0].shape), first = tokens.first * d;
	const int32_t slot = ((const int32_t *)call->in[4].data)[row];
	const int32_t *mask = kernel_optional(call, 7);
	stream s = {.query = (const float *)call->in[0].data + first,
	            .key = (const float *)call->in[1].data + first,
	            .value = (const float *)call->in[2].data + first,
	            .mask = mask ? mask + tokens.first : NULL,
	            .state = (float *)call->in[3].data + slot * call->in[3].shape.dim[1] + p->offset,
	            .y = call->out[0].data ? (float *)call->out[0].data + first : NULL,
	            .position = ((const int32_t *)call->in[5].data)[row],
	            .length = ((const int32_t *)call->in[6].data)[row],
	            .room = tokens.room,
	            .window = dilated_window(&p->pattern),
	            .d = d};
	assert(s.length >= 0 && s.length <= s.room && s.position >= 0 && slot >= 0 && slot < call->in[3].shape.dim[0]);
	return s;
}

static dilated_head head_of(const op_call *call, const stream *s, int64_t h)
{
	const dilated_stream_params *p = call->params;
	const int64_t dh = s->d / p->heads;
	return (dilated_head){.pattern = &p->pattern,
	                      .heads = p->heads,
	                      .head = h,
	                      .dh = dh,
	                      .d = s->d,
	                      .query = s->query + h * dh,
	                      .key = s->key + h * dh,
	                      .value = s->value + h * dh,
	                      .mask = s->mask,
	                      .position = s->position,
	                      .end = s->position + s->length,
	                      .ring = s->state + h * dh,
	                      .present = s->state + dilated_there(s->d, s->window, 0),
	                      .window = s->window,
	                      .scale = p->scale,
	                      .causal = true};
}

/* Attend to a tile; y [dh] is not divided by *total yet. */
static void dilated_stream_attend(const dilated_head *a, const softmax_keys *k, const float *query, float *top,
                                  float *total, float *y)
{
	float p[SOFTMAX_KEYS], high = *top, sum = 0.0f;
	for (int64_t r = 0; r < k->count; r++) {
		const float *key = k->key + r * k->key_row;
		float score = 0.0f;
#pragma omp simd reduction(+ : score)
		for (int64_t d = 0; d < a->dh; d++)
			score += query[d] * key[d];
		p[r] = k->mask && !k->mask[r] ? -INFINITY : a->scale * score;
		high = p[r] > high ? p[r] : high;
	}
	if (high == -INFINITY)
		return;
	const float shrink = math_exp(*top - high);
#pragma omp simd reduction(+ : sum)
	for (int64_t r = 0; r < k->count; r++) {
		p[r] = math_exp(p[r] - high);
		sum += p[r];
	}
	*top = high;
	*total = shrink * *total + sum;
	for (int64_t d = 0; d < a->dh; d++)
		y[d] *= shrink;
	for (int64_t r = 0; r < k->count; r++) {
		const float *from = k->value + r * k->value_row;
		if (p[r] == 0.0f) /* the value of a masked token may be anything */
			continue;
#pragma omp simd
		for (int64_t d = 0; d < a->dh; d++)
			y[d] += p[r] * from[d];
	}
}

/* The call's token i; y is of token 0. */
static void token(const dilated_head *a, int64_t i, float *y)
{
	const int64_t t = a->position + i;
	float top = -INFINITY, total = 0.0f;
	int32_t mask[SOFTMAX_KEYS];
	y += i * a->d;
	memset(y, 0, (size_t)a->dh * sizeof *y);
	for (int64_t b = 0; b < a->pattern->branches; b++) {
		const int64_t length = dilated_length(a, b);
		const dilated_segment s = dilated_segment_at(a, b, t / length * length);
		const int64_t end = dilated_before(&s, t + 1);
		if (end == 0 || s.first + (end - 1) * s.step != t)
			continue;
		softmax_keys k;
		for (int64_t j = 0; j < end; j += k.count) {
			k = dilated_keys(a, &s, j, end, mask);
			dilated_stream_attend(a, &k, a->query + i * a->d, &top, &total, y);
		}
	}
	const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
	for (int64_t d = 0; d < a->dh; d++)
		y[d] *= inverse;
}

/* A span of the call's tokens. */
static void span(const dilated_head *a, int64_t begin, int64_t end, float *scratch, float *y)
{
	const softmax_block w = softmax_block_in(scratch, a->dh, a->dh);
	dilated_span o = {.begin = a->position + begin, .end = a->position + end, .y = y + begin * a->d};
	o.top = scratch + softmax_block_floats(a->dh, a->dh, false);
	o.total = o.top + (end - begin);
	dilated_attend(a, &o, &w);
}

/* Put the call's tokens into the ring, and zeros past the row's length. */
static void dilated_stream_finish(const stream *s)
{
	const size_t bytes = (size_t)s->d * sizeof(float);
	for (int64_t i = s->length < s->window ? 0 : s->length - s->window; i < s->length; i++) {
		const int64_t place = (s->position + i) % s->window;
		memcpy(s->state + dilated_key(s->d, place), s->key + i * s->d, bytes);
		memcpy(s->state + dilated_value(s->d, s->window, place), s->value + i * s->d, bytes);
		s->state[dilated_there(s->d, s->window, place)] = !s->mask || s->mask[i] ? 1.0f : 0.0f;
	}
	if (s->y)
		memset(s->y + s->length * s->d, 0, (size_t)(s->room - s->length) * bytes);
}

/* Unit: span `unit % spans` of head `unit / spans % heads` of a row. */
static void dilated_stream_run(const op_call *call, float *scratch, int64_t size, int64_t spans, int64_t unit)
{
	const int64_t heads = ((const dilated_stream_params *)call->params)->heads, h = unit / spans % heads;
	const stream s = stream_of(call, unit / spans / heads);
	const dilated_head a = head_of(call, &s, h);
	const int64_t begin = unit % spans * size, end = kernel_min(begin + size, s.length);
	if (s.length > SHORT && begin < end)
		span(&a, begin, end, scratch, s.y + h * a.dh);
	for (int64_t i = begin; i < end && s.length <= SHORT; i++)
		token(&a, i, s.y + h * a.dh);
}

/* Keys and channels that the sequences of the call read, a value for each; and the tokens of the longest. */
static int64_t work_of(const op_call *call, int64_t *longest)
{
	const dilated_stream_params *p = call->params;
	int64_t work = 0;
	*longest = 0;
	for (int64_t row = 0; row < sequence_count(call, START); row++) {
		const stream s = stream_of(call, row);
		work += dilated_work(&p->pattern, s.position + s.length) * s.length * s.d;
		*longest = s.length > *longest ? s.length : *longest;
	}
	return work;
}

size_t KERNEL(dilated_stream_scratch)(const backend *b, const op_call *call)
{
	const dilated_stream_params *p = call->params;
	const shape s = call->in[0].shape;
	return (size_t)(((const cpu *)b)->threads * dilated_floats(&p->pattern, s.dim[2] / p->heads, s.dim[1])) *
	       sizeof(float);
}

status KERNEL(dilated_stream)(backend *b, const op_call *call)
{
	const dilated_stream_params *p = call->params;
	const shape x = call->in[0].shape;
	const int64_t rows = sequence_count(call, START),
	              floats = dilated_floats(&p->pattern, x.dim[2] / p->heads, x.dim[1]);
	if (shape_count(x) == 0)
		return STATUS_OK;
	int64_t longest;
	const int64_t work = work_of(call, &longest), size = dilated_span_tokens(&p->pattern, x.dim[1]);
	const int64_t spans = kernel_parts(longest, size), units = call->out[0].data ? rows * p->heads * spans : 0;
	const int threads = (int)kernel_min(kernel_threads(b, work), units);
	if (threads <= 1) { /* a parallel region costs 0.2 µs even with one thread */
		for (int64_t unit = 0; unit < units; unit++)
			dilated_stream_run(call, call->scratch, size, spans, unit);
	} else {
		_Atomic int64_t next = 0;
#pragma omp parallel for schedule(static, 1) num_threads(threads)
		for (int thread = 0; thread < threads; thread++) {
			for (;;) {
				const int64_t unit = atomic_fetch_add(&next, 1);
				if (unit >= units)
					break;
				dilated_stream_run(call, (float *)call->scratch + thread * floats, size, spans, unit);
			}
		}
	}
	for (int64_t row = 0; row < rows; row++) {
		const stream s = stream_of(call, row);
		dilated_stream_finish(&s);
	}
	return STATUS_OK;
}
