/* softmax_attention: for every block of queries of every head, the tiles of keys from the first that its first query
 * sees to its own (softmax_attention.h). Blocks are handed out as threads become free, the last of each head first,
 * since it has the most keys. */
#include "engine/cpu/kernels/softmax_attention.h"

#include <stdatomic.h>

typedef struct forward {
	int64_t length, d, heads, dh, window, blocks;
	const float *qkv;
	const int32_t *mask;
	float scale;
	softmax_dropout drop;
	float *y, *log_normalizer;
} forward;

static forward forward_of(const op_call *call)
{
	const softmax_params *p = call->params;
	shape s = call->in[0].shape;
	return (forward){.length = s.dim[1],
	                 .d = s.dim[2] / 3,
	                 .heads = p->heads,
	                 .dh = s.dim[2] / 3 / p->heads,
	                 .window = p->window <= 0 || p->window > s.dim[1] ? s.dim[1] : p->window,
	                 .blocks = kernel_parts(s.dim[1], SOFTMAX_LANES),
	                 .qkv = call->in[0].data,
	                 .mask = kernel_optional(call, 1),
	                 .scale = p->scale,
	                 .drop = softmax_dropout_of(call),
	                 .y = call->out[0].data,
	                 .log_normalizer = call->out[1].data};
}

static void forward_block(const forward *f, const softmax_block *w, int64_t sequence, int64_t h, int64_t block)
{
	int64_t row = 3 * f->d, first = block * SOFTMAX_LANES, token = sequence * f->length;
	softmax_queries q = {.first = first,
	                     .count = kernel_min(SOFTMAX_LANES, f->length - first),
	                     .window = f->window,
	                     .dh = f->dh,
	                     .head = sequence * f->heads + h};
	const float *query = f->qkv + token * row + h * f->dh;
	softmax_block_open(w, &q, query + first * row, row, f->scale);
	int64_t begin = first < f->window ? 0 : (first - f->window + 1) / SOFTMAX_KEYS * SOFTMAX_KEYS,
	        end = first + q.count;
	for (int64_t j = begin; j < end; j += SOFTMAX_KEYS) {
		softmax_keys k = {.key = query + f->d + j * row,
		                  .value = query + 2 * f->d + j * row,
		                  .row = row,
		                  .first = j,
		                  .count = kernel_min(SOFTMAX_KEYS, end - j),
		                  .mask = f->mask ? f->mask + token + j : NULL};
		softmax_block_tile(w, &q, &k, &f->drop);
	}
	if (f->y)
		softmax_block_close(w, &q, f->y + (token + first) * f->d + h * f->dh, f->d);
	for (int64_t l = 0; l < q.count && f->log_normalizer; l++) {
		float m = w->total[l] > 0.0f ? w->top[l] + math_log(w->total[l]) : -INFINITY;
		f->log_normalizer[(token + first + l) * f->heads + h] = m;
	}
}

size_t KERNEL(softmax_attention_scratch)(const backend *b, const op_call *call)
{
	const softmax_params *p = call->params;
	int64_t floats = softmax_block_floats(call->in[0].shape.dim[2] / 3 / p->heads, p->p > 0);
	return (size_t)(((const cpu *)b)->threads * floats) * sizeof(float);
}

status KERNEL(softmax_attention)(backend *b, const op_call *call)
{
	forward f = forward_of(call);
	int64_t units = call->in[0].shape.dim[0] * f.heads * f.blocks,
	        floats = softmax_block_floats(f.dh, f.drop.p > 0);
	/* A product's step costs a quarter of an addition that comes from memory. */
	const int threads = kernel_threads(b, call->in[0].shape.dim[0] * f.length * f.window * f.d / 4);
	_Atomic int64_t next = 0;
#pragma omp parallel for schedule(static, 1) num_threads(threads)
	for (int thread = 0; thread < threads; thread++) {
		softmax_block w = softmax_block_in((float *)call->scratch + thread * floats, f.dh);
		for (;;) {
			const int64_t unit = atomic_fetch_add(&next, 1);
			if (unit >= units)
				break;
			int64_t head = unit % (units / f.blocks), block = f.blocks - 1 - unit / (units / f.blocks);
			forward_block(&f, &w, head / f.heads, head % f.heads, block);
		}
	}
	return STATUS_OK;
}
