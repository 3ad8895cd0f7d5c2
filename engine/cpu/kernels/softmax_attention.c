/* softmax_attention: for every block of queries of every head, the tiles of keys from the first that its first query
 * sees to the last that its last one sees (softmax_attention.h). Blocks are handed out as threads become free, the last
 * of each head first, since with causal attention it has the most keys. */
#include "engine/cpu/kernels/softmax_attention.h"

#include <stdatomic.h>

typedef struct forward {
	softmax_layout l;
	int64_t blocks;
	const float *query, *key, *value;
	const int32_t *mask;
	softmax_bias bias; /* for head 0 */
	float scale;
	bool uniform;
	softmax_dropout drop;
	float *y, *log_normalizer;
} forward;

static forward forward_of(const op_call *call)
{
	const softmax_params *p = call->params;
	const softmax_layout l = softmax_layout_of(call);
	return (forward){.l = l,
	                 .blocks = kernel_parts(l.queries, SOFTMAX_LANES),
	                 .query = call->in[0].data,
	                 .key = (const float *)call->in[l.k_input].data + l.k_offset,
	                 .value = (const float *)call->in[l.v_input].data + l.v_offset,
	                 .mask = kernel_optional(call, SOFTMAX_MASK),
	                 .bias = softmax_bias_of(call),
	                 .scale = p->scale,
	                 .uniform = p->uniform,
	                 .drop = softmax_dropout_of(call),
	                 .y = call->out[0].data,
	                 .log_normalizer = call->out[1].data};
}

/* Keys j … end - 1 of head g of sequence b, at most a tile of them. */
static softmax_keys keys_at(const forward *f, int64_t b, int64_t g, int64_t j, int64_t end)
{
	const softmax_layout *l = &f->l;
	const int64_t token = b * l->keys + j;
	return (softmax_keys){.key = f->key + token * l->k_row + g * l->dh,
	                      .value = f->value + token * l->v_row + g * l->dv,
	                      .key_row = l->k_row,
	                      .value_row = l->v_row,
	                      .first = j,
	                      .count = kernel_min(SOFTMAX_KEYS, end - j),
	                      .mask = f->mask ? f->mask + token : NULL};
}

static void forward_block(const forward *f, const softmax_block *w, int64_t b, int64_t n, int64_t block)
{
	const softmax_layout *l = &f->l;
	const int64_t first = block * SOFTMAX_LANES, token = b * l->queries + first, g = n / l->group;
	const softmax_queries q = softmax_queries_at(l, &f->bias, b, n, first);
	softmax_block_open(w, &q, f->query + token * l->q_row + n * l->dh, l->q_row, f->scale);
	const int64_t begin = softmax_first_key(l, q.first) / SOFTMAX_KEYS * SOFTMAX_KEYS,
	              end = softmax_end_key(l, q.first + q.count - 1);
	for (int64_t j = begin; j < end; j += SOFTMAX_KEYS) {
		const softmax_keys k = keys_at(f, b, g, j, end);
		softmax_block_tile(w, &q, &k, &f->drop);
	}
	float blind[SOFTMAX_LANES];
	if (f->uniform && softmax_blind(&q, f->mask ? f->mask + b * l->keys : NULL, l->keys, blind)) {
		for (int64_t j = 0; j < l->keys; j += SOFTMAX_KEYS) {
			const softmax_keys k = keys_at(f, b, g, j, l->keys);
			softmax_score_blind(&q, &k, blind, w->score);
			softmax_block_pool(w, &q, &k, &f->drop);
		}
	}
	if (f->y)
		softmax_block_close(w, &q, f->y + (token * l->heads + n) * l->dv, l->heads * l->dv);
	for (int64_t i = 0; i < q.count && f->log_normalizer; i++) {
		float m = w->total[i] > 0.0f ? w->top[i] + math_log(w->total[i]) : -INFINITY;
		f->log_normalizer[(token + i) * l->heads + n] = m;
	}
}

size_t KERNEL(softmax_attention_scratch)(const backend *b, const op_call *call)
{
	const softmax_layout l = softmax_layout_of(call);
	int64_t floats = softmax_block_floats(l.dh, l.dv, ((const softmax_params *)call->params)->p > 0);
	return (size_t)(((const cpu *)b)->threads * floats) * sizeof(float);
}

status KERNEL(softmax_attention)(backend *b, const op_call *call)
{
	forward f = forward_of(call);
	const int64_t heads = f.l.batch * f.l.heads, units = heads * f.blocks,
	              floats = softmax_block_floats(f.l.dh, f.l.dv, f.drop.p > 0);
	const int threads = kernel_threads(b, softmax_work(&f.l) / 4);
	_Atomic int64_t next = 0;
#pragma omp parallel for schedule(static, 1) num_threads(threads)
	for (int thread = 0; thread < threads; thread++) {
		softmax_block w = softmax_block_in((float *)call->scratch + thread * floats, f.l.dh, f.l.dv);
		for (;;) {
			const int64_t unit = atomic_fetch_add(&next, 1);
			if (unit >= units)
				break;
			const int64_t head = unit % heads, block = f.blocks - 1 - unit / heads;
			forward_block(&f, &w, head / f.l.heads, head % f.l.heads, block);
		}
	}
	return STATUS_OK;
}
