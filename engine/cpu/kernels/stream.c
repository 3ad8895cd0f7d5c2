/* additive_stream: one round, token by token, on the state of engine/tensor/ops/additive_stream.h.
 *
 * A row of the batch is one session and runs on one thread; its tokens come one after
 * another, so a prompt read in chunks of any size leaves exactly the same bits. A merge
 * costs two exps and a pass over the head's channels; there are at most four per token. */
#include "engine/cpu/kernels/attention.h"

#include <assert.h>
#include <string.h>

enum { COST = 8 };

/* One aggregate of one head, in a state. */
typedef struct aggregate {
	float *m, *z, *s;
} aggregate;

/* A session's state of one round, and where in it the next token goes. */
typedef struct stream {
	float *state;
	int64_t heads, dh, window, width;
	int64_t block, p; /* j and the offset in it; both 0 when there are no blocks */
} stream;

static inline aggregate aggregate_at(const stream *s, int64_t offset, int64_t h)
{
	float *base = s->state + offset;
	return (aggregate){base + h, base + s->heads + h, base + 2 * s->heads + h * s->dh};
}

static inline void clear(const stream *s, aggregate a)
{
	*a.m = STREAM_EMPTY;
	*a.z = 0.0f;
	memset(a.s, 0, (size_t)s->dh * sizeof *a.s);
}

static inline void copy(const stream *s, aggregate to, aggregate from)
{
	*to.m = *from.m;
	*to.z = *from.z;
	memcpy(to.s, from.s, (size_t)s->dh * sizeof *to.s);
}

/* to := to ⊕ (m, z, s). */
static inline void merge(const stream *st, aggregate to, float m, float z, const float *s)
{
	const float top = *to.m > m ? *to.m : m;
	const float a = math_exp(*to.m - top), b = math_exp(m - top);
	*to.m = top;
	*to.z = a * *to.z + b * z;
#pragma omp simd
	for (int64_t i = 0; i < st->dh; i++)
		to.s[i] = a * to.s[i] + b * s[i];
}

/* g and M of (m, z, s); g may be s. */
static inline void finish(const stream *st, float m, float z, const float *s, float *g, float *log_normalizer)
{
	const float inverse = z > 0.0f ? 1.0f / z : 0.0f;
#pragma omp simd
	for (int64_t i = 0; i < st->dh; i++)
		g[i] = inverse * s[i];
	*log_normalizer = z > 0.0f ? m + math_log(z) : -INFINITY;
}

/* One token of head h in a window of two or more: steps 1 to 4 of the header. */
static void windowed(const stream *s, int64_t h, bool there, float score, const float *x, float *g,
                     float *log_normalizer)
{
	int64_t b = stream_block(s->window), turned = b - 1 - s->p, first = stream_first(s->window, s->p);
	aggregate prefix = aggregate_at(s, STREAM_PREFIX, h), running = aggregate_at(s, stream_running(s->width), h);
	if (s->block >= 1 && s->p > 0) {
		aggregate to = aggregate_at(s, stream_slot(s->width, s->window, s->block - 1, turned), h);
		aggregate from = aggregate_at(s, stream_slot(s->width, s->window, s->block - 1, turned + 1), h);
		merge(s, to, *from.m, *from.z, from.s);
	}
	if (s->p == 0) {
		copy(s, running, prefix);
		clear(s, prefix);
	}
	if (there) {
		merge(s, prefix, score, 1.0f, x);
		merge(s, running, score, 1.0f, x);
	}
	float m = *running.m, z = *running.z;
	memcpy(g, running.s, (size_t)s->dh * sizeof *g);
	if (s->block >= 2 && first < b) {
		aggregate suffix = aggregate_at(s, stream_slot(s->width, s->window, s->block, first), h);
		merge(s, (aggregate){&m, &z, g}, *suffix.m, *suffix.z, suffix.s);
	}
	finish(s, m, z, g, g, log_normalizer);
	aggregate slot = aggregate_at(s, stream_slot(s->width, s->window, s->block, s->p), h);
	clear(s, slot);
	if (there) {
		*slot.m = score;
		*slot.z = 1.0f;
		memcpy(slot.s, x, (size_t)s->dh * sizeof *x);
	}
}

static void global(const stream *s, int64_t h, bool there, float score, const float *x, float *g, float *log_normalizer)
{
	aggregate prefix = aggregate_at(s, STREAM_PREFIX, h);
	if (there)
		merge(s, prefix, score, 1.0f, x);
	finish(s, *prefix.m, *prefix.z, prefix.s, g, log_normalizer);
}

/* The state before position 0. */
static void start(const stream *s)
{
	if (s->window == 1)
		return;
	int64_t floats = attention_state_floats(s->heads * s->dh, s->heads, s->window);
	memset(s->state, 0, (size_t)floats * sizeof *s->state);
	for (int64_t h = 0; h < s->heads; h++) {
		clear(s, aggregate_at(s, STREAM_PREFIX, h));
		if (!stream_is_global(s->window))
			clear(s, aggregate_at(s, stream_running(s->width), h));
	}
}

/* Read one token: x, score, g and log_normalizer are its rows. */
static void token(stream *s, int64_t position, bool there, const float *x, const float *score, float *g,
                  float *log_normalizer)
{
	int64_t b = stream_block(s->window);
	s->block = b ? position / b : 0;
	s->p = b ? position % b : 0;
	if (position == 0)
		start(s);
	for (int64_t h = 0; h < s->heads; h++) {
		int64_t at = h * s->dh;
		if (stream_is_global(s->window))
			global(s, h, there, score[h], x + at, g + at, log_normalizer + h);
		else if (s->window > 1)
			windowed(s, h, there, score[h], x + at, g + at, log_normalizer + h);
		else
			finish(s, score[h], there ? 1.0f : 0.0f, x + at, g + at, log_normalizer + h);
	}
}

/* All tokens of row r of the batch; g, score and log_normalizer are the whole outputs. */
static void row(const op_call *call, int64_t r, float *g, float *score, float *log_normalizer)
{
	const stream_params *p = call->params;
	shape shape_x = call->in[0].shape;
	int64_t n = shape_x.dim[1], d = shape_x.dim[2], heads = p->heads, dh = d / heads;
	int64_t slots = call->in[2].shape.dim[0], slot_floats = call->in[2].shape.dim[1];
	const float *x = (const float *)call->in[0].data + r * n * d, *w = call->in[1].data;
	const int32_t slot = ((const int32_t *)call->in[3].data)[r];
	const int32_t position = ((const int32_t *)call->in[4].data)[r];
	const int32_t length = ((const int32_t *)call->in[5].data)[r];
	const int32_t *mask = kernel_optional(call, 6);
	g += r * n * d;
	score += r * n * heads;
	log_normalizer += r * n * heads;
	assert(length >= 0 && length <= n && position >= 0 && slot >= 0 && slot < slots);
	stream s = {.state = (float *)call->in[2].data + slot * slot_floats + p->offset,
	            .heads = heads,
	            .dh = dh,
	            .window = p->window,
	            .width = stream_width(d, heads)};
	const float scale = 1.0f / sqrtf((float)dh);
	for (int64_t t = 0; t < length; t++) {
		for (int64_t h = 0; h < heads; h++)
			score[t * heads + h] = scale * attention_dot(x + t * d + h * dh, w + h * dh, dh);
		token(&s, (int64_t)position + t, !mask || mask[r * n + t] != 0, x + t * d, score + t * heads, g + t * d,
		      log_normalizer + t * heads);
	}
	memset(g + length * d, 0, (size_t)((n - length) * d) * sizeof *g);
	memset(score + length * heads, 0, (size_t)((n - length) * heads) * sizeof *score);
	memset(log_normalizer + length * heads, 0, (size_t)((n - length) * heads) * sizeof *log_normalizer);
}

size_t KERNEL(additive_stream_scratch)(const backend *b, const op_call *call)
{
	(void)b;
	int64_t floats = 0;
	for (int i = 0; i < call->n_out; i++)
		floats += kernel_spare_floats(call, i);
	return (size_t)floats * sizeof(float);
}

status KERNEL(additive_stream)(backend *b, const op_call *call)
{
	shape x = call->in[0].shape;
	if (shape_count(x) == 0)
		return STATUS_OK;
	float *memory = call->scratch, *g = kernel_output(call, 0, &memory), *score = kernel_output(call, 1, &memory);
	float *log_normalizer = kernel_output(call, 2, &memory);
	const int threads = kernel_threads(b, shape_count(x) * COST);
#pragma omp parallel for schedule(static, 1) num_threads(threads)
	for (int64_t r = 0; r < x.dim[0]; r++)
		row(call, r, g, score, log_normalizer);
	return STATUS_OK;
}
