/* linear_stream, linear_stream_grad: the sweep of linear_attention.h on the state of
 * engine/tensor/ops/linear_attention.h, in place where a row of S is whole vectors, else on a copy. A unit of work is a
 * head of a session; a step of a few sessions is one pass over their states, so it is bound by memory. */
#include "engine/cpu/kernels/linear_attention.h"
#include "engine/tensor/ops/linear_attention.h"
#include "engine/tensor/ops/sequence.h"

#include <assert.h>

enum { START = 8 /* the input */ };

/* Scratch of one thread; rows are `pitch` apart. */
typedef struct workspace {
	float *query, *key, *value, *out; /* [TOKENS] */
	float *state;                     /* [dh]: a copy of S in whole vectors */
	float *normalizer;                /* [TOKENS] */
} workspace;

static int64_t linear_stream_workspace_floats(int64_t dh)
{
	return (4 * LINEAR_TOKENS + dh) * linear_pitch(dh) + LINEAR_TOKENS;
}

static workspace linear_stream_workspace_at(int64_t dh, float *memory)
{
	const int64_t chunk = LINEAR_TOKENS * linear_pitch(dh);
	workspace w = {.query = memory};
	w.key = w.query + chunk;
	w.value = w.key + chunk;
	w.out = w.value + chunk;
	w.state = w.out + chunk;
	w.normalizer = w.state + dh * linear_pitch(dh);
	return w;
}

/* One session; tokens are the call's, from the session's first on. */
typedef struct session {
	const float *query, *key, *value;
	const int32_t *mask;
	float *state, *y, *normalizer; /* the last two may be NULL */
	int64_t length, room, d, heads, dh;
	bool begins;
	float eps;
} session;

static session session_at(const op_call *call, int64_t row)
{
	const linear_stream_params *p = call->params;
	const shape s = call->in[0].shape, pool = call->in[3].shape;
	const sequence tokens = sequence_at(call, START, row);
	const int64_t d = s.dim[2], channel = tokens.first * d;
	const int32_t slot = ((const int32_t *)call->in[4].data)[row];
	const int32_t position = ((const int32_t *)call->in[5].data)[row], *mask = kernel_optional(call, 7);
	float *y = call->out[0].data, *normalizer = call->out[1].data;
	const session r = {.query = (const float *)call->in[0].data + channel,
	                   .key = (const float *)call->in[1].data + channel,
	                   .value = (const float *)call->in[2].data + channel,
	                   .mask = mask ? mask + tokens.first : NULL,
	                   .state = (float *)call->in[3].data + slot * pool.dim[1] + p->offset,
	                   .y = y ? y + channel : NULL,
	                   .normalizer = normalizer ? normalizer + tokens.first * p->heads : NULL,
	                   .length = ((const int32_t *)call->in[6].data)[row],
	                   .room = tokens.room,
	                   .d = d,
	                   .heads = p->heads,
	                   .dh = d / p->heads,
	                   .begins = position == 0,
	                   .eps = p->eps};
	assert(r.length >= 0 && r.length <= r.room && position >= 0 && slot >= 0 && slot < pool.dim[0]);
	return r;
}

static linear_tokens tokens_at(const session *s, const float *data, int64_t h, int64_t t, int64_t count, bool masked)
{
	return (linear_tokens){data + t * s->d + h * s->dh, s->d, count, s->dh, masked && s->mask ? s->mask + t : NULL};
}

/* Tokens t … t + count - 1 of head h, S at `state` with rows `row` apart. */
static void linear_stream_read_chunk(const session *s, const workspace *w, int64_t h, int64_t t, int64_t count,
                                     float *state, int64_t row)
{
	const int64_t pitch = linear_pitch(s->dh);
	const linear_sweep sweep = {w->key, w->value, w->query, w->out, pitch, count};
	linear_load_features(tokens_at(s, s->query, h, t, count, false), w->query);
	linear_load_features(tokens_at(s, s->key, h, t, count, true), w->key);
	linear_load_values(tokens_at(s, s->value, h, t, count, true), w->value);
	linear_normalize(true, count, s->dh, w->query, w->key, s->state + linear_normals(s->dh, h), w->normalizer);
	linear_sweep_run(s->dh, product_round(s->dh), sweep, state, row);
	for (int64_t i = 0; i < count; i++) {
		const float inverse = linear_inverse(w->normalizer[i], s->eps), *from = w->out + i * pitch;
		if (s->normalizer)
			s->normalizer[(t + i) * s->heads + h] = w->normalizer[i];
		float *y = s->y ? s->y + (t + i) * s->d + h * s->dh : w->out + i * pitch;
#pragma omp simd
		for (int64_t m = 0; m < s->dh; m++)
			y[m] = inverse * from[m];
	}
}

static void linear_stream_copy_rows(int64_t dh, const float *from, int64_t from_row, float *to, int64_t to_row)
{
	for (int64_t d = 0; d < dh; d++)
		memcpy(to + d * to_row, from + d * from_row, (size_t)dh * sizeof *to);
}

static void read_head(const session *s, const workspace *w, int64_t h)
{
	const int64_t dh = s->dh, width = product_round(dh);
	float *state = s->state + linear_sums(dh, h), *sums = width == dh ? state : w->state;
	if (s->begins && s->length > 0)
		memset(state, 0, (size_t)linear_head_floats(dh) * sizeof *state);
	if (s->length > 0 && sums != state) {
		memset(sums, 0, (size_t)(dh * width) * sizeof *sums);
		linear_stream_copy_rows(dh, state, dh, sums, width);
	}
	for (int64_t t = 0; t < s->length; t += LINEAR_TOKENS)
		linear_stream_read_chunk(s, w, h, t, kernel_min(LINEAR_TOKENS, s->length - t), sums, width);
	if (s->length > 0 && sums != state)
		linear_stream_copy_rows(dh, sums, width, state, dh);
	for (int64_t t = s->length; t < s->room; t++) {
		if (s->y)
			memset(s->y + t * s->d + h * dh, 0, (size_t)dh * sizeof *s->y);
		if (s->normalizer)
			s->normalizer[t * s->heads + h] = 0.0f;
	}
}

/* Heads first … last - 1 of all sessions'. */
static void units(const op_call *call, const workspace *w, int64_t first, int64_t last)
{
	const int64_t heads = ((const linear_stream_params *)call->params)->heads;
	for (int64_t unit = first; unit < last; unit++) {
		const session s = session_at(call, unit / heads);
		read_head(&s, w, unit % heads);
	}
}

size_t KERNEL(linear_stream_scratch)(const backend *b, const op_call *call)
{
	const linear_stream_params *p = call->params;
	return (size_t)(((const cpu *)b)->threads *
	                linear_stream_workspace_floats(call->in[0].shape.dim[2] / p->heads)) *
	       sizeof(float);
}

status KERNEL(linear_stream)(backend *b, const op_call *call)
{
	const linear_stream_params *p = call->params;
	const shape q = call->in[0].shape;
	const int64_t rows = sequence_count(call, START), dh = q.dim[2] / p->heads, count = rows * p->heads;
	const int threads = kernel_threads(b, shape_count(q) * dh / 4);
	/* Whole sessions where there are enough, so that threads write into different cache lines. */
	const int64_t share = rows >= threads ? p->heads : 1;
	if (threads == 1) {
		const workspace w = linear_stream_workspace_at(dh, call->scratch);
		units(call, &w, 0, count);
		return STATUS_OK;
	}
	_Atomic int64_t next = 0;
#pragma omp parallel for schedule(static, 1) num_threads(threads)
	for (int thread = 0; thread < threads; thread++) {
		const workspace w = linear_stream_workspace_at(dh, (float *)call->scratch +
		                                                       thread * linear_stream_workspace_floats(dh));
		for (;;) {
			const int64_t first = atomic_fetch_add(&next, share);
			if (first >= count)
				break;
			units(call, &w, first, kernel_min(first + share, count));
		}
	}
	return STATUS_OK;
}

/* Combine the queries of a row of tokens with the state before the call. */
static void early_queries(const op_call *call, int64_t first, int64_t last)
{
	const linear_stream_params *p = call->params;
	const shape s = call->in[0].shape;
	const int64_t dh = s.dim[2] / p->heads;
	const float *q = call->in[0].data, *before = call->in[1].data, *y = call->in[4].data,
	            *normalizer = call->in[5].data, *dy = call->in[6].data;
	const int32_t *slot = call->in[2].data, *position = call->in[3].data;
	float *dq = call->out[0].data;
	for (int64_t i = first; i < last; i++) {
		const int64_t row = i / p->heads / s.dim[1], h = i % p->heads, at = i * dh;
		const float *state = before + slot[row] * call->in[1].shape.dim[1] + p->offset;
		const float *sums = state + linear_sums(dh, h), *z = state + linear_normals(dh, h);
		const bool reads = position[row] != 0 && normalizer[i] != 0.0f;
		const float inverse = reads ? 1.0f / (normalizer[i] + p->eps) : 0.0f;
		float along = 0.0f;
#pragma omp simd reduction(+ : along)
		for (int64_t d = 0; d < dh; d++)
			along += dy[at + d] * y[at + d];
		for (int64_t d = 0; d < dh; d++) {
			float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
			for (int64_t m = 0; m < dh; m++)
				sum += sums[d * dh + m] * dy[at + m];
			const float slope = q[at + d] > 0.0f ? 1.0f : linear_feature(q[at + d]);
			dq[at + d] = reads ? slope * inverse * (sum - along * z[d]) : 0.0f;
		}
	}
}

status KERNEL(linear_stream_grad)(backend *b, const op_call *call)
{
	const linear_stream_params *p = call->params;
	const shape s = call->in[0].shape;
	const int64_t heads = s.dim[0] * s.dim[1] * p->heads;
	return kernel_for(b, call, heads, shape_count(s) * (s.dim[2] / p->heads), early_queries);
}
