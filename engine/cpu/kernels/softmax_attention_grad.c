/* softmax_attention_grad: the forward's blocks and tiles once more, with the probabilities from log_normalizer.
 *
 * For a block of queries and a tile of keys, lanes along the queries (softmax_attention.h):
 *
 *   Sᵀ = K Qᵀ,  P = e^{S - M},  Uᵀ = V dYᵀ,  dS = P ⊙ (drop(U) - D),  D_i = dy_i·y_i
 *   dQᵀ += Kᵀ dSᵀ,    dV += drop(P)ᵀ dY,    dK += dSᵀ Q
 *
 * dQ is complete when a block has seen its keys. dK and dV are sums over blocks: the blocks of a head are cut
 * into `spans` of about equal work, each with its own partial sums, added in order at the end. The number of spans
 * depends on the shape alone; with heads enough for GRAIN units it is 1. The alternative, one pass for dQ and one for
 * dK and dV, needs no partial sums but seven products in place of five. */
#include "engine/cpu/kernels/softmax_attention.h"

#include <stdatomic.h>

enum {
	KEYS = 32, /* of a tile: fewer than the forward's, so that two tiles stay in the cache */
	GRAIN = 32 /* units wanted; more heads than that are not cut */
};

typedef struct backward {
	int64_t batch, length, d, heads, dh, window, blocks, spans;
	int64_t width; /* dh as whole vectors */
	const float *qkv, *y, *log_normalizer, *dy;
	const int32_t *mask;
	float scale;
	softmax_dropout drop;
	bool frozen; /* dS = 0: dK and dQ stay zero */
	float *dqkv;
} backward;

static backward backward_of(const op_call *call)
{
	const softmax_params *p = call->params;
	shape s = call->in[0].shape;
	backward f = {.batch = s.dim[0],
	              .length = s.dim[1],
	              .d = s.dim[2] / 3,
	              .heads = p->heads,
	              .dh = s.dim[2] / 3 / p->heads,
	              .window = p->window <= 0 || p->window > s.dim[1] ? s.dim[1] : p->window,
	              .blocks = kernel_parts(s.dim[1], SOFTMAX_LANES),
	              .qkv = call->in[0].data,
	              .mask = call->in[1].data,
	              .y = call->in[3].data,
	              .log_normalizer = call->in[4].data,
	              .dy = call->in[5].data,
	              .scale = p->scale,
	              .drop = softmax_dropout_of(call),
	              .frozen = p->frozen,
	              .dqkv = call->out[0].data};
	int64_t heads = f.batch * f.heads;
	f.spans = heads ? kernel_min(f.blocks, kernel_parts(GRAIN, heads)) : 0;
	f.width = product_round(f.dh);
	return f;
}

/* The first key that a block attends to, and the number of tiles from there to its end. */
static int64_t first_key(const backward *f, int64_t block)
{
	int64_t first = block * SOFTMAX_LANES;
	return first < f->window ? 0 : (first - f->window + 1) / KEYS * KEYS;
}

static int64_t tiles(const backward *f, int64_t block)
{
	return kernel_parts(kernel_min(f->length, (block + 1) * SOFTMAX_LANES) - first_key(f, block), KEYS);
}

/* Blocks begin … end - 1 and the keys first … last - 1 that they attend to. */
typedef struct span {
	int64_t begin, end, first, last;
} span;

static span span_at(const backward *f, int64_t index)
{
	int64_t all = 0, before = 0;
	span s = {0};
	for (int64_t i = 0; i < f->blocks; i++)
		all += tiles(f, i);
	for (int64_t i = 0; i < f->blocks; i++) {
		/* A block belongs to the span in which its middle lies. */
		int64_t middle = 2 * before + tiles(f, i);
		s.begin += middle * f->spans < 2 * all * index;
		s.end += middle * f->spans < 2 * all * (index + 1);
		before += tiles(f, i);
	}
	if (s.begin < s.end) {
		s.first = first_key(f, s.begin);
		s.last = kernel_min(f->length, s.end * SOFTMAX_LANES);
	}
	return s;
}

/* Scratch of one thread; rows of the first group are LANES apart, of the second `width`. */
typedef struct workspace {
	float *query, *dy, *dquery;  /* [dh]: scale · Qᵀ, dYᵀ, dQᵀ / scale */
	float *p, *ds;               /* [KEYS] */
	float *m, *along;            /* M and D */
	float *keep;                 /* [KEYS], and words */
	float *query_rows, *dy_rows; /* [LANES]: scale · Q, dY */
} workspace;

static int64_t workspace_floats(const backward *f)
{
	int64_t rows = 3 * f->dh + 2 * KEYS + 2 + 2 * f->width;
	return rows * SOFTMAX_LANES + (f->drop.p > 0 ? SOFTMAX_KEYS * SOFTMAX_LANES + SOFTMAX_WORDS : 0);
}

static workspace workspace_at(const backward *f, float *memory)
{
	workspace w = {.query = memory};
	w.dy = w.query + f->dh * SOFTMAX_LANES;
	w.dquery = w.dy + f->dh * SOFTMAX_LANES;
	w.p = w.dquery + f->dh * SOFTMAX_LANES;
	w.ds = w.p + KEYS * SOFTMAX_LANES;
	w.m = w.ds + KEYS * SOFTMAX_LANES;
	w.along = w.m + SOFTMAX_LANES;
	w.query_rows = w.along + SOFTMAX_LANES;
	w.dy_rows = w.query_rows + f->width * SOFTMAX_LANES;
	w.keep = w.dy_rows + f->width * SOFTMAX_LANES;
	return w;
}

/* to [count, width] = factor · from, zeros past dh. */
static void copy_rows(const backward *f, int64_t count, const float *from, int64_t row, float factor, float *to)
{
	for (int64_t l = 0; l < count; l++) {
		for (int64_t d = 0; d < f->dh; d++)
			to[l * f->width + d] = factor * from[l * row + d];
		for (int64_t d = f->dh; d < f->width; d++)
			to[l * f->width + d] = 0.0f;
	}
}

/* Everything that depends on the block alone; `at` is its first token, of all sequences'. */
static void open_block(const backward *f, const workspace *w, const softmax_queries *q, int64_t at, int64_t h)
{
	const float *query = f->qkv + at * 3 * f->d + h * f->dh;
	const float *y = f->y + at * f->d + h * f->dh, *dy = f->dy + at * f->d + h * f->dh;
	softmax_transpose(q, query, 3 * f->d, f->scale, w->query);
	softmax_transpose(q, dy, f->d, 1.0f, w->dy);
	copy_rows(f, q->count, query, 3 * f->d, f->scale, w->query_rows);
	copy_rows(f, q->count, dy, f->d, 1.0f, w->dy_rows);
	memset(w->dquery, 0, (size_t)(f->dh * SOFTMAX_LANES) * sizeof(float));
	for (int64_t l = 0; l < SOFTMAX_LANES; l++)
		w->m[l] = w->along[l] = 0.0f;
	for (int64_t l = 0; l < q->count; l++) {
		float m = f->log_normalizer[(at + l) * f->heads + h], along = 0.0f;
		for (int64_t d = 0; d < f->dh; d++)
			along += dy[l * f->d + d] * y[l * f->d + d];
		w->m[l] = m > -INFINITY ? m : INFINITY; /* an empty window: every probability becomes 0 */
		w->along[l] = along;
	}
}

/* S and U become drop(P) and dS. */
static inline __attribute__((always_inline)) void probabilities(const workspace *w, int64_t lanes, int64_t keys,
                                                                const bool dropout)
{
	for (int64_t v = 0; v < lanes; v += PRODUCT_VECTOR) {
		const float *m = w->m + v, *along = w->along + v;
		for (int64_t r = 0; r < keys; r++) {
			float *p = w->p + r * SOFTMAX_LANES + v, *ds = w->ds + r * SOFTMAX_LANES + v;
			const float *keep = dropout ? w->keep + r * SOFTMAX_LANES + v : NULL;
#pragma omp simd
			for (int l = 0; l < PRODUCT_VECTOR; l++) {
				float weight = math_exp(p[l] - m[l]);
				ds[l] = weight * ((dropout ? keep[l] * ds[l] : ds[l]) - along[l]);
				p[l] = dropout ? keep[l] * weight : weight;
			}
		}
	}
}

/* dk, dv [count, width]: of the tile's keys. */
static void tile(const backward *f, const workspace *w, const softmax_queries *q, const softmax_keys *k, float *dk,
                 float *dv)
{
	int64_t lanes = softmax_lanes(q);
	product(k->count, lanes, f->dh, (product_matrix){k->key, k->row, 1}, w->query, SOFTMAX_LANES, w->p,
	        SOFTMAX_LANES, false);
	if (!f->frozen)
		product(k->count, lanes, f->dh, (product_matrix){k->value, k->row, 1}, w->dy, SOFTMAX_LANES, w->ds,
		        SOFTMAX_LANES, false);
	softmax_hide(q, k, w->p);
	if (f->drop.p > 0) {
		softmax_keep(&f->drop, q, k, (uint32_t *)(w->keep + SOFTMAX_KEYS * SOFTMAX_LANES), w->keep);
		probabilities(w, lanes, k->count, true);
	} else {
		probabilities(w, lanes, k->count, false);
	}
	product(k->count, f->width, q->count, (product_matrix){w->p, SOFTMAX_LANES, 1}, w->dy_rows, f->width, dv,
	        f->width, true);
	if (f->frozen)
		return;
	product(f->dh, lanes, k->count, (product_matrix){k->key, 1, k->row}, w->ds, SOFTMAX_LANES, w->dquery,
	        SOFTMAX_LANES, true);
	product(k->count, f->width, q->count, (product_matrix){w->ds, SOFTMAX_LANES, 1}, w->query_rows, f->width, dk,
	        f->width, true);
}

static void backward_block(const backward *f, const workspace *w, int64_t sequence, int64_t h, int64_t block, float *dk,
                           float *dv)
{
	int64_t row = 3 * f->d, first = block * SOFTMAX_LANES, token = sequence * f->length;
	softmax_queries q = {.first = first,
	                     .count = kernel_min(SOFTMAX_LANES, f->length - first),
	                     .window = f->window,
	                     .dh = f->dh,
	                     .head = sequence * f->heads + h};
	const float *query = f->qkv + token * row + h * f->dh;
	open_block(f, w, &q, token + first, h);
	int64_t end = first + q.count;
	for (int64_t j = first_key(f, block); j < end; j += KEYS) {
		softmax_keys k = {.key = query + f->d + j * row,
		                  .value = query + 2 * f->d + j * row,
		                  .row = row,
		                  .first = j,
		                  .count = kernel_min(KEYS, end - j),
		                  .mask = f->mask ? f->mask + token + j : NULL};
		tile(f, w, &q, &k, dk + j * f->width, dv + j * f->width);
	}
	float *dq = f->dqkv + (token + first) * row + h * f->dh;
	for (int64_t l = 0; l < q.count; l++)
		for (int64_t d = 0; d < f->dh; d++)
			dq[l * row + d] = f->scale * w->dquery[d * SOFTMAX_LANES + l];
}

/* Floats of one unit's partial sums: dk and dv [length, width]. */
static int64_t partial_floats(const backward *f)
{
	return 2 * f->length * f->width;
}

static void backward_unit(const backward *f, const workspace *w, int64_t unit, float *partial)
{
	int64_t head = unit / f->spans;
	span s = span_at(f, unit % f->spans);
	float *dk = partial, *dv = partial + f->length * f->width;
	size_t bytes = (size_t)((s.last - s.first) * f->width) * sizeof(float);
	memset(dk + s.first * f->width, 0, bytes);
	memset(dv + s.first * f->width, 0, bytes);
	for (int64_t block = s.begin; block < s.end; block++)
		backward_block(f, w, head / f->heads, head % f->heads, block, dk, dv);
}

/* dk and dv of one head: the sums of its partials in order. Keys before `done` have been met. */
static void sum_partials(const backward *f, int64_t head, const float *partial)
{
	int64_t row = 3 * f->d, done = 0;
	float *dk = f->dqkv + head / f->heads * f->length * row + f->d + head % f->heads * f->dh, *dv = dk + f->d;
	for (int64_t i = 0; i < f->spans; i++, partial += partial_floats(f)) {
		span s = span_at(f, i);
		for (int64_t j = s.first; j < s.last; j++) {
			const float *from_dk = partial + j * f->width, *from_dv = from_dk + f->length * f->width;
			for (int64_t d = 0; d < f->dh; d++) {
				dk[j * row + d] = from_dk[d] + (j < done ? dk[j * row + d] : 0.0f);
				dv[j * row + d] = from_dv[d] + (j < done ? dv[j * row + d] : 0.0f);
			}
		}
		done = s.last > done ? s.last : done;
	}
}

size_t KERNEL(softmax_attention_grad_scratch)(const backend *b, const op_call *call)
{
	backward f = backward_of(call);
	int64_t threads = ((const cpu *)b)->threads, partials = f.spans > 1 ? f.batch * f.heads * f.spans : threads;
	return (size_t)(threads * workspace_floats(&f) + partials * partial_floats(&f)) * sizeof(float);
}

status KERNEL(softmax_attention_grad)(backend *b, const op_call *call)
{
	backward f = backward_of(call);
	int64_t heads = f.batch * f.heads, units = heads * f.spans;
	_Atomic int64_t next = 0;
	const int threads = kernel_threads(b, f.batch * f.length * f.window * f.d / 2);
	float *partials = (float *)call->scratch + ((const cpu *)b)->threads * workspace_floats(&f);
#pragma omp parallel for schedule(static, 1) num_threads(threads)
	for (int thread = 0; thread < threads; thread++) {
		workspace w = workspace_at(&f, (float *)call->scratch + thread * workspace_floats(&f));
		for (;;) {
			const int64_t unit = atomic_fetch_add(&next, 1);
			if (unit >= units)
				break;
			float *partial = partials + (f.spans > 1 ? unit : thread) * partial_floats(&f);
			backward_unit(&f, &w, unit, partial);
			if (f.spans == 1)
				sum_partials(&f, unit, partial);
		}
	}
#pragma omp parallel for schedule(static, 1) num_threads(threads)
	for (int64_t head = 0; head < (f.spans > 1 ? heads : 0); head++)
		sum_partials(&f, head, partials + head * f.spans * partial_floats(&f));
	return STATUS_OK;
}
