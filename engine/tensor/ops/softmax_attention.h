/* softmax_attention.h - positions of the arguments of softmax_attention and softmax_attention_grad, for their kernels.
 *
 * Both forms of the op are one. Head n of query i of sequence b is at q + (b · queries + i) · q_row + n · dh. Head g of
 * key j is at k + (b · keys + j) · k_row + g · dh. Its value is at v + (b · keys + j) · v_row + g · dv. q, k and v
 * begin 0, `k_offset` and `v_offset` elements after the data of inputs 0, k_input and v_input. The gradients of q, k
 * and v have the same places in outputs 0, k_input and v_input. */
#ifndef ENGINE_TENSOR_OPS_SOFTMAX_ATTENTION_H
#define ENGINE_TENSOR_OPS_SOFTMAX_ATTENTION_H

#include "engine/tensor/op.h"
#include "engine/tensor/ops.h"

/* Inputs of both ops, then of the gradient alone. */
enum { SOFTMAX_MASK = 3, SOFTMAX_BIAS, SOFTMAX_RNG, SOFTMAX_Y, SOFTMAX_LOG_NORMALIZER, SOFTMAX_DY };

typedef struct softmax_layout {
	int64_t batch, queries, keys; /* B, N, S */
	int64_t heads, kv_heads;      /* H, G */
	int64_t group;                /* H / G: heads n of queries read head n / group of keys */
	int64_t dh, dv;               /* channels of a head of q and k, of v and y */
	int64_t shift;                /* S - N: query i is at position i + shift */
	int64_t window;               /* 1 … max(S, 1) */
	int64_t ahead;                /* number of keys after its position that a query sees: 0, or all */
	int64_t q_row, k_row, v_row, k_offset, v_offset;
	int k_input, v_input;
} softmax_layout;

static inline softmax_layout softmax_layout_of(const op_call *call)
{
	const softmax_params *p = (const softmax_params *)call->params;
	const shape q = call->in[0].shape;
	const bool fused = call->n_in < 2 || !call->in[1].data;
	const shape k = fused ? q : call->in[1].shape, v = fused ? q : call->in[2].shape;
	softmax_layout l;
	l.batch = q.dim[0], l.queries = q.dim[1], l.keys = k.dim[1];
	l.heads = p->heads, l.kv_heads = p->kv_heads ? p->kv_heads : p->heads;
	l.group = l.heads / l.kv_heads;
	l.q_row = q.dim[2], l.k_row = k.dim[2], l.v_row = v.dim[2];
	l.dh = (fused ? q.dim[2] / 3 : q.dim[2]) / l.heads;
	l.dv = fused ? l.dh : v.dim[2] / l.kv_heads;
	l.shift = l.keys - l.queries;
	l.window = p->window <= 0 || p->window > l.keys ? l.keys : p->window;
	l.window = l.window < 1 ? 1 : l.window;
	l.ahead = p->bidirectional ? l.keys + l.queries : 0;
	l.k_offset = fused ? q.dim[2] / 3 : 0, l.v_offset = 2 * l.k_offset;
	l.k_input = fused ? 0 : 1, l.v_input = fused ? 0 : 2;
	return l;
}

/* The keys first … end - 1 that queries at positions `from` … `to` see, ignoring the mask; first ≤ end. */
static inline int64_t softmax_first_key(const softmax_layout *l, int64_t from)
{
	const int64_t first = from - l->window + 1;
	return first < 0 ? 0 : first;
}
static inline int64_t softmax_end_key(const softmax_layout *l, int64_t to)
{
	const int64_t end = l->ahead ? l->keys : to + 1;
	return end < 0 ? 0 : end;
}

#endif
