/* linear_attention_grad: the three sweeps of linear_attention.h, dq from the first token to the last, dk and dv in the
 * opposite direction. If bidirectional: three states of all tokens and three products that apply them. No state is
 * kept: a sweep recomputes it. */
#include "engine/cpu/kernels/linear_attention.h"

typedef struct backward {
	int64_t queries, keys, d, heads, dh, pitch;
	const float *query, *key, *value, *y, *normalizer, *dy;
	const int32_t *mask;
	bool causal;
	float eps;
	float *dquery, *dkey, *dvalue; /* each may be NULL */
	linear_cut cut;
} backward;

static backward backward_of(const op_call *call, int threads)
{
	const linear_attention_params *p = call->params;
	const shape q = call->in[0].shape;
	const int64_t dh = q.dim[2] / p->heads;
	return (backward){.queries = q.dim[1],
	                  .keys = call->in[1].shape.dim[1],
	                  .d = q.dim[2],
	                  .heads = p->heads,
	                  .dh = dh,
	                  .pitch = linear_pitch(dh),
	                  .query = call->in[0].data,
	                  .key = call->in[1].data,
	                  .value = call->in[2].data,
	                  .mask = call->in[3].data,
	                  .y = call->in[4].data,
	                  .normalizer = call->in[5].data,
	                  .dy = call->in[6].data,
	                  .causal = p->causal,
	                  .eps = p->eps,
	                  .dquery = call->out[0].data,
	                  .dkey = call->out[1].data,
	                  .dvalue = call->out[2].data,
	                  .cut = linear_cut_of(q.dim[0] * p->heads, dh, threads)};
}

/* Scratch of one thread; all rows are `pitch` apart. */
typedef struct workspace {
	float *query, *key, *value, *grad, *out; /* [TOKENS]: φ(q), φ(k), [v, 1], [G, c] */
	float *state, *other;                    /* [dh + 1] each */
} workspace;

static int64_t linear_attention_grad_workspace_floats(int64_t dh)
{
	return (5 * LINEAR_TOKENS + 2 * (dh + 1)) * linear_pitch(dh);
}

static workspace linear_attention_grad_workspace_at(int64_t dh, float *memory)
{
	const int64_t chunk = LINEAR_TOKENS * linear_pitch(dh);
	workspace w = {.query = memory};
	w.key = w.query + chunk;
	w.value = w.key + chunk;
	w.grad = w.value + chunk;
	w.out = w.grad + chunk;
	w.state = w.out + chunk;
	w.other = w.state + (dh + 1) * linear_pitch(dh);
	return w;
}

static void clear_states(const backward *f, const workspace *w)
{
	memset(w->state, 0, (size_t)(2 * (f->dh + 1) * f->pitch) * sizeof(float));
}

static linear_tokens tokens_at(const backward *f, const linear_unit *u, const float *data, int64_t length, int64_t t,
                               int64_t count, const int32_t *mask)
{
	return linear_tokens_at(u, f->d, f->dh, data, length, t, count, mask);
}

static void load_keys(const backward *f, const workspace *w, const linear_unit *u, int64_t t, int64_t count)
{
	linear_load_features(tokens_at(f, u, f->key, f->keys, t, count, f->mask), w->key);
	linear_load_values(tokens_at(f, u, f->value, f->keys, t, count, f->mask), w->value);
}

/* φ(q) and [G, c]: G = Z dy, c = -Z dy·y. */
static void load_queries(const backward *f, const workspace *w, const linear_unit *u, int64_t t, int64_t count)
{
	const int64_t row = u->sequence * f->queries + t;
	linear_load_features(tokens_at(f, u, f->query, f->queries, t, count, NULL), w->query);
	for (int64_t i = 0; i < count; i++) {
		const float *dy = f->dy + (row + i) * f->d + u->head * f->dh;
		const float *y = f->y + (row + i) * f->d + u->head * f->dh;
		const float inverse = linear_inverse(f->normalizer[(row + i) * f->heads + u->head], f->eps);
		float *to = w->grad + i * f->pitch, along = 0.0f;
#pragma omp simd reduction(+ : along)
		for (int64_t m = 0; m < f->dh; m++) {
			along += dy[m] * y[m];
			to[m] = inverse * dy[m];
		}
		for (int64_t m = f->dh; m < f->pitch; m++)
			to[m] = m == f->dh ? -inverse * along : 0.0f;
	}
}

/* Rows of `out` to tokens t … of a gradient, times the slope of `features` (NULL: 1). */
static void store_unit(const backward *f, const workspace *w, const linear_unit *u, float *data, int64_t length,
                       int64_t t, int64_t count, const float *features)
{
	const int64_t width = kernel_min(u->columns, f->dh - u->first);
	float *to = data + (u->sequence * length + t) * f->d + u->head * f->dh + u->first;
	for (int64_t i = 0; i < count; i++, to += f->d) {
		const float *from = w->out + i * f->pitch, *phi = features ? features + i * f->pitch + u->first : from;
		if (features) {
#pragma omp simd
			for (int64_t d = 0; d < width; d++)
				to[d] = from[d] * (phi[d] < 1.0f ? phi[d] : 1.0f);
		} else {
			memcpy(to, from, (size_t)width * sizeof *to);
		}
	}
}

/* --- causal ------------------------------------------------------------------------------------------------ */

/* The sweep of a chunk, from its last token on where `back`. */
static linear_sweep sweep_of(const backward *f, const workspace *w, const linear_unit *u, const float *a,
                             const float *b, const float *c, int64_t count, bool back)
{
	const int64_t from = back ? (count - 1) * f->pitch : 0;
	return (linear_sweep){a + from,      b + from + u->first,         c + from,
	                      w->out + from, back ? -f->pitch : f->pitch, count};
}

static void causal_queries(const backward *f, const workspace *w, const linear_unit *u)
{
	clear_states(f, w);
	for (int64_t t = 0; t < f->queries; t += LINEAR_TOKENS) {
		const int64_t count = kernel_min(LINEAR_TOKENS, f->queries - t);
		load_keys(f, w, u, t, count);
		load_queries(f, w, u, t, count);
		linear_sweep_run(f->dh + 1, u->columns, sweep_of(f, w, u, w->value, w->key, w->grad, count, false),
		                 w->state, f->pitch);
		store_unit(f, w, u, f->dquery, f->queries, t, count, w->query);
	}
}

static void causal_keys(const backward *f, const workspace *w, const linear_unit *u)
{
	clear_states(f, w);
	for (int64_t t = (kernel_parts(f->keys, LINEAR_TOKENS) - 1) * LINEAR_TOKENS; t >= 0; t -= LINEAR_TOKENS) {
		const int64_t count = kernel_min(LINEAR_TOKENS, f->keys - t);
		load_keys(f, w, u, t, count);
		load_queries(f, w, u, t, count);
		if (f->dkey) {
			linear_sweep_run(f->dh + 1, u->columns,
			                 sweep_of(f, w, u, w->grad, w->query, w->value, count, true), w->state,
			                 f->pitch);
			store_unit(f, w, u, f->dkey, f->keys, t, count, w->key);
		}
		if (f->dvalue) {
			linear_sweep_run(f->dh, u->columns, sweep_of(f, w, u, w->query, w->grad, w->key, count, true),
			                 w->other, f->pitch);
			store_unit(f, w, u, f->dvalue, f->keys, t, count, NULL);
		}
	}
}

/* --- bidirectional --------------------------------------------------------------------------------------------- */

/* state [rows, columns] += aᵀ b of a chunk. */
static void add_chunk(const backward *f, const linear_unit *u, int64_t rows, int64_t count, const float *a,
                      const float *b, float *state)
{
	product(rows, u->columns, count, (product_matrix){a, 1, f->pitch}, b + u->first, f->pitch, state, f->pitch,
	        true);
}

/* out = c state. */
static void linear_attention_grad_apply(const backward *f, const workspace *w, const linear_unit *u, int64_t rows,
                                        int64_t count, const float *c, const float *state)
{
	product(count, u->columns, rows, (product_matrix){c, f->pitch, 1}, state, f->pitch, w->out, f->pitch, false);
}

static void all_queries(const backward *f, const workspace *w, const linear_unit *u)
{
	clear_states(f, w);
	for (int64_t t = 0; t < f->keys; t += LINEAR_TOKENS) {
		const int64_t count = kernel_min(LINEAR_TOKENS, f->keys - t);
		load_keys(f, w, u, t, count);
		add_chunk(f, u, f->dh + 1, count, w->value, w->key, w->state);
	}
	for (int64_t t = 0; t < f->queries; t += LINEAR_TOKENS) {
		const int64_t count = kernel_min(LINEAR_TOKENS, f->queries - t);
		load_queries(f, w, u, t, count);
		linear_attention_grad_apply(f, w, u, f->dh + 1, count, w->grad, w->state);
		store_unit(f, w, u, f->dquery, f->queries, t, count, w->query);
	}
}

static void all_keys(const backward *f, const workspace *w, const linear_unit *u)
{
	clear_states(f, w);
	for (int64_t t = 0; t < f->queries; t += LINEAR_TOKENS) {
		const int64_t count = kernel_min(LINEAR_TOKENS, f->queries - t);
		load_queries(f, w, u, t, count);
		add_chunk(f, u, f->dh + 1, count, w->grad, w->query, w->state);
		add_chunk(f, u, f->dh, count, w->query, w->grad, w->other);
	}
	for (int64_t t = 0; t < f->keys; t += LINEAR_TOKENS) {
		const int64_t count = kernel_min(LINEAR_TOKENS, f->keys - t);
		load_keys(f, w, u, t, count);
		if (f->dkey) {
			linear_attention_grad_apply(f, w, u, f->dh + 1, count, w->value, w->state);
			store_unit(f, w, u, f->dkey, f->keys, t, count, w->key);
		}
		if (f->dvalue) {
			linear_attention_grad_apply(f, w, u, f->dh, count, w->key, w->other);
			store_unit(f, w, u, f->dvalue, f->keys, t, count, NULL);
		}
	}
}

/* --- the call ------------------------------------------------------------------------------------------------------
 */

static void linear_attention_grad_run(const backward *f, const workspace *w, int64_t index)
{
	const linear_unit u = linear_unit_at(&f->cut, f->heads, f->dh, index);
	if (f->dquery)
		(f->causal ? causal_queries : all_queries)(f, w, &u);
	if (f->dkey || f->dvalue)
		(f->causal ? causal_keys : all_keys)(f, w, &u);
}

size_t KERNEL(linear_attention_grad_scratch)(const backend *b, const op_call *call)
{
	const linear_attention_params *p = call->params;
	const int64_t dh = call->in[0].shape.dim[2] / p->heads;
	return (size_t)(((const cpu *)b)->threads * linear_attention_grad_workspace_floats(dh)) * sizeof(float);
}

status KERNEL(linear_attention_grad)(backend *b, const op_call *call)
{
	const linear_attention_params *p = call->params;
	const shape q = call->in[0].shape;
	const int64_t dh = q.dim[2] / p->heads, tokens = q.dim[0] * (q.dim[1] + call->in[1].shape.dim[1]) / 2;
	const int threads = kernel_threads(b, tokens * q.dim[2] * dh * 3 / 4);
	const backward f = backward_of(call, threads);
	_Atomic int64_t next = 0;
#pragma omp parallel for schedule(static, 1) num_threads(threads)
	for (int thread = 0; thread < threads; thread++) {
		const workspace w = linear_attention_grad_workspace_at(
		    dh, (float *)call->scratch + thread * linear_attention_grad_workspace_floats(dh));
		for (;;) {
			const int64_t index = atomic_fetch_add(&next, 1);
			if (index >= f.cut.units)
				break;
			linear_attention_grad_run(&f, &w, index);
		}
	}
	return STATUS_OK;
}
