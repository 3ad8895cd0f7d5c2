/* dilated_attention_grad: branch after branch, every segment of every head as a dense attention of its kept rows
 * (dilated_attention.h), with the probabilities from log_normalizer.
 *
 * For a block of queries and a tile of keys, lanes along the queries (softmax_attention.h):
 *
 *   Sᵀ = K Qᵀ,  P = e^{S - m},  Uᵀ = V dYᵀ,  dS = P ⊙ (U - D)
 *   dQᵀ += Kᵀ dSᵀ,    dV += Pᵀ dY,    dK += dSᵀ Q
 *
 * with m_i(t) = L_i(t) - log c_i(t), so that P includes the branch's weight. Where that weight is a constant, D_i =
 * dy·o_i is the sum of P U / c over the keys. S and U are computed once more for it: seven products instead of five.
 * The alternative is to keep o_i, an activation of the size of y for every branch.
 *
 * A unit is a segment of a head; the keys' gradients are summed in the thread's scratch. The rows of different units of
 * a branch are different, and branches are added one after another: the same bits at any number of threads. */
#include "engine/cpu/kernels/dilated_attention.h"

#include <stdatomic.h>

enum { KEYS = 32 }; /* keys of a tile: fewer than in the forward, so that two tiles stay in the cache */

typedef struct backward {
	const op_call *call;
	int64_t batch, length, d, dh;
	int64_t width; /* dh as whole vectors */
	int64_t rows;  /* maximum number of kept rows of a segment */
	const float *y, *log_normalizer, *dy;
	float *dq, *dk, *dv; /* those that are requested */
	bool exact;          /* the weights of the branches depend on q and k */
	bool frozen;         /* dS is not requested */
	const float *mixture;
	float weights[DILATED_MAX_BRANCHES];
	float *own; /* [units] of the branch: Σ_t D_i(t) */
} backward;

static int64_t most_rows(const dilated_params *p, int64_t length)
{
	int64_t most = 0;
	for (int64_t i = 0; i < p->pattern.branches; i++) {
		const int64_t rows = kernel_parts(kernel_min(p->pattern.segment[i], length), p->pattern.dilation[i]);
		most = rows > most ? rows : most;
	}
	return most;
}

/* Segments of a sequence in a branch. */
static int64_t segments(const dilated_params *p, int64_t length, int64_t branch)
{
	return length ? kernel_parts(length, kernel_min(p->pattern.segment[branch], length)) : 0;
}

static int64_t most_units(const op_call *call)
{
	const dilated_params *p = call->params;
	const shape s = call->in[0].shape;
	int64_t most = 0;
	for (int64_t i = 0; i < p->pattern.branches; i++) {
		const int64_t count = segments(p, s.dim[1], i);
		most = count > most ? count : most;
	}
	return s.dim[0] * p->heads * most;
}

static backward backward_of(const op_call *call)
{
	const dilated_params *p = call->params;
	const shape s = call->in[0].shape;
	backward f = {.call = call,
	              .batch = s.dim[0],
	              .length = s.dim[1],
	              .d = s.dim[2],
	              .dh = s.dim[2] / p->heads,
	              .rows = most_rows(p, s.dim[1]),
	              .y = call->in[5].data,
	              .log_normalizer = call->in[6].data,
	              .dy = call->in[7].data,
	              .dq = call->out[0].data,
	              .dk = call->out[1].data,
	              .dv = call->out[2].data,
	              .mixture = call->in[4].data};
	f.width = product_round(f.dh);
	f.exact = !f.mixture && !p->detach_weights;
	f.frozen = !f.dq && !f.dk && !call->out[3].data;
	return f;
}

/* Scratch of one thread; rows of the first group are LANES apart, of the others `width`. */
typedef struct workspace {
	float *query, *dy, *dquery;  /* [dh]: scale · Qᵀ, dYᵀ, dQᵀ / scale */
	float *p, *ds;               /* [KEYS] */
	float *l, *m, *along;        /* L_i, m_i and D_i */
	float *query_rows, *dy_rows; /* [LANES]: scale · Q, dY */
	float *dk, *dv;              /* [rows] */
} workspace;

static int64_t dilated_attention_grad_workspace_floats(const backward *f)
{
	return (3 * f->dh + 2 * KEYS + 3 + 2 * f->width) * SOFTMAX_LANES + 2 * f->rows * f->width;
}

static workspace dilated_attention_grad_workspace_at(const backward *f, float *memory)
{
	workspace w = {.query = memory};
	w.dy = w.query + f->dh * SOFTMAX_LANES;
	w.dquery = w.dy + f->dh * SOFTMAX_LANES;
	w.p = w.dquery + f->dh * SOFTMAX_LANES;
	w.ds = w.p + KEYS * SOFTMAX_LANES;
	w.l = w.ds + KEYS * SOFTMAX_LANES;
	w.m = w.l + SOFTMAX_LANES;
	w.along = w.m + SOFTMAX_LANES;
	w.query_rows = w.along + SOFTMAX_LANES;
	w.dy_rows = w.query_rows + f->width * SOFTMAX_LANES;
	w.dk = w.dy_rows + f->width * SOFTMAX_LANES;
	w.dv = w.dk + f->rows * f->width;
	return w;
}

/* to [count, width] = factor · from, zeros past dh. */
static void dilated_attention_grad_copy_rows(const backward *f, int64_t count, const float *from, int64_t row,
                                             float factor, float *to)
{
	for (int64_t l = 0; l < count; l++) {
		for (int64_t d = 0; d < f->dh; d++)
			to[l * f->width + d] = factor * from[l * row + d];
		for (int64_t d = f->dh; d < f->width; d++)
			to[l * f->width + d] = 0.0f;
	}
}

/* m_i of token `at` (of all sequences'); L_i to *l. +inf where the branch has no weight: probabilities become 0. */
static float normalizer(const backward *f, const dilated_head *a, int64_t branch, int64_t at, float *l)
{
	const float *from = f->log_normalizer + at * a->heads + a->head;
	const int64_t next = f->batch * f->length * a->heads;
	float top = -INFINITY, sum = 0.0f;
	*l = from[branch * next] > -INFINITY ? from[branch * next] : INFINITY;
	if (*l == INFINITY)
		return INFINITY;
	if (f->mixture)
		return f->weights[branch] > 0.0f ? *l - logf(f->weights[branch]) : INFINITY;
	for (int64_t i = 0; i < a->pattern->branches; i++)
		top = from[i * next] > top ? from[i * next] : top;
	for (int64_t i = 0; i < a->pattern->branches; i++)
		sum += math_exp(from[i * next] - top);
	return top + math_log(sum);
}

/* Compute everything that depends on the block alone; `token` is its first token, counted in the head. */
static void open_block(const backward *f, const workspace *w, const dilated_head *a, const softmax_queries *q,
                       int64_t branch, int64_t token, int64_t step, int64_t sequence)
{
	const int64_t row = step * f->d, at = (sequence * f->length + token) * f->d + a->head * f->dh;
	const float *query = a->query + token * f->d, *y = f->y + at, *dy = f->dy + at;
	softmax_transpose(q, query, row, f->dh, a->scale, w->query);
	softmax_transpose(q, dy, row, f->dh, 1.0f, w->dy);
	dilated_attention_grad_copy_rows(f, q->count, query, row, a->scale, w->query_rows);
	dilated_attention_grad_copy_rows(f, q->count, dy, row, 1.0f, w->dy_rows);
	memset(w->dquery, 0, (size_t)(f->dh * SOFTMAX_LANES) * sizeof(float));
	for (int64_t l = 0; l < SOFTMAX_LANES; l++) {
		w->l[l] = w->m[l] = INFINITY;
		w->along[l] = 0.0f;
	}
	for (int64_t l = 0; l < q->count; l++) {
		w->m[l] = normalizer(f, a, branch, sequence * f->length + token + l * step, &w->l[l]);
		for (int64_t d = 0; d < f->dh && f->exact; d++)
			w->along[l] += dy[l * row + d] * y[l * row + d];
	}
}

/* Compute S and, unless frozen, U of a tile. */
static void scores(const backward *f, const workspace *w, const softmax_queries *q, const softmax_keys *k)
{
	const int64_t lanes = softmax_lanes(q);
	product(k->count, lanes, f->dh, (product_matrix){k->key, k->key_row, 1}, w->query, SOFTMAX_LANES, w->p,
	        SOFTMAX_LANES, false);
	if (!f->frozen)
		product(k->count, lanes, f->dh, (product_matrix){k->value, k->value_row, 1}, w->dy, SOFTMAX_LANES,
		        w->ds, SOFTMAX_LANES, false);
	softmax_hide(q, k, w->p);
}

/* D_i += Σ_j e^{S - L} U of the tile. */
static void tile_along(const backward *f, const workspace *w, const softmax_queries *q, const softmax_keys *k)
{
	const int64_t lanes = softmax_lanes(q);
	scores(f, w, q, k);
	for (int64_t r = 0; r < k->count; r++) {
		const float *p = w->p + r * SOFTMAX_LANES, *u = w->ds + r * SOFTMAX_LANES;
#pragma omp simd
		for (int64_t l = 0; l < lanes; l++)
			w->along[l] += math_exp(p[l] - w->l[l]) * u[l];
	}
}

/* dk, dv [count, width]: of the tile's keys. */
static void tile(const backward *f, const workspace *w, const softmax_queries *q, const softmax_keys *k, float *dk,
                 float *dv)
{
	const int64_t lanes = softmax_lanes(q);
	scores(f, w, q, k);
	for (int64_t r = 0; r < k->count; r++) {
		float *p = w->p + r * SOFTMAX_LANES, *ds = w->ds + r * SOFTMAX_LANES;
#pragma omp simd
		for (int64_t l = 0; l < lanes; l++) {
			p[l] = math_exp(p[l] - w->m[l]);
			ds[l] = p[l] * (ds[l] - w->along[l]);
		}
	}
	product(k->count, f->width, q->count, (product_matrix){w->p, SOFTMAX_LANES, 1}, w->dy_rows, f->width, dv,
	        f->width, true);
	if (f->frozen)
		return;
	product(f->dh, lanes, k->count, (product_matrix){k->key, 1, k->key_row}, w->ds, SOFTMAX_LANES, w->dquery,
	        SOFTMAX_LANES, true);
	product(k->count, f->width, q->count, (product_matrix){w->ds, SOFTMAX_LANES, 1}, w->query_rows, f->width, dk,
	        f->width, true);
}

/* Up to KEYS rows of a segment before row `end`. */
static softmax_keys keys_at(const dilated_head *a, const dilated_segment *s, int64_t j, int64_t end, int32_t *mask)
{
	return dilated_keys(a, s, j, kernel_min(end, j + KEYS), mask);
}

/* A block of queries of a segment; returns the sum of its D. */
static float backward_block(const backward *f, const workspace *w, const dilated_head *a, const dilated_segment *s,
                            int64_t branch, int64_t first, int64_t sequence)
{
	const softmax_queries q = dilated_queries(a, first, s->count);
	const int64_t token = s->first + first * s->step, end = dilated_end(a, s, &q);
	int32_t mask[SOFTMAX_KEYS];
	float own = 0.0f;
	open_block(f, w, a, &q, branch, token, s->step, sequence);
	for (int64_t j = 0; j < end && !f->exact && !f->frozen; j += KEYS) {
		const softmax_keys k = keys_at(a, s, j, end, mask);
		tile_along(f, w, &q, &k);
	}
	for (int64_t l = 0; l < q.count; l++)
		own += w->along[l];
	for (int64_t j = 0; j < end; j += KEYS) {
		const softmax_keys k = keys_at(a, s, j, end, mask);
		tile(f, w, &q, &k, w->dk + j * f->width, w->dv + j * f->width);
	}
	float *dq = f->dq ? f->dq + (sequence * f->length + token) * f->d + a->head * f->dh : NULL;
	for (int64_t l = 0; l < q.count && dq; l++)
		for (int64_t d = 0; d < f->dh; d++)
			dq[l * s->step * f->d + d] += a->scale * w->dquery[d * SOFTMAX_LANES + l];
	return own;
}

/* out [token] += from [row, width] of the kept rows of a segment. */
static void dilated_attention_grad_add_rows(const backward *f, const dilated_segment *s, const float *from, float *out)
{
	for (int64_t j = 0; j < s->count && out; j++)
		for (int64_t d = 0; d < f->dh; d++)
			out[(s->first + j * s->step) * f->d + d] += from[j * f->width + d];
}

static void backward_unit(const backward *f, const workspace *w, int64_t branch, int64_t unit)
{
	const dilated_params *p = f->call->params;
	const int64_t count = segments(p, f->length, branch), sequence = unit / p->heads / count;
	const dilated_head a = dilated_head_of(f->call, sequence * p->heads + unit % p->heads);
	const dilated_segment s = dilated_segment_at(&a, branch, unit / p->heads % count * dilated_length(&a, branch));
	const int64_t at = sequence * f->length * f->d + a.head * f->dh;
	float own = 0.0f;
	memset(w->dk, 0, (size_t)(s.count * f->width) * sizeof(float));
	memset(w->dv, 0, (size_t)(s.count * f->width) * sizeof(float));
	for (int64_t first = 0; first < s.count; first += SOFTMAX_LANES)
		own += backward_block(f, w, &a, &s, branch, first, sequence);
	dilated_attention_grad_add_rows(f, &s, w->dk, f->dk ? f->dk + at : NULL);
	dilated_attention_grad_add_rows(f, &s, w->dv, f->dv ? f->dv + at : NULL);
	if (f->own)
		f->own[unit] = own;
}

/* dmixture_i = c_i (a_i - Σ_l c_l a_l) */
static void mixture_grad(const backward *f, const double *own, float *out)
{
	const int64_t branches = ((const dilated_params *)f->call->params)->pattern.branches;
	double mean = 0;
	for (int64_t i = 0; i < branches; i++)
		mean += (double)f->weights[i] * own[i];
	for (int64_t i = 0; i < branches; i++)
		out[i] = (float)((double)f->weights[i] * (own[i] - mean));
}

size_t KERNEL(dilated_attention_grad_scratch)(const backend *b, const op_call *call)
{
	const backward f = backward_of(call);
	const int64_t threads = ((const cpu *)b)->threads;
	return (size_t)(threads * dilated_attention_grad_workspace_floats(&f) + (f.mixture ? most_units(call) : 0)) *
	       sizeof(float);
}

status KERNEL(dilated_attention_grad)(backend *b, const op_call *call)
{
	const dilated_params *p = call->params;
	const int64_t elements = shape_count(call->in[0].shape);
	backward f = backward_of(call);
	double own[DILATED_MAX_BRANCHES] = {0};
	float *const out[] = {f.dq, f.dk, f.dv};
	for (int i = 0; i < 3 && elements; i++)
		if (out[i])
			memset(out[i], 0, (size_t)elements * sizeof(float));
	if (f.mixture) {
		dilated_weights(f.mixture, p->pattern.branches, f.weights);
		f.own =
		    (float *)call->scratch + ((const cpu *)b)->threads * dilated_attention_grad_workspace_floats(&f);
	}
	const int threads = kernel_threads(b, elements * dilated_work(&p->pattern, f.length));
	for (int64_t branch = 0; branch < p->pattern.branches && elements; branch++) {
		const int64_t units = f.batch * p->heads * segments(p, f.length, branch);
		_Atomic int64_t next = 0;
#pragma omp parallel for schedule(static, 1) num_threads(threads)
		for (int thread = 0; thread < threads; thread++) {
			const workspace w = dilated_attention_grad_workspace_at(
			    &f, (float *)call->scratch + thread * dilated_attention_grad_workspace_floats(&f));
			for (;;) {
				const int64_t unit = atomic_fetch_add(&next, 1);
				if (unit >= units)
					break;
				backward_unit(&f, &w, branch, unit);
			}
		}
		for (int64_t unit = 0; unit < units && f.own; unit++)
			own[branch] += (double)f.own[unit];
	}
	if (f.mixture && call->out[3].data)
		mixture_grad(&f, own, call->out[3].data);
	return STATUS_OK;
}
