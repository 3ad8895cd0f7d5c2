/* additive_stream: one round, token by token, on the state of engine/tensor/ops/additive_stream.h.
 *
 * A unit of work is one row of the batch, a session, for a group of neighbouring heads; its tokens come one after
 * another, so a prompt read in chunks of any size leaves exactly the same bits. Heads are independent, so the grouping
 * changes no bit. A token takes two steps. The first computes the scalars of all heads of the group in parallel
 * (maxima, sums, at most four exponentials), which give every factor. The second is one pass over the channels for all
 * merges of the header's steps 1 to 4.
 *
 * A step of many sessions waits for memory more than it computes (256 of them, d 128, 12 rounds, one thread: 0.5 ms, of
 * which a tenth is arithmetic); prefetching the next session's aggregates made no measurable difference. */
#include "engine/cpu/kernels/attention.h"
#include "engine/tensor/ops/sequence.h"

#include <assert.h>
#include <string.h>

enum {
	COST = 8,
	HEADS = 16, /* maximum heads of a group: their maxima fill a cache line, which two threads must not write */
	START = 7   /* the input */
};

/* The call, taken apart. */
typedef struct stream {
	const op_call *call;
	const float *x, *w;
	float *pool, *g, *score, *log_normalizer; /* the last two may be NULL */
	const int32_t *slot, *position, *length, *mask;
	int64_t rows, d, heads, dh; /* rows: sequences */
	int64_t window, block, width;
	int64_t slots, slot_floats, offset;
	int64_t group, groups; /* heads of a unit (the last of a row: maybe fewer), units of a row */
	float scale;
} stream;

/* A group of heads of one session. */
typedef struct unit {
	float *state;
	sequence tokens;
	int64_t row, head, heads;
} unit;

/* One aggregate, seen from the first head of a unit. */
typedef struct aggregate {
	float *m, *z, *s;
} aggregate;

/* The aggregates that one token touches. */
typedef struct place {
	bool turns, begins, reaches; /* a slot must be turned; a block begins; a suffix exists */
	aggregate prefix, running, turned, before, suffix, slot;
} place;

/* Factors of one token's merges, per head. */
typedef struct factors {
	float turned[HEADS], before[HEADS];            /* turned := turned ⊕ before */
	float prefix[HEADS], prefix_x[HEADS];          /* P := P ⊕ token */
	float running[HEADS], running_x[HEADS];        /* Q := Q ⊕ token */
	float from_running[HEADS], from_suffix[HEADS]; /* g */
} factors;

static inline aggregate aggregate_at(const stream *s, const unit *u, int64_t offset)
{
	float *base = u->state + offset;
	return (aggregate){base + u->head, base + s->heads + u->head, base + 2 * s->heads + u->head * s->dh};
}

static inline aggregate slot_at(const stream *s, const unit *u, int64_t block, int64_t index)
{
	return aggregate_at(s, u, stream_slot(s->width, s->window, block, index));
}

/* Offset p of a block; both 0 where there are no blocks. */
static inline place place_at(const stream *s, const unit *u, int64_t block, int64_t p)
{
	const int64_t b = s->block, first = stream_first(s->window, p);
	place at = {.prefix = aggregate_at(s, u, STREAM_PREFIX)};
	if (b == 0)
		return at;
	at.turns = block >= 1 && p > 0;
	at.begins = p == 0;
	at.reaches = block >= 2 && first < b;
	at.running = aggregate_at(s, u, stream_running(s->width));
	at.slot = slot_at(s, u, block, p);
	if (at.turns) {
		at.turned = slot_at(s, u, block - 1, b - 1 - p);
		at.before = slot_at(s, u, block - 1, b - p);
	}
	if (at.reaches)
		at.suffix = slot_at(s, u, block, first);
	return at;
}

/* --- scalars ------------------------------------------------------------------------------ */

/* (m, z) := (m, z) ⊕ (m2, z2) with the factors of either side. */
static inline void merge(float *m, float *z, float m2, float z2, float *factor, float *factor2)
{
	const float top = m2 > *m ? m2 : *m;
	attention_exps(*m, m2, factor, factor2);
	*z = *factor * *z + *factor2 * z2;
	*m = top;
}

/* 1 / z and M of an aggregate. */
static inline float stream_finish(float m, float z, float *log_normalizer)
{
	*log_normalizer = z > 0.0f ? m + math_log(z) : -INFINITY;
	return z > 0.0f ? 1.0f / z : 0.0f;
}

ATTENTION_INLINE void windowed_heads(const place *at, bool present, const float *score, float *log_normalizer,
                                     factors *f, const int64_t heads)
{
	const aggregate p = at->prefix, q = at->running, turned = at->turned, before = at->before;
	const aggregate suffix = at->suffix, slot = at->slot;
	if (at->turns) {
#pragma omp simd
		for (int64_t h = 0; h < heads; h++)
			merge(&turned.m[h], &turned.z[h], before.m[h], before.z[h], &f->turned[h], &f->before[h]);
	}
	for (int64_t h = 0; h < heads && at->begins; h++) {
		q.m[h] = p.m[h];
		q.z[h] = p.z[h];
		p.m[h] = STREAM_EMPTY;
		p.z[h] = 0.0f;
	}
	if (present) {
#pragma omp simd
		for (int64_t h = 0; h < heads; h++) {
			merge(&p.m[h], &p.z[h], score[h], 1.0f, &f->prefix[h], &f->prefix_x[h]);
			merge(&q.m[h], &q.z[h], score[h], 1.0f, &f->running[h], &f->running_x[h]);
		}
	}
	if (at->reaches) {
#pragma omp simd
		for (int64_t h = 0; h < heads; h++) {
			float m = q.m[h], z = q.z[h];
			merge(&m, &z, suffix.m[h], suffix.z[h], &f->from_running[h], &f->from_suffix[h]);
			const float inverse = stream_finish(m, z, &log_normalizer[h]);
			f->from_running[h] *= inverse;
			f->from_suffix[h] *= inverse;
		}
	} else {
#pragma omp simd
		for (int64_t h = 0; h < heads; h++)
			f->from_running[h] = stream_finish(q.m[h], q.z[h], &log_normalizer[h]);
	}
	for (int64_t h = 0; h < heads; h++) {
		slot.m[h] = present ? score[h] : STREAM_EMPTY;
		slot.z[h] = present ? 1.0f : 0.0f;
	}
}

ATTENTION_INLINE void global_heads(const place *at, bool present, const float *score, float *log_normalizer, factors *f,
                                   const int64_t heads)
{
	const aggregate p = at->prefix;
	if (present) {
#pragma omp simd
		for (int64_t h = 0; h < heads; h++)
			merge(&p.m[h], &p.z[h], score[h], 1.0f, &f->prefix[h], &f->prefix_x[h]);
	}
#pragma omp simd
	for (int64_t h = 0; h < heads; h++)
		f->from_running[h] = stream_finish(p.m[h], p.z[h], &log_normalizer[h]);
}

ATTENTION_INLINE void some_heads(const stream *s, const place *at, bool present, const float *score,
                                 float *log_normalizer, factors *f, const int64_t heads)
{
	if (s->block)
		windowed_heads(at, present, score, log_normalizer, f, heads);
	else
		global_heads(at, present, score, log_normalizer, f, heads);
}

static void heads_of(const stream *s, const unit *u, const place *at, bool present, const float *score,
                     float *log_normalizer, factors *f)
{
	switch (u->heads) { /* short loops: pass their length as a constant */
	case 4:
		some_heads(s, at, present, score, log_normalizer, f, 4);
		break;
	case 8:
		some_heads(s, at, present, score, log_normalizer, f, 8);
		break;
	case 16:
		some_heads(s, at, present, score, log_normalizer, f, 16);
		break;
	default:
		some_heads(s, at, present, score, log_normalizer, f, u->heads);
	}
}

/* --- channels ------------------------------------------------------------------------------- */

ATTENTION_INLINE void turn(const place *at, const factors *f, int64_t heads, const int64_t dh)
{
	float *to = at->turned.s;
	const float *from = at->before.s;
	for (int64_t h = 0; h < heads; h++) {
		const float left = f->turned[h], right = f->before[h];
#pragma omp simd
		for (int64_t i = h * dh; i < (h + 1) * dh; i++)
			to[i] = left * to[i] + right * from[i];
	}
}

/* Steps 2 to 4; x is not read if the token is absent. For odd windows suffix and slot are the same. */
ATTENTION_INLINE void pool(const place *at, const factors *f, bool begins, bool present, bool reaches, const float *x,
                           float *g, int64_t heads, const int64_t dh)
{
	float *p = at->prefix.s, *q = at->running.s, *slot = at->slot.s;
	const float *suffix = at->suffix.s, *older = begins ? p : q;
	for (int64_t h = 0; h < heads; h++) {
		const float prefix = f->prefix[h], prefix_x = f->prefix_x[h];
		const float running = f->running[h], running_x = f->running_x[h];
		const float from_running = f->from_running[h], from_suffix = f->from_suffix[h];
#pragma omp simd
		for (int64_t i = h * dh; i < (h + 1) * dh; i++) {
			const float token = present ? x[i] : 0.0f;
			const float sum = present ? running * older[i] + running_x * token : older[i];
			p[i] = begins ? token : present ? prefix * p[i] + prefix_x * token : p[i];
			q[i] = sum;
			g[i] = reaches ? from_running * sum + from_suffix * suffix[i] : from_running * sum;
			slot[i] = token;
		}
	}
}

ATTENTION_INLINE void windowed(const place *at, const factors *f, bool present, const float *x, float *g, int64_t heads,
                               const int64_t dh)
{
	if (at->turns)
		turn(at, f, heads, dh);
	if (!present)
		pool(at, f, at->begins, false, at->reaches, x, g, heads, dh);
	else if (at->begins && at->reaches)
		pool(at, f, true, true, true, x, g, heads, dh);
	else if (at->begins)
		pool(at, f, true, true, false, x, g, heads, dh);
	else if (at->reaches)
		pool(at, f, false, true, true, x, g, heads, dh);
	else
		pool(at, f, false, true, false, x, g, heads, dh);
}

ATTENTION_INLINE void global(const place *at, const factors *f, bool present, const float *x, float *g, int64_t heads,
                             const int64_t dh)
{
	float *p = at->prefix.s;
	for (int64_t h = 0; h < heads; h++) {
		const float prefix = f->prefix[h], prefix_x = f->prefix_x[h], inverse = f->from_running[h];
		for (int64_t i = h * dh; present && i < (h + 1) * dh; i++)
			p[i] = prefix * p[i] + prefix_x * x[i];
#pragma omp simd
		for (int64_t i = h * dh; i < (h + 1) * dh; i++)
			g[i] = inverse * p[i];
	}
}

/* --- sessions ------------------------------------------------------------------------------------ */

/* The state before position 0, of the unit's heads. */
static void stream_start(const stream *s, const unit *u)
{
	int64_t floats = additive_state_floats(s->d, s->heads, s->window);
	for (int64_t offset = 0; offset < floats; offset += s->width) {
		aggregate a = aggregate_at(s, u, offset);
		bool running = offset == STREAM_PREFIX || (s->block && offset == stream_running(s->width));
		for (int64_t h = 0; h < u->heads; h++) {
			a.m[h] = running ? STREAM_EMPTY : 0.0f;
			a.z[h] = 0.0f;
		}
		memset(a.s, 0, (size_t)(u->heads * s->dh) * sizeof *a.s);
	}
}

/* Read one token: x, g, score and log_normalizer are the unit's part of its rows. */
ATTENTION_INLINE void token(const stream *s, const unit *u, const place *at, bool present, const float *x, float *g,
                            float *score, float *log_normalizer, const int64_t dh)
{
	factors f;
	const float *w = s->w + u->head * dh;
	for (int64_t h = 0; h < u->heads; h++)
		score[h] = s->scale * attention_dot(x + h * dh, w + h * dh, dh);
	if (s->window == 1) {
		for (int64_t h = 0; h < u->heads; h++)
			log_normalizer[h] = present ? score[h] : -INFINITY;
		if (present)
			memcpy(g, x, (size_t)(u->heads * dh) * sizeof *g);
		else
			memset(g, 0, (size_t)(u->heads * dh) * sizeof *g);
		return;
	}
	heads_of(s, u, at, present, score, log_normalizer, &f);
	if (s->block)
		windowed(at, &f, present, x, g, u->heads, dh);
	else
		global(at, &f, present, x, g, u->heads, dh);
}

/* All tokens of a unit. */
ATTENTION_INLINE void session_of(const stream *s, const unit *u, const int64_t dh)
{
	const int32_t position = s->position[u->row], length = s->length[u->row];
	float score[HEADS], log_normalizer[HEADS];
	int64_t block = s->block ? position / s->block : 0, p = s->block ? position % s->block : 0;
	if (position == 0 && length > 0)
		stream_start(s, u);
	for (int64_t t = 0; t < length; t++) {
		const int64_t token_at = u->tokens.first + t, channel = token_at * s->d + u->head * dh;
		const int64_t head = token_at * s->heads + u->head;
		place at = place_at(s, u, block, p);
		token(s, u, &at, !s->mask || s->mask[token_at] != 0, s->x + channel, s->g + channel,
		      s->score ? s->score + head : score, s->log_normalizer ? s->log_normalizer + head : log_normalizer,
		      dh);
		if (s->block && ++p == s->block) {
			p = 0;
			block++;
		}
	}
	for (int64_t t = length; t < u->tokens.room; t++) {
		const int64_t token_at = u->tokens.first + t, head = token_at * s->heads + u->head;
		const size_t bytes = (size_t)u->heads * sizeof *score;
		memset(s->g + token_at * s->d + u->head * dh, 0, bytes * (size_t)dh);
		if (s->score)
			memset(s->score + head, 0, bytes);
		if (s->log_normalizer)
			memset(s->log_normalizer + head, 0, bytes);
	}
}

static void session(const stream *s, const unit *u)
{
	ATTENTION_WIDTHS(s->dh, session_of, s, u);
}

static unit unit_at(const stream *s, int64_t index)
{
	unit u = {.row = index / s->groups, .head = index % s->groups * s->group};
	u.tokens = sequence_at(s->call, START, u.row);
	const int32_t slot = s->slot[u.row], length = s->length[u.row];
	assert(length >= 0 && length <= u.tokens.room && s->position[u.row] >= 0 && slot >= 0 && slot < s->slots);
	u.heads = kernel_min(s->group, s->heads - u.head);
	u.state = s->pool + slot * s->slot_floats + s->offset;
	return u;
}

static void units(const stream *s, int64_t first, int64_t last)
{
	for (int64_t i = first; i < last; i++) {
		unit u = unit_at(s, i);
		session(s, &u);
	}
}

size_t KERNEL(additive_stream_scratch)(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)kernel_spare_floats(call, 0) * sizeof(float);
}

status KERNEL(additive_stream)(backend *b, const op_call *call)
{
	const additive_stream_params *p = call->params;
	const shape x = call->in[0].shape, slots = call->in[2].shape;
	float *memory = call->scratch;
	stream s = {.call = call,
	            .x = call->in[0].data,
	            .w = call->in[1].data,
	            .pool = call->in[2].data,
	            .slot = call->in[3].data,
	            .position = call->in[4].data,
	            .length = call->in[5].data,
	            .mask = kernel_optional(call, 6),
	            .g = kernel_output(call, 0, &memory),
	            .score = call->out[1].data,
	            .log_normalizer = call->out[2].data,
	            .rows = sequence_count(call, START),
	            .d = x.dim[2],
	            .heads = p->heads,
	            .dh = x.dim[2] / p->heads,
	            .window = p->window,
	            .block = stream_block(p->window),
	            .width = stream_width(x.dim[2], p->heads),
	            .slots = slots.dim[0],
	            .slot_floats = slots.dim[1],
	            .offset = p->offset};
	if (shape_count(x) == 0)
		return STATUS_OK;
	s.scale = 1.0f / sqrtf((float)s.dh);
	const int threads = kernel_threads(b, shape_count(x) * COST);
	const bool ragged = kernel_optional(call, START);
	s.groups = kernel_parts(s.heads, HEADS);
	s.group = kernel_parts(s.heads, s.groups);
	const int64_t count = s.rows * s.groups;
	if (threads == 1) {
		units(&s, 0, count);
		return STATUS_OK;
	}
	const int64_t share = ragged ? 1 : kernel_parts(count, threads);
#pragma omp parallel for schedule(static, 1) num_threads(threads)
	for (int64_t first = 0; first < count; first += share)
		units(&s, first, kernel_min(count, first + share));
	return STATUS_OK;
}
