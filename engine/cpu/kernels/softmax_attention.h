/* softmax_attention.h - shared by softmax attention, its gradient and its recurrent form: blocks of queries and
 * tiles of keys, hidden keys and dropout, and the online softmax of a block of queries.
 *
 * A block is up to SOFTMAX_LANES queries of one head, one in each lane of a vector. Element [·][l] of every tile
 * belongs to query l, so maxima, sums and exps run down the lanes and nothing is ever summed across a vector. A tile is
 * up to SOFTMAX_KEYS keys. Only the queries and the result are transposed, once per block:
 *
 *   S = K Qᵀ            [keys, lanes]    K broadcast from its place, Qᵀ [dh, lanes]
 *   P = e^{S - top}     [keys, lanes]    in place of S
 *   Yᵀ += Vᵀ P          [dh, lanes]      V broadcast from its place
 *
 * with the running maximum `top` and sum `total` of each lane (Milakov and Gimelshein 2018, Dao et al. 2022).
 * Lanes past the last query hold zeros: they are computed, stay finite, and are not stored. */
#ifndef ENGINE_CPU_KERNELS_SOFTMAX_ATTENTION_H
#define ENGINE_CPU_KERNELS_SOFTMAX_ATTENTION_H

#include "engine/base/philox.h"
#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/math.h"
#include "engine/cpu/kernels/product.h"
#include "engine/tensor/ops/softmax_attention.h"

#include <string.h>

enum { SOFTMAX_LANES = 64, SOFTMAX_KEYS = 64 };

/* --- one block of queries ------------------------------------------------------------------------------ */

/* `count` tokens' keys and values of one head: token first + r at r · key_row and r · value_row. mask: of these tokens,
 * or NULL. */
typedef struct softmax_keys {
	const float *key, *value;
	int64_t key_row, value_row, first, count;
	const int32_t *mask;
} softmax_keys;

/* One head's numbers that are added to the scores: at[t · heads] is of distance first + t. Distances outside of the
 * `count` of them are of pairs that do not attend. at NULL: nothing is added. */
typedef struct softmax_bias {
	const float *at;
	int64_t heads, first, count;
} softmax_bias;

/* Queries of a block: those at positions first … first + count - 1. */
typedef struct softmax_queries {
	int64_t first, count, window; /* window ≥ 1 */
	int64_t dh, dv;               /* channels of a head of q and k, of v and y */
	int64_t row;                  /* row of the first query in dropout's matrix of keys */
	bool bidirectional;           /* later keys are seen as well */
	softmax_bias bias;
} softmax_queries;

/* Lanes of a block that are computed. */
static inline int64_t softmax_lanes(const softmax_queries *q)
{
	return product_round(q->count);
}

/* to [width, LANES] = factor · the transpose of from [count, width]; the last lanes become zeros. */
static inline void softmax_transpose(const softmax_queries *q, const float *from, int64_t row, int64_t width,
                                     float factor, float *to)
{
	int64_t lanes = softmax_lanes(q);
	for (int64_t d = 0; d < width; d++) {
		for (int64_t l = 0; l < q->count; l++)
			to[d * SOFTMAX_LANES + l] = factor * from[l * row + d];
		for (int64_t l = q->count; l < lanes; l++)
			to[d * SOFTMAX_LANES + l] = 0.0f;
	}
}

/* S = -inf where a query does not attend to a key: the future, the past of the window, masked keys. */
static inline void softmax_hide(const softmax_queries *q, const softmax_keys *k, float *score)
{
	int64_t lanes = softmax_lanes(q), last = k->first + k->count - 1;
	if (!k->mask && (q->bidirectional || last <= q->first) && k->first > q->first + q->count - 1 - q->window)
		return;
	for (int64_t r = 0; r < k->count; r++) {
		/* Lanes from … to - 1 see key r. */
		int64_t from = k->first + r - q->first, to = from + q->window;
		if (q->bidirectional)
			from = 0;
		if (k->mask && !k->mask[r])
			from = lanes;
		for (int64_t l = 0; l < kernel_min(from, lanes); l++)
			score[r * SOFTMAX_LANES + l] = -INFINITY;
		for (int64_t l = to < 0 ? 0 : to; l < lanes; l++)
			score[r * SOFTMAX_LANES + l] = -INFINITY;
	}
}

/* S = the bias of each pair, to be added to. */
static inline void softmax_begin_with_bias(const softmax_queries *q, const softmax_keys *k, float *score)
{
	/* Element x is of lane l and key r with x = l - r + count - 1. */
	float bias[SOFTMAX_LANES + SOFTMAX_KEYS];
	const int64_t lanes = softmax_lanes(q), count = lanes + k->count - 1;
	const int64_t first = q->first - k->first - (k->count - 1) - q->bias.first;
	for (int64_t x = 0; x < count; x++) {
		const int64_t t = first + x;
		bias[x] = t >= 0 && t < q->bias.count ? q->bias.at[t * q->bias.heads] : 0.0f;
	}
	for (int64_t r = 0; r < k->count; r++)
		memcpy(score + r * SOFTMAX_LANES, bias + k->count - 1 - r, (size_t)lanes * sizeof(float));
}

/* S = K Qᵀ [keys, LANES] and what is added, -inf where a query does not attend to a key. query: Qᵀ, scaled. */
static inline void softmax_score(const softmax_queries *q, const softmax_keys *k, const float *query, float *score)
{
	const int64_t lanes = softmax_lanes(q);
	const product_matrix key = {k->key, k->key_row, 1};
	if (q->bias.at) {
		softmax_begin_with_bias(q, k, score);
		product(k->count, lanes, q->dh, key, query, SOFTMAX_LANES, score, SOFTMAX_LANES, true);
	} else {
		product(k->count, lanes, q->dh, key, query, SOFTMAX_LANES, score, SOFTMAX_LANES, false);
	}
	softmax_hide(q, k, score);
}

/* blind[l]: 0 where query l attends to one of the first `keys` keys of the sequence, of which `mask` is, else 1. False:
 * every query does. */
static inline bool softmax_blind(const softmax_queries *q, const int32_t *mask, int64_t keys, float *blind)
{
	bool any = false;
	for (int64_t l = 0; l < SOFTMAX_LANES; l++) {
		const int64_t position = q->first + l, first = position - q->window + 1;
		const int64_t end = q->bidirectional ? keys : kernel_min(keys, position + 1);
		int64_t j = first < 0 ? 0 : first;
		while (mask && j < end && !mask[j])
			j++;
		blind[l] = l < q->count && j >= end ? 1.0f : 0.0f;
		any |= blind[l] != 0.0f;
	}
	return any;
}

/* S = 0 for queries that attend to nothing, -inf for the others: this makes their probabilities equal. */
static inline void softmax_score_blind(const softmax_queries *q, const softmax_keys *k, const float *blind,
                                       float *score)
{
	const int64_t lanes = softmax_lanes(q);
	for (int64_t r = 0; r < k->count; r++)
		for (int64_t l = 0; l < lanes; l++)
			score[r * SOFTMAX_LANES + l] = blind[l] != 0.0f ? 0.0f : -INFINITY;
}

/* Inputs of dropout; p = 0: none. */
typedef struct softmax_dropout {
	float p;
	uint32_t stream, step;
	uint64_t seed;
	uint64_t rows; /* rows in the matrices of the earlier parts of the batch */
	int64_t keys;  /* S of the matrix [B, H, N, S] */
} softmax_dropout;

static inline softmax_dropout softmax_dropout_of(const op_call *call)
{
	const softmax_params *p = call->params;
	const softmax_layout l = softmax_layout_of(call);
	softmax_dropout d = {.p = p->p, .stream = p->stream, .keys = l.keys};
	if (p->p > 0) {
		uint32_t rng[4];
		memcpy(rng, call->in[SOFTMAX_RNG].data, sizeof rng);
		d.seed = (uint64_t)rng[1] << 32 | rng[0];
		d.step = rng[2];
		d.rows = rng[3] * (uint64_t)(l.batch * l.heads * l.queries);
	}
	return d;
}

/* The bias of head 0. */
static inline softmax_bias softmax_bias_of(const op_call *call)
{
	const float *bias = kernel_optional(call, SOFTMAX_BIAS);
	if (!bias)
		return (softmax_bias){0};
	const shape s = call->in[SOFTMAX_BIAS].shape;
	return (softmax_bias){bias, s.dim[1], ((const softmax_params *)call->params)->bias_first, s.dim[0]};
}

/* The block of head n of sequence b that begins with query i. bias: of head 0. */
static inline softmax_queries softmax_queries_at(const softmax_layout *l, const softmax_bias *bias, int64_t b,
                                                 int64_t n, int64_t i)
{
	softmax_queries q = {.first = i + l->shift,
	                     .count = kernel_min(SOFTMAX_LANES, l->queries - i),
	                     .window = l->window,
	                     .dh = l->dh,
	                     .dv = l->dv,
	                     .row = (b * l->heads + n) * l->queries + i,
	                     .bidirectional = l->ahead > 0,
	                     .bias = *bias};
	q.bias.at += bias->at ? n : 0;
	return q;
}

/* Pairs of queries and keys, a value for each channel of y. A product's step costs a quarter of an addition that comes
 * from memory. */
static inline int64_t softmax_work(const softmax_layout *l)
{
	return l->batch * l->queries * (l->ahead ? l->keys : l->window) * l->heads * ((l->dh + l->dv) / 2);
}

/* Floats of `words` below: a lane's first word may be any of a Philox block. */
enum { SOFTMAX_WORDS = (SOFTMAX_KEYS + 4) * SOFTMAX_LANES };

/* keep [keys, LANES]: 1 / (1 - p) or 0, the factor of each probability. words is scratch. */
static inline void softmax_keep(const softmax_dropout *d, const softmax_queries *q, const softmax_keys *k,
                                uint32_t *words, float *keep)
{
	int64_t lanes = softmax_lanes(q);
	uint64_t block[SOFTMAX_LANES];
	uint32_t phase[SOFTMAX_LANES];
	for (int64_t l = 0; l < lanes; l++) {
		uint64_t element = (d->rows + (uint64_t)(q->row + l)) * (uint64_t)d->keys + (uint64_t)k->first;
		block[l] = element / 4;
		phase[l] = element % 4;
	}
	for (int64_t t = 0; 4 * t < k->count + 3; t++) {
		uint32_t *to = words + 4 * t * SOFTMAX_LANES;
		for (int64_t v = 0; v < lanes; v += PRODUCT_VECTOR) {
#pragma omp simd
			for (int64_t l = v; l < v + PRODUCT_VECTOR; l++) {
				philox_block r = philox(d->seed, d->stream, d->step, block[l] + (uint64_t)t);
				to[l] = r.word[0];
				to[l + SOFTMAX_LANES] = r.word[1];
				to[l + 2 * SOFTMAX_LANES] = r.word[2];
				to[l + 3 * SOFTMAX_LANES] = r.word[3];
			}
		}
	}
	/* philox_uniform(word) >= p, on integers. */
	const uint32_t kept = (uint32_t)ceil((double)d->p * 0x1p24);
	const float factor = 1.0f / (1.0f - d->p);
	for (int64_t r = 0; r < k->count; r++) {
		const uint32_t *from = words + r * SOFTMAX_LANES;
#pragma omp simd
		for (int64_t l = 0; l < lanes; l++) {
			uint32_t low = phase[l] & 1 ? from[l + SOFTMAX_LANES] : from[l];
			uint32_t high = phase[l] & 1 ? from[l + 3 * SOFTMAX_LANES] : from[l + 2 * SOFTMAX_LANES];
			uint32_t word = phase[l] & 2 ? high : low;
			keep[r * SOFTMAX_LANES + l] = word >> 8 >= kept ? factor : 0.0f;
		}
	}
}

/* Scratch of one block; all rows are LANES apart. */
typedef struct softmax_block {
	float *query;  /* [dh]: scale · Qᵀ */
	float *pooled; /* [dv]: Yᵀ, not yet divided by total */
	float *score;  /* [KEYS] */
	float *top, *total, *shrink;
	float *keep; /* [KEYS], and words */
} softmax_block;

static inline int64_t softmax_block_floats(int64_t dh, int64_t dv, bool dropout)
{
	return (dh + dv + SOFTMAX_KEYS + 3 + (dropout ? SOFTMAX_KEYS : 0)) * SOFTMAX_LANES +
	       (dropout ? SOFTMAX_WORDS : 0);
}

static inline softmax_block softmax_block_in(float *memory, int64_t dh, int64_t dv)
{
	softmax_block b = {.query = memory};
	b.pooled = b.query + dh * SOFTMAX_LANES;
	b.score = b.pooled + dv * SOFTMAX_LANES;
	b.top = b.score + SOFTMAX_KEYS * SOFTMAX_LANES;
	b.total = b.top + SOFTMAX_LANES;
	b.shrink = b.total + SOFTMAX_LANES;
	b.keep = b.shrink + SOFTMAX_LANES;
	return b;
}

/* Nothing attended to yet. query: the block's first row. */
static inline void softmax_block_open(const softmax_block *b, const softmax_queries *q, const float *query, int64_t row,
                                      float scale)
{
	softmax_transpose(q, query, row, q->dh, scale, b->query);
	memset(b->pooled, 0, (size_t)(q->dv * SOFTMAX_LANES) * sizeof(float));
	for (int64_t l = 0; l < SOFTMAX_LANES; l++) {
		b->top[l] = -INFINITY;
		b->total[l] = 0.0f;
	}
}

/* S becomes P, and top, total and the factor `shrink` of what was pooled before follow. */
static inline void softmax_block_exp(const softmax_block *b, int64_t lanes, int64_t keys)
{
	for (int64_t v = 0; v < lanes; v += PRODUCT_VECTOR) {
		float *score = b->score + v, *top = b->top + v, *total = b->total + v, *shrink = b->shrink + v;
		float high[PRODUCT_VECTOR], sum[PRODUCT_VECTOR];
#pragma omp simd
		for (int l = 0; l < PRODUCT_VECTOR; l++)
			high[l] = top[l];
		for (int64_t r = 0; r < keys; r++) {
#pragma omp simd
			for (int l = 0; l < PRODUCT_VECTOR; l++) {
				float s = score[r * SOFTMAX_LANES + l];
				high[l] = s > high[l] ? s : high[l];
			}
		}
#pragma omp simd
		for (int l = 0; l < PRODUCT_VECTOR; l++) {
			/* While all keys were hidden the maximum is -inf, and any finite number serves. */
			float finite = high[l] > -INFINITY ? high[l] : 0.0f;
			shrink[l] = math_exp(top[l] - finite);
			sum[l] = total[l] * shrink[l];
			top[l] = high[l];
			high[l] = finite;
		}
		for (int64_t r = 0; r < keys; r++) {
#pragma omp simd
			for (int l = 0; l < PRODUCT_VECTOR; l++) {
				float p = math_exp(score[r * SOFTMAX_LANES + l] - high[l]);
				score[r * SOFTMAX_LANES + l] = p;
				sum[l] += p;
			}
		}
#pragma omp simd
		for (int l = 0; l < PRODUCT_VECTOR; l++)
			total[l] = sum[l];
	}
}

/* Pool the values of a tile of keys whose scores are S. */
static inline void softmax_block_pool(const softmax_block *b, const softmax_queries *q, const softmax_keys *k,
                                      const softmax_dropout *drop)
{
	int64_t lanes = softmax_lanes(q);
	softmax_block_exp(b, lanes, k->count);
	if (drop && drop->p > 0) {
		softmax_keep(drop, q, k, (uint32_t *)(b->keep + SOFTMAX_KEYS * SOFTMAX_LANES), b->keep);
		for (int64_t r = 0; r < k->count; r++)
			for (int64_t l = 0; l < lanes; l++)
				b->score[r * SOFTMAX_LANES + l] *= b->keep[r * SOFTMAX_LANES + l];
	}
	for (int64_t d = 0; d < q->dv; d++) {
#pragma omp simd
		for (int64_t l = 0; l < lanes; l++)
			b->pooled[d * SOFTMAX_LANES + l] *= b->shrink[l];
	}
	product(q->dv, lanes, k->count, (product_matrix){k->value, 1, k->value_row}, b->score, SOFTMAX_LANES, b->pooled,
	        SOFTMAX_LANES, true);
}

/* Attend to a tile of keys. */
static inline void softmax_block_tile(const softmax_block *b, const softmax_queries *q, const softmax_keys *k,
                                      const softmax_dropout *drop)
{
	softmax_score(q, k, b->query, b->score);
	softmax_block_pool(b, q, k, drop);
}

/* y = Y / total, the block's first row; nothing attended to: zeros. */
static inline void softmax_block_close(const softmax_block *b, const softmax_queries *q, float *y, int64_t row)
{
	for (int64_t l = 0; l < q->count; l++)
		b->shrink[l] = b->total[l] > 0.0f ? 1.0f / b->total[l] : 0.0f;
	for (int64_t l = 0; l < q->count; l++)
		for (int64_t d = 0; d < q->dv; d++)
			y[l * row + d] = b->pooled[d * SOFTMAX_LANES + l] * b->shrink[l];
}

#endif
