/* softmax_attention_grad: repeats the forward's blocks and tiles, with the probabilities from log_normalizer.
 *
 * For a block of queries and a tile of keys, lanes along the queries (softmax_attention.h):
 *
 *   Sᵀ = K Qᵀ,  P = e^{S - M},  Uᵀ = V dYᵀ,  dS = P ⊙ (drop(U) - D),  D_i = dy_i·y_i
 *   dQᵀ += Kᵀ dSᵀ,    dV += drop(P)ᵀ dY,    dK += dSᵀ Q
 *
 * and the gradient of the bias is the sum of dS along its diagonals. dQ is complete when a block has seen its keys. dK
 * and dV are sums over blocks. The blocks of the heads that read one head of keys, head by head, are cut into `spans`
 * with about equal work. Each span has its own partial sums, which are added in order at the end. The number of spans
 * depends on the shape alone; it is 1 if there are GRAIN heads of keys. The alternative, one pass for dQ and one for dK
 * and dV, needs no partial sums, but seven products instead of five. */
#include "engine/cpu/kernels/softmax_attention.h"

#include <stdatomic.h>

enum {
	KEYS = 32, /* keys of a tile: fewer than in the forward, so that two tiles stay in the cache */
	GRAIN = 32 /* target number of units; more heads than that are not cut */
};

typedef struct backward {
	softmax_layout l;
	int64_t blocks;                 /* blocks of a head of queries */
	int64_t spans, extent;          /* keys of a span, at most */
	int64_t key_width, value_width; /* dh and dv as whole vectors */
	const float *query, *key, *value, *y, *log_normalizer, *dy;
	const int32_t *mask;
	softmax_bias bias; /* for head 0 */
	float scale;
	softmax_dropout drop;
	bool uniform;
	bool scores;                 /* scores have a gradient; otherwise dS = 0 */
	float *dq, *dk, *dv, *dbias; /* NULL: unwanted */
} backward;

static float *output(const op_call *call, int o, int64_t offset)
{
	return call->out[o].data ? (float *)call->out[o].data + offset : NULL;
}

/* The first key of a block's first tile, one past its last key, and its tiles, or 1 if there are none. */
static int64_t first_key(const backward *f, int64_t block)
{
	return softmax_first_key(&f->l, block * SOFTMAX_LANES + f->l.shift) / KEYS * KEYS;
}

static int64_t end_key(const backward *f, int64_t block)
{
	return softmax_end_key(&f->l, kernel_min(f->l.queries, (block + 1) * SOFTMAX_LANES) - 1 + f->l.shift);
}

static int64_t tiles(const backward *f, int64_t block)
{
	const int64_t first = first_key(f, block), end = end_key(f, block);
	return first < end ? kernel_parts(end - first, KEYS) : 1;
}

/* Blocks begin … end - 1 of the blocks of a group of heads and the keys first … last - 1 that they attend to. */
typedef struct span {
	int64_t begin, end, first, last;
} span;

static span span_at(const backward *f, int64_t index)
{
	const int64_t blocks = f->l.group * f->blocks;
	int64_t all = 0, before = 0;
	span s = {.first = f->l.keys};
	for (int64_t i = 0; i < f->blocks; i++)
		all += f->l.group * tiles(f, i);
	for (int64_t i = 0; i < blocks; i++) {
		/* A block belongs to the span that contains its middle. */
		const int64_t block = i % f->blocks, count = tiles(f, block), middle = 2 * before + count;
		const bool past = middle * f->spans < 2 * all * index;
		const bool within = !past && middle * f->spans < 2 * all * (index + 1);
		s.begin += past;
		s.end += past || within;
		if (within) {
			s.first = kernel_min(s.first, f->uniform ? 0 : first_key(f, block));
			s.last = -kernel_min(-s.last, -(f->uniform ? f->l.keys : end_key(f, block)));
		}
		before += count;
	}
	s.first = kernel_min(s.first, s.last);
	return s;
}

static int64_t extent_of(const backward *f)
{
	int64_t most = 0;
	for (int64_t i = 0; i < f->spans; i++) {
		const span s = span_at(f, i);
		most = s.last - s.first > most ? s.last - s.first : most;
	}
	return most;
}

static backward backward_of(const op_call *call)
{
	const softmax_params *p = call->params;
	const softmax_layout l = softmax_layout_of(call);
	backward f = {.l = l,
	              .blocks = kernel_parts(l.queries, SOFTMAX_LANES),
	              .key_width = product_round(l.dh),
	              .value_width = product_round(l.dv),
	              .query = call->in[0].data,
	              .key = (const float *)call->in[l.k_input].data + l.k_offset,
	              .value = (const float *)call->in[l.v_input].data + l.v_offset,
	              .mask = call->in[SOFTMAX_MASK].data,
	              .bias = softmax_bias_of(call),
	              .y = call->in[SOFTMAX_Y].data,
	              .log_normalizer = call->in[SOFTMAX_LOG_NORMALIZER].data,
	              .dy = call->in[SOFTMAX_DY].data,
	              .scale = p->scale,
	              .drop = softmax_dropout_of(call),
	              .uniform = p->uniform,
	              .dq = output(call, 0, 0),
	              .dk = output(call, l.k_input, l.k_offset),
	              .dv = output(call, l.v_input, l.v_offset)};
	f.dbias = f.bias.at ? output(call, 3, 0) : NULL;
	f.scores = !p->frozen && (f.dq || f.dk || f.dbias);
	const int64_t heads = l.batch * l.kv_heads;
	f.spans = heads ? kernel_min(l.group * f.blocks, kernel_parts(GRAIN, heads)) : 0;
	f.extent = extent_of(&f);
	return f;
}

/* Scratch of one thread; rows of the first group are LANES apart, of the second as wide as whole vectors. */
typedef struct workspace {
	float *query, *dy, *dquery;  /* [dh], [dv], [dh]: scale · Qᵀ, dYᵀ, dQᵀ / scale */
	float *p, *ds;               /* [KEYS] */
	float *m, *along;            /* M and D */
	float *keep;                 /* [KEYS], and words */
	float *query_rows, *dy_rows; /* [LANES]: scale · Q, dY */
} workspace;

static int64_t softmax_attention_grad_workspace_floats(const backward *f)
{
	int64_t rows = 2 * f->l.dh + f->l.dv + 2 * KEYS + 2 + f->key_width + f->value_width;
	return rows * SOFTMAX_LANES + (f->drop.p > 0 ? SOFTMAX_KEYS * SOFTMAX_LANES + SOFTMAX_WORDS : 0);
}

static workspace softmax_attention_grad_workspace_at(const backward *f, float *memory)
{
	workspace w = {.query = memory};
	w.dy = w.query + f->l.dh * SOFTMAX_LANES;
	w.dquery = w.dy + f->l.dv * SOFTMAX_LANES;
	w.p = w.dquery + f->l.dh * SOFTMAX_LANES;
	w.ds = w.p + KEYS * SOFTMAX_LANES;
	w.m = w.ds + KEYS * SOFTMAX_LANES;
	w.along = w.m + SOFTMAX_LANES;
	w.query_rows = w.along + SOFTMAX_LANES;
	w.dy_rows = w.query_rows + f->key_width * SOFTMAX_LANES;
	w.keep = w.dy_rows + f->value_width * SOFTMAX_LANES;
	return w;
}

/* to [count, pitch] = factor · from [count, width], zeros past it. */
static void softmax_attention_grad_copy_rows(int64_t count, const float *from, int64_t row, int64_t width, float factor,
                                             float *to, int64_t pitch)
{
	for (int64_t l = 0; l < count; l++) {
		for (int64_t d = 0; d < width; d++)
			to[l * pitch + d] = factor * from[l * row + d];
		for (int64_t d = width; d < pitch; d++)
			to[l * pitch + d] = 0.0f;
	}
}

/* Compute everything that depends on the block alone; `at` is its first query, counted over all sequences. */
static void open_block(const backward *f, const workspace *w, const softmax_queries *q, int64_t at, int64_t n)
{
	const softmax_layout *l = &f->l;
	const int64_t y_row = l->heads * l->dv;
	const float *query = f->query + at * l->q_row + n * l->dh;
	const float *y = f->y + at * y_row + n * l->dv, *dy = f->dy + at * y_row + n * l->dv;
	softmax_transpose(q, query, l->q_row, l->dh, f->scale, w->query);
	softmax_transpose(q, dy, y_row, l->dv, 1.0f, w->dy);
	softmax_attention_grad_copy_rows(q->count, query, l->q_row, l->dh, f->scale, w->query_rows, f->key_width);
	softmax_attention_grad_copy_rows(q->count, dy, y_row, l->dv, 1.0f, w->dy_rows, f->value_width);
	memset(w->dquery, 0, (size_t)(l->dh * SOFTMAX_LANES) * sizeof(float));
	for (int64_t i = 0; i < SOFTMAX_LANES; i++)
		w->m[i] = w->along[i] = 0.0f;
	for (int64_t i = 0; i < q->count; i++) {
		float m = f->log_normalizer[(at + i) * l->heads + n], along = 0.0f;
		for (int64_t d = 0; d < l->dv; d++)
			along += dy[i * y_row + d] * y[i * y_row + d];
		w->m[i] = m > -INFINITY ? m : INFINITY; /* nothing attended to: every probability becomes 0 */
		w->along[i] = along;
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

/* Outputs of a unit: its partial sums, dk [extent, key_width], dv [extent, value_width], from key `first` on, and, with
 * a bias, dbias [T] of the current head. */
typedef struct sums {
	float *dk, *dv, *dbias;
	int64_t first;
} sums;

/* dbias of each distance += dS along its diagonal. */
static void sum_diagonals(const softmax_queries *q, const softmax_keys *k, const float *ds, float *dbias)
{
	for (int64_t r = 0; r < k->count; r++) {
		/* Lane l is at distance first + l: distances of the table alone, the others have dS = 0. */
		const int64_t first = q->first - k->first - r - q->bias.first;
		const int64_t end = kernel_min(q->count, q->bias.count - first);
#pragma omp simd
		for (int64_t l = first < 0 ? -first : 0; l < end; l++)
			dbias[first + l] += ds[r * SOFTMAX_LANES + l];
	}
}

static void keep_of(const backward *f, const workspace *w, const softmax_queries *q, const softmax_keys *k)
{
	softmax_keep(&f->drop, q, k, (uint32_t *)(w->keep + SOFTMAX_KEYS * SOFTMAX_LANES), w->keep);
}

/* dv += Pᵀ dY */
static void sum_values(const backward *f, const workspace *w, const softmax_queries *q, const softmax_keys *k,
                       const sums *to)
{
	product(k->count, f->value_width, q->count, (product_matrix){w->p, SOFTMAX_LANES, 1}, w->dy_rows,
	        f->value_width, to->dv + (k->first - to->first) * f->value_width, f->value_width, true);
}

static void tile(const backward *f, const workspace *w, const softmax_queries *q, const softmax_keys *k, const sums *to)
{
	int64_t lanes = softmax_lanes(q);
	softmax_score(q, k, w->query, w->p);
	if (f->scores)
		product(k->count, lanes, f->l.dv, (product_matrix){k->value, k->value_row, 1}, w->dy, SOFTMAX_LANES,
		        w->ds, SOFTMAX_LANES, false);
	if (f->drop.p > 0) {
		keep_of(f, w, q, k);
		probabilities(w, lanes, k->count, true);
	} else {
		probabilities(w, lanes, k->count, false);
	}
	if (f->dv)
		sum_values(f, w, q, k, to);
	if (!f->scores)
		return;
	if (f->dq)
		product(f->l.dh, lanes, k->count, (product_matrix){k->key, 1, k->key_row}, w->ds, SOFTMAX_LANES,
		        w->dquery, SOFTMAX_LANES, true);
	if (f->dk)
		product(k->count, f->key_width, q->count, (product_matrix){w->ds, SOFTMAX_LANES, 1}, w->query_rows,
		        f->key_width, to->dk + (k->first - to->first) * f->key_width, f->key_width, true);
	if (f->dbias)
		sum_diagonals(q, k, w->ds, to->dbias);
}

/* The queries that attend to nothing, with `uniform`: P = 1 / S. */
static void blind_tile(const backward *f, const workspace *w, const softmax_queries *q, const softmax_keys *k,
                       const float *blind, const sums *to)
{
	const float p = 1.0f / (float)f->l.keys;
	if (f->drop.p > 0)
		keep_of(f, w, q, k);
	for (int64_t r = 0; r < k->count; r++)
		for (int64_t l = 0; l < q->count; l++)
			w->p[r * SOFTMAX_LANES + l] =
			    blind[l] * p * (f->drop.p > 0 ? w->keep[r * SOFTMAX_LANES + l] : 1.0f);
	sum_values(f, w, q, k, to);
}

/* Keys j … end - 1 of head g of sequence b, at most a tile of them. */
static softmax_keys keys_at(const backward *f, int64_t b, int64_t g, int64_t j, int64_t end)
{
	const softmax_layout *l = &f->l;
	const int64_t token = b * l->keys + j;
	return (softmax_keys){.key = f->key + token * l->k_row + g * l->dh,
	                      .value = f->value + token * l->v_row + g * l->dv,
	                      .key_row = l->k_row,
	                      .value_row = l->v_row,
	                      .first = j,
	                      .count = kernel_min(KEYS, end - j),
	                      .mask = f->mask ? f->mask + token : NULL};
}

static void backward_block(const backward *f, const workspace *w, int64_t b, int64_t n, int64_t block, const sums *to)
{
	const softmax_layout *l = &f->l;
	const int64_t first = block * SOFTMAX_LANES, token = b * l->queries + first, g = n / l->group;
	const softmax_queries q = softmax_queries_at(l, &f->bias, b, n, first);
	open_block(f, w, &q, token, n);
	for (int64_t j = first_key(f, block), end = end_key(f, block); j < end; j += KEYS) {
		const softmax_keys k = keys_at(f, b, g, j, end);
		tile(f, w, &q, &k, to);
	}
	float blind[SOFTMAX_LANES];
	if (f->uniform && f->dv && softmax_blind(&q, f->mask ? f->mask + b * l->keys : NULL, l->keys, blind)) {
		for (int64_t j = 0; j < l->keys; j += KEYS) {
			const softmax_keys k = keys_at(f, b, g, j, l->keys);
			blind_tile(f, w, &q, &k, blind, to);
		}
	}
	if (!f->dq)
		return;
	float *dq = f->dq + token * l->q_row + n * l->dh;
	for (int64_t i = 0; i < q.count; i++)
		for (int64_t d = 0; d < l->dh; d++)
			dq[i * l->q_row + d] = f->scale * w->dquery[d * SOFTMAX_LANES + i];
}

/* Floats of one unit's partial sums: dk and dv; and those of dbias [group, T]. */
static int64_t partial_floats(const backward *f)
{
	return f->extent * (f->key_width + f->value_width);
}

static int64_t bias_floats(const backward *f)
{
	return f->bias.at ? f->l.group * f->bias.count : 0;
}

/* dbias: [group, T], or NULL. */
static void backward_unit(const backward *f, const workspace *w, int64_t unit, float *partial, float *dbias)
{
	const softmax_layout *l = &f->l;
	const int64_t head = unit / f->spans, b = head / l->kv_heads, g = head % l->kv_heads;
	span s = span_at(f, unit % f->spans);
	sums to = {.dk = partial, .dv = partial + f->extent * f->key_width, .first = s.first};
	memset(to.dk, 0, (size_t)((s.last - s.first) * f->key_width) * sizeof(float));
	memset(to.dv, 0, (size_t)((s.last - s.first) * f->value_width) * sizeof(float));
	if (dbias)
		memset(dbias, 0, (size_t)bias_floats(f) * sizeof(float));
	for (int64_t i = s.begin; i < s.end; i++) {
		to.dbias = dbias ? dbias + i / f->blocks * f->bias.count : NULL;
		backward_block(f, w, b, g * l->group + i / f->blocks, i % f->blocks, &to);
	}
}

/* to[j · row] = the sums of `width` channels of the partials of one head of keys in order; to NULL: not requested. Keys
 * before `done` have been visited; a key that no query attends to has zeros. */
static void sum_partials(const backward *f, const float *partial, int64_t pitch, float *to, int64_t row, int64_t width)
{
	int64_t done = 0;
	for (int64_t i = 0; i < f->spans && to; i++, partial += partial_floats(f)) {
		span s = span_at(f, i);
		for (; done < s.first; done++)
			memset(to + done * row, 0, (size_t)width * sizeof(float));
		for (int64_t j = s.first; j < s.last; j++) {
			const float *from = partial + (j - s.first) * pitch;
			for (int64_t d = 0; d < width; d++)
				to[j * row + d] = from[d] + (j < done ? to[j * row + d] : 0.0f);
		}
		done = s.last > done ? s.last : done;
	}
	for (; done < f->l.keys && to; done++)
		memset(to + done * row, 0, (size_t)width * sizeof(float));
}

/* dk and dv of one of all sequences' heads of keys. */
static void finish_head(const backward *f, int64_t head, const float *partial)
{
	const softmax_layout *l = &f->l;
	const int64_t token = head / l->kv_heads * l->keys, g = head % l->kv_heads;
	sum_partials(f, partial, f->key_width, f->dk ? f->dk + token * l->k_row + g * l->dh : NULL, l->k_row, l->dh);
	sum_partials(f, partial + f->extent * f->key_width, f->value_width,
	             f->dv ? f->dv + token * l->v_row + g * l->dv : NULL, l->v_row, l->dv);
}

/* dbias of one head: the sums of its units' [group, T], sequence by sequence. */
static void finish_bias(const backward *f, int64_t n, const float *partials)
{
	const softmax_layout *l = &f->l;
	const int64_t count = f->bias.count, units = l->kv_heads * f->spans;
	const float *from = partials + n / l->group * f->spans * bias_floats(f) + n % l->group * count;
	for (int64_t t = 0; t < count; t++)
		f->dbias[t * l->heads + n] = 0.0f;
	for (int64_t i = 0; i < l->batch * f->spans; i++) {
		const float *unit = from + (i / f->spans * units + i % f->spans) * bias_floats(f);
		for (int64_t t = 0; t < count; t++)
			f->dbias[t * l->heads + n] += unit[t];
	}
}

size_t KERNEL(softmax_attention_grad_scratch)(const backend *b, const op_call *call)
{
	backward f = backward_of(call);
	const int64_t threads = ((const cpu *)b)->threads, units = f.l.batch * f.l.kv_heads * f.spans;
	return (size_t)(threads * softmax_attention_grad_workspace_floats(&f) +
	                (f.spans > 1 ? units : threads) * partial_floats(&f) + units * bias_floats(&f)) *
	       sizeof(float);
}

status KERNEL(softmax_attention_grad)(backend *b, const op_call *call)
{
	backward f = backward_of(call);
	const int64_t heads = f.l.batch * f.l.kv_heads, units = heads * f.spans, all = ((const cpu *)b)->threads;
	_Atomic int64_t next = 0;
	const int threads = kernel_threads(b, softmax_work(&f.l) / 2);
	float *partials = (float *)call->scratch + all * softmax_attention_grad_workspace_floats(&f);
	float *bias = partials + (f.spans > 1 ? units : all) * partial_floats(&f);
#pragma omp parallel for schedule(static, 1) num_threads(threads)
	for (int thread = 0; thread < threads; thread++) {
		workspace w = softmax_attention_grad_workspace_at(
		    &f, (float *)call->scratch + thread * softmax_attention_grad_workspace_floats(&f));
		for (;;) {
			const int64_t unit = atomic_fetch_add(&next, 1);
			if (unit >= units)
				break;
			float *partial = partials + (f.spans > 1 ? unit : thread) * partial_floats(&f);
			backward_unit(&f, &w, unit, partial, f.dbias ? bias + unit * bias_floats(&f) : NULL);
			if (f.spans == 1)
				finish_head(&f, unit, partial);
		}
	}
#pragma omp parallel for schedule(static, 1) num_threads(threads)
	for (int64_t head = 0; head < (f.spans == 1 ? 0 : heads); head++)
		finish_head(&f, head, partials + head * f.spans * partial_floats(&f));
#pragma omp parallel for schedule(static, 1) num_threads(threads)
	for (int64_t n = 0; n < (f.dbias ? f.l.heads : 0); n++)
		finish_bias(&f, n, bias);
	return STATUS_OK;
}
