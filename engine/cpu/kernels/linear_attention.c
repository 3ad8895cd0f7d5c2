/* linear_attention: for every head of every sequence, the sweep of linear_attention.h or, bidirectional, one product
 * for the state and one that applies it, a chunk of tokens at a time. Heads are handed out as threads become free. */
#include "engine/cpu/kernels/linear_attention.h"

typedef struct forward {
	int64_t queries, keys, d, heads, dh, pitch;
	const float *query, *key, *value;
	const int32_t *mask;
	bool causal;
	float eps;
	float *y, *normalizer;
	linear_cut cut;
} forward;

static forward forward_of(const op_call *call, int threads)
{
	const linear_attention_params *p = call->params;
	const shape q = call->in[0].shape;
	const int64_t dh = q.dim[2] / p->heads;
	return (forward){.queries = q.dim[1],
	                 .keys = call->in[1].shape.dim[1],
	                 .d = q.dim[2],
	                 .heads = p->heads,
	                 .dh = dh,
	                 .pitch = linear_pitch(dh),
	                 .query = call->in[0].data,
	                 .key = call->in[1].data,
	                 .value = call->in[2].data,
	                 .mask = kernel_optional(call, 3),
	                 .causal = p->causal,
	                 .eps = p->eps,
	                 .y = call->out[0].data,
	                 .normalizer = call->out[1].data,
	                 .cut = linear_cut_of(q.dim[0] * p->heads, dh, threads)};
}

/* Scratch of one thread; all rows are `pitch` apart. */
typedef struct workspace {
	float *query, *key, *value, *out; /* [TOKENS] */
	float *state, *z;                 /* S [dh], z */
	float *normalizer;                /* [TOKENS] */
} workspace;

static int64_t linear_attention_workspace_floats(int64_t dh)
{
	return (4 * LINEAR_TOKENS + dh + 1) * linear_pitch(dh) + LINEAR_TOKENS;
}

static workspace linear_attention_workspace_at(int64_t dh, float *memory)
{
	const int64_t chunk = LINEAR_TOKENS * linear_pitch(dh);
	workspace w = {.query = memory};
	w.key = w.query + chunk;
	w.value = w.key + chunk;
	w.out = w.value + chunk;
	w.state = w.out + chunk;
	w.z = w.state + dh * linear_pitch(dh);
	w.normalizer = w.z + linear_pitch(dh);
	return w;
}

static linear_tokens tokens_at(const forward *f, const linear_unit *u, const float *data, int64_t length, int64_t t,
                               int64_t count, const int32_t *mask)
{
	return linear_tokens_at(u, f->d, f->dh, data, length, t, count, mask);
}

static void load_keys(const forward *f, const workspace *w, const linear_unit *u, int64_t t, int64_t count)
{
	linear_load_features(tokens_at(f, u, f->key, f->keys, t, count, f->mask), w->key);
	linear_load_values(tokens_at(f, u, f->value, f->keys, t, count, f->mask), w->value);
}

/* y of queries t … t + count - 1 from `out` and the normalizers; these are written with the first columns. */
static void store_unit(const forward *f, const workspace *w, const linear_unit *u, int64_t t, int64_t count)
{
	const int64_t row = u->sequence * f->queries + t, width = kernel_min(u->columns, f->dh - u->first);
	for (int64_t i = 0; i < count && f->y; i++) {
		const float inverse = linear_inverse(w->normalizer[i], f->eps), *from = w->out + i * f->pitch;
		float *to = f->y + (row + i) * f->d + u->head * f->dh + u->first;
#pragma omp simd
		for (int64_t m = 0; m < width; m++)
			to[m] = inverse * from[m];
	}
	for (int64_t i = 0; i < count && f->normalizer && u->first == 0; i++)
		f->normalizer[(row + i) * f->heads + u->head] = w->normalizer[i];
}

static void causal_unit(const forward *f, const workspace *w, const linear_unit *u)
{
	for (int64_t t = 0; t < f->queries; t += LINEAR_TOKENS) {
		const int64_t count = kernel_min(LINEAR_TOKENS, f->queries - t);
		const linear_sweep s = {w->key, w->value + u->first, w->query, w->out, f->pitch, count};
		load_keys(f, w, u, t, count);
		linear_load_features(tokens_at(f, u, f->query, f->queries, t, count, NULL), w->query);
		linear_normalize(true, count, f->dh, w->query, w->key, w->z, w->normalizer);
		if (f->y)
			linear_sweep_run(f->dh, u->columns, s, w->state, f->pitch);
		store_unit(f, w, u, t, count);
	}
}

static void bidirectional_unit(const forward *f, const workspace *w, const linear_unit *u)
{
	for (int64_t t = 0; t < f->keys; t += LINEAR_TOKENS) {
		const int64_t count = kernel_min(LINEAR_TOKENS, f->keys - t);
		load_keys(f, w, u, t, count);
		product(f->dh, u->columns, count, (product_matrix){w->key, 1, f->pitch}, w->value + u->first, f->pitch,
		        w->state, f->pitch, true);
		for (int64_t i = 0; i < count; i++)
#pragma omp simd
			for (int64_t d = 0; d < f->dh; d++)
				w->z[d] += w->key[i * f->pitch + d];
	}
	for (int64_t t = 0; t < f->queries; t += LINEAR_TOKENS) {
		const int64_t count = kernel_min(LINEAR_TOKENS, f->queries - t);
		linear_load_features(tokens_at(f, u, f->query, f->queries, t, count, NULL), w->query);
		linear_normalize(false, count, f->dh, w->query, w->query, w->z, w->normalizer);
		product(count, u->columns, f->dh, (product_matrix){w->query, f->pitch, 1}, w->state, f->pitch, w->out,
		        f->pitch, false);
		store_unit(f, w, u, t, count);
	}
}

size_t KERNEL(linear_attention_scratch)(const backend *b, const op_call *call)
{
	const linear_attention_params *p = call->params;
	const int64_t dh = call->in[0].shape.dim[2] / p->heads;
	return (size_t)(((const cpu *)b)->threads * linear_attention_workspace_floats(dh)) * sizeof(float);
}

status KERNEL(linear_attention)(backend *b, const op_call *call)
{
	const linear_attention_params *p = call->params;
	const shape q = call->in[0].shape;
	const int64_t dh = q.dim[2] / p->heads, tokens = q.dim[0] * (q.dim[1] + call->in[1].shape.dim[1]) / 2;
	/* A product's step costs a quarter of an addition that comes from memory. */
	const int threads = kernel_threads(b, tokens * q.dim[2] * dh / 4);
	const forward f = forward_of(call, threads);
	_Atomic int64_t next = 0;
#pragma omp parallel for schedule(static, 1) num_threads(threads)
	for (int thread = 0; thread < threads; thread++) {
		const workspace w = linear_attention_workspace_at(
		    dh, (float *)call->scratch + thread * linear_attention_workspace_floats(dh));
		for (;;) {
			const int64_t index = atomic_fetch_add(&next, 1);
			if (index >= f.cut.units)
				break;
			const linear_unit u = linear_unit_at(&f.cut, f.heads, f.dh, index);
			memset(w.state, 0, (size_t)((dh + 1) * f.pitch) * sizeof(float)); /* and z */
			if (f.causal)
				causal_unit(&f, &w, &u);
			else
				bidirectional_unit(&f, &w, &u);
		}
	}
	return STATUS_OK;
}
