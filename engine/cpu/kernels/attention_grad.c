/* additive_attention_grad: the forward's blocks, mirrored.
 *
 * Token j is in the windows V(j) = {j … j+k-1}: a suffix of its own block and a prefix of
 * the next. With "scores" -M_i and values (G_i, D_i), G = dL/dg and D_i = G_i·g_i per head,
 * the same scan gives the sums over V(j) as aggregates with maximum r, and
 *
 *   P_j = Σ e^{a_j - M_i} G_i = e^{a_j + r_own} S_j + e^{a_j + r_next} N_j,   Q_j likewise with D
 *   da_j = x_j·P_j - Q_j,   dx_j = P_j + c da_j w,   dw = c Σ da_j x_j,   c = 1/√dh
 *
 * where no exponent is above 0, since every a_j - M_i is not. As in the forward, the suffixes S
 * are written into dx itself, right to left, and the prefix N is carried left to right.
 * A position whose window is empty has M = -inf: its score becomes -inf too, so that it
 * has no weight. The parts of dw are kept per unit and added in order. */
#include "engine/cpu/kernels/attention.h"

#include <string.h>

typedef struct backward {
	attention_cut cut;
	const float *x, *w, *log_normalizer, *dg;
	const int32_t *mask;
	float scale;
	float *dx;
	float *score, *along; /* a_j and D_j of all tokens and heads */
	float *dw;            /* [batch · spans, d]: parts */
} backward;

/* Scratch of one thread. */
typedef struct workspace {
	attention_scan own, next;
	float *own_along, *next_along; /* D as the scans want it */
	float *own_factor, *next_factor, *q;
	float *prefix; /* N */
} workspace;

static int64_t workspace_floats(const attention_cut *c)
{
	return 2 * attention_scan_floats(c->block, c->group) + 5 * c->block * c->group + c->group * c->dh;
}

static workspace workspace_at(const attention_cut *c, float *memory)
{
	int64_t scan = attention_scan_floats(c->block, c->group), count = c->block * c->group;
	workspace w;
	w.own = attention_scan_in(memory, c->block, c->group);
	w.next = attention_scan_in(memory + scan, c->block, c->group);
	w.own_along = memory + 2 * scan;
	w.next_along = w.own_along + count;
	w.own_factor = w.next_along + count;
	w.next_factor = w.own_factor + count;
	w.q = w.next_factor + count;
	w.prefix = w.q + count;
	return w;
}

/* a_j and D_j for all tokens and heads. */
static void products(const backend *b, const op_call *call, const backward *f)
{
	const attention_cut *c = &f->cut;
	const float *g = call->in[3].data;
	int64_t tokens = c->batch * c->length;
	const int threads = kernel_threads(b, tokens * c->d * ATTENTION_COST);
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t t = 0; t < tokens; t++) {
		for (int64_t h = 0; h < c->heads; h++) {
			int64_t at = t * c->d + h * c->dh, e = t * c->heads + h;
			f->score[e] = f->scale * attention_dot(f->x + at, f->w + h * c->dh, c->dh);
			f->along[e] = attention_dot(f->dg + at, g + at, c->dh);
		}
	}
}

/* Scores -M and values D of `tokens` tokens from `first` on, then absent ones up to `room`. */
static void load(const backward *f, const attention_unit *u, int64_t first, int64_t tokens, int64_t room, float *score,
                 float *along)
{
	const attention_cut *c = &f->cut;
	for (int64_t t = 0; t < tokens; t++) {
		for (int64_t h = 0; h < c->group; h++) {
			int64_t from = (first + t) * c->heads + u->head + h, to = t * c->group + h;
			float m = f->log_normalizer[from];
			score[to] = m == -INFINITY ? -INFINITY : -m;
			along[to] = f->along[from];
		}
	}
	for (int64_t e = tokens * c->group; e < room * c->group; e++) {
		score[e] = -INFINITY;
		along[e] = 0.0f;
	}
}

/* The factors of S and N, and Q, of `tokens` tokens from `first` on. */
static void factors(const backward *f, const attention_unit *u, const workspace *w, int64_t first, int64_t tokens)
{
	const attention_cut *c = &f->cut;
	float *score = w->own.score; /* the scan is done with them */
	for (int64_t t = 0; t < tokens; t++) {
		bool there = !f->mask || f->mask[first + t] != 0;
		for (int64_t h = 0; h < c->group; h++)
			score[t * c->group + h] = there ? f->score[(first + t) * c->heads + u->head + h] : -INFINITY;
	}
#pragma omp simd
	for (int64_t e = 0; e < tokens * c->group; e++) {
		/* Token p goes with the prefix of the next block up to p - 1. */
		float own = math_exp(score[e] + w->own.top[e]), next = math_exp(score[e] + w->next.top[e - c->group]);
		w->own_factor[e] = own;
		w->next_factor[e] = next;
		w->q[e] = own * w->own.sum[e] + next * w->next.sum[e - c->group];
	}
}

/* S, right to left over the block, into dx. */
static void suffixes(const backward *f, const workspace *w, const float *dg, float *dx, int64_t tokens)
{
	const attention_cut *c = &f->cut;
	const float *from = w->prefix; /* zeros */
	for (int64_t p = tokens - 1; p >= 0; p--) {
		float *to = dx + p * c->d;
		for (int64_t h = 0; h < c->group; h++) {
			const float keep = w->own.keep[p * c->group + h], weight = w->own.weight[p * c->group + h];
			int64_t first = h * c->dh, last = first + c->dh;
#pragma omp simd
			for (int64_t i = first; i < last; i++)
				to[i] = keep * from[i] + weight * dg[p * c->d + i];
		}
		from = to;
	}
}

/* N takes in token t of the next block. */
static inline void carry(const backward *f, const workspace *w, int64_t t, const float *dg)
{
	const attention_cut *c = &f->cut;
	for (int64_t h = 0; h < c->group; h++) {
		const float keep = w->next.keep[t * c->group + h], weight = w->next.weight[t * c->group + h];
		int64_t first = h * c->dh, last = first + c->dh;
#pragma omp simd
		for (int64_t i = first; i < last; i++)
			w->prefix[i] = keep * w->prefix[i] + weight * dg[i];
	}
}

/* Token p: its row of dx holds S, and becomes the gradient; adds to dw. */
static inline void finish(const backward *f, const workspace *w, int64_t p, const float *x, const float *weight,
                          float *dx, float *dw)
{
	const attention_cut *c = &f->cut;
	for (int64_t h = 0; h < c->group; h++) {
		int64_t e = p * c->group + h, first = h * c->dh, last = first + c->dh;
		const float own = w->own_factor[e], next = w->next_factor[e];
		float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
		for (int64_t i = first; i < last; i++) {
			dx[i] = own * dx[i] + next * w->prefix[i];
			sum += x[i] * dx[i];
		}
		const float da = f->scale * (sum - w->q[e]);
#pragma omp simd
		for (int64_t i = first; i < last; i++) {
			dx[i] += da * weight[i];
			dw[i] += da * x[i];
		}
	}
}

static void backward_block(const backward *f, const attention_unit *u, const workspace *w, int64_t block, float *dw)
{
	const attention_cut *c = &f->cut;
	int64_t first = u->sequence * c->length + block * c->block;
	int64_t tokens = kernel_min(c->block, c->length - block * c->block);
	/* Tokens of the next block that a window can reach. */
	int64_t reach = tokens < c->block ? 0 : kernel_min(c->block - 1, c->length - (block + 1) * c->block);
	int64_t at = first * c->d + u->channel;
	load(f, u, first, tokens, tokens, w->own.score, w->own_along);
	attention_scan_run(w->own, tokens, c->group, -1, w->own_along);
	load(f, u, first + c->block, reach, tokens, w->next.score, w->next_along);
	attention_scan_run(w->next, tokens, c->group, 1, w->next_along);
	factors(f, u, w, first, tokens);
	memset(w->prefix, 0, (size_t)(c->group * c->dh) * sizeof *w->prefix);
	suffixes(f, w, f->dg + at, f->dx + at, tokens);
	for (int64_t p = 0; p < tokens; p++) {
		if (p > 0 && p <= reach)
			carry(f, w, p - 1, f->dg + at + (c->block + p - 1) * c->d);
		finish(f, w, p, f->x + at + p * c->d, f->w + u->channel, f->dx + at + p * c->d, dw);
	}
}

static void backward_unit(const backward *f, const attention_unit *u, const workspace *w)
{
	const attention_cut *c = &f->cut;
	float *dw = f->dw + (u->sequence * c->spans + u->span) * c->d + u->channel;
	memset(dw, 0, (size_t)(c->group * c->dh) * sizeof *dw);
	int64_t last = kernel_min(c->blocks, (u->span + 1) * c->span);
	for (int64_t block = u->span * c->span; block < last; block++)
		backward_block(f, u, w, block, dw);
}

size_t KERNEL(additive_attention_grad_scratch)(const backend *b, const op_call *call)
{
	attention_cut c = attention_cut_of(call);
	int64_t products = 2 * c.batch * c.length * c.heads, parts = c.batch * c.spans * c.d;
	int64_t workspaces = ((const cpu *)b)->threads * workspace_floats(&c);
	return (size_t)(kernel_spare_floats(call, 0) + products + parts + workspaces) * sizeof(float);
}

status KERNEL(additive_attention_grad)(backend *b, const op_call *call)
{
	float *memory = call->scratch;
	backward f = {.cut = attention_cut_of(call),
	              .x = call->in[0].data,
	              .w = call->in[1].data,
	              .mask = kernel_optional(call, 2),
	              .log_normalizer = call->in[4].data,
	              .dg = call->in[5].data,
	              .dx = kernel_output(call, 0, &memory)};
	const attention_cut *c = &f.cut;
	f.scale = 1.0f / sqrtf((float)c->dh);
	f.score = memory;
	f.along = f.score + c->batch * c->length * c->heads;
	f.dw = f.along + c->batch * c->length * c->heads;
	memory = f.dw + c->batch * c->spans * c->d;
	products(b, call, &f);
	int64_t units = c->batch * c->spans * c->groups;
	int threads = kernel_threads(b, c->batch * c->length * c->d * ATTENTION_COST);
#pragma omp parallel for schedule(static, 1) num_threads(threads)
	for (int thread = 0; thread < threads; thread++) {
		workspace w = workspace_at(c, memory + thread * workspace_floats(c));
		for (int64_t i = thread; i < units; i += threads) {
			attention_unit u = attention_unit_at(c, i);
			backward_unit(&f, &u, &w);
		}
	}
	if (call->out[1].data)
		kernel_sum_parts(call->out[1].data, f.dw, c->batch * c->spans, c->d, 1.0f);
	return STATUS_OK;
}
