/* Softmax attention, every probability taken directly. */
#include <math.h>

#include "engine/base/philox.h"
#include "engine/cpu/reference/reference.h"
#include "engine/tensor/ops/softmax_attention.h"

/* Head n of queries of sequence b: rows of its tensors are apart as in the layout; log_normalizer: at i·H. */
typedef struct head {
	softmax_layout l;
	const softmax_params *p;
	const float *query, *key, *value;
	const int32_t *mask; /* NULL: nothing is masked */
	const float *bias;   /* [T, H] from this head's column on, or NULL */
	int64_t b, n;
	uint64_t seed;
	uint32_t step, part;
} head;

static const void *optional(const op_call *call, int i)
{
	return i < call->n_in ? call->in[i].data : NULL;
}

static head softmax_attention_head_at(const op_call *call, int64_t b, int64_t n)
{
	head a = {.l = softmax_layout_of(call), .p = call->params, .b = b, .n = n};
	const int64_t g = n / a.l.group;
	const int32_t *mask = optional(call, SOFTMAX_MASK), *rng = optional(call, SOFTMAX_RNG);
	const float *bias = optional(call, SOFTMAX_BIAS);
	a.query = (const float *)call->in[0].data + b * a.l.queries * a.l.q_row + n * a.l.dh;
	a.key = (const float *)call->in[a.l.k_input].data + a.l.k_offset + b * a.l.keys * a.l.k_row + g * a.l.dh;
	a.value = (const float *)call->in[a.l.v_input].data + a.l.v_offset + b * a.l.keys * a.l.v_row + g * a.l.dv;
	a.mask = mask ? mask + b * a.l.keys : NULL;
	a.bias = bias ? bias + n : NULL;
	if (a.p->p > 0) {
		a.seed = (uint64_t)(uint32_t)rng[1] << 32 | (uint32_t)rng[0];
		a.step = (uint32_t)rng[2];
		a.part = (uint32_t)rng[3];
	}
	return a;
}

static double dot(const float *a, const float *b, int64_t width)
{
	double sum = 0;
	for (int64_t d = 0; d < width; d++)
		sum += (double)a[d] * (double)b[d];
	return sum;
}

/* t_i - j */
static int64_t distance(const head *a, int64_t i, int64_t j)
{
	return i + a->l.shift - j;
}

/* s_ij = scale · q_i·k_j + bias, -inf where query i does not attend to key j */
static double softmax_attention_score_of(const head *a, int64_t i, int64_t j)
{
	const int64_t t = distance(a, i, j);
	if ((a->mask && !a->mask[j]) || (t < 0 && !a->p->bidirectional) || (a->p->window > 0 && t >= a->p->window))
		return -INFINITY;
	double bias = a->bias ? (double)a->bias[(t - a->p->bias_first) * a->l.heads] : 0;
	return (double)a->p->scale * dot(a->query + i * a->l.q_row, a->key + j * a->l.k_row, a->l.dh) + bias;
}

/* drop(x) = x · drop_of: element (i, j) of this head's matrix of [B, H, N, S] */
static double drop_of(const head *a, int64_t i, int64_t j)
{
	if (a->p->p == 0)
		return 1;
	uint64_t chain = (uint64_t)(a->part * a->l.batch + a->b) * (uint64_t)a->l.heads + (uint64_t)a->n;
	uint64_t row = chain * (uint64_t)a->l.queries + (uint64_t)i;
	uint64_t e = row * (uint64_t)a->l.keys + (uint64_t)j;
	philox_block block = philox(a->seed, a->p->stream, a->step, e / 4);
	return philox_uniform(block.word[e % 4]) >= a->p->p ? 1 / (1 - (double)a->p->p) : 0;
}

/* M_i = log Σ_{j∈W(i)} e^{s_ij}; -inf when W(i) is empty */
static double log_normalizer_of(const head *a, int64_t i)
{
	double top = -INFINITY, sum = 0;
	for (int64_t j = 0; j < a->l.keys; j++)
		top = fmax(top, softmax_attention_score_of(a, i, j));
	for (int64_t j = 0; j < a->l.keys && top > -INFINITY; j++)
		sum += exp(softmax_attention_score_of(a, i, j) - top);
	return top > -INFINITY ? top + log(sum) : top;
}

/* p_ij for M_i: e^{s_ij - M_i}, 0 where i does not attend to j; with `blind`, where it attends to nothing, 1 / S */
static double probability_of(const head *a, int64_t i, int64_t j, double log_normalizer, bool blind)
{
	if (blind)
		return a->p->uniform ? 1 / (double)a->l.keys : 0;
	double score = softmax_attention_score_of(a, i, j);
	return score == -INFINITY ? 0 : exp(score - log_normalizer);
}

/* y_i [w] in double. */
size_t reference_softmax_attention_scratch(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)softmax_layout_of(call).dv * sizeof(double);
}

/* y_i = Σ_j drop(p_ij) v_j */
static void softmax_attention_attend(const head *a, int64_t i, double log_normalizer, bool blind, double *sum, float *y)
{
	for (int64_t d = 0; d < a->l.dv; d++)
		sum[d] = 0;
	for (int64_t j = 0; j < a->l.keys; j++) {
		double p = probability_of(a, i, j, log_normalizer, blind);
		if (p > 0)
			p *= drop_of(a, i, j);
		for (int64_t d = 0; d < a->l.dv && p > 0; d++)
			sum[d] += p * (double)a->value[j * a->l.v_row + d];
	}
	for (int64_t d = 0; d < a->l.dv; d++)
		y[d] = (float)sum[d];
}

/* q, k?, v?, mask?, bias?, rng? -> y, log_normalizer */
status reference_softmax_attention(backend *unused, const op_call *call)
{
	(void)unused;
	float *y = call->out[0].data, *log_normalizer = call->out[1].data;
	const softmax_layout l = softmax_layout_of(call);
	for (int64_t b = 0; b < l.batch; b++) {
		for (int64_t n = 0; n < l.heads; n++) {
			head a = softmax_attention_head_at(call, b, n);
			for (int64_t i = 0; i < l.queries; i++) {
				int64_t at = (b * l.queries + i) * l.heads + n;
				double m = log_normalizer_of(&a, i);
				bool blind = m == -INFINITY;
				if (log_normalizer)
					log_normalizer[at] = (float)(blind && a.p->uniform ? log((double)l.keys) : m);
				if (y)
					softmax_attention_attend(&a, i, m, blind, call->scratch, y + at * l.dv);
			}
		}
	}
	return STATUS_OK;
}

/* dq [N, h] of one head, dk [S, h] and dv [S, w] of one head of keys, dbias [T, H], all in double. */
size_t reference_softmax_attention_grad_scratch(const backend *b, const op_call *call)
{
	(void)b;
	const softmax_layout l = softmax_layout_of(call);
	const int64_t bias = call->in[SOFTMAX_BIAS].data ? shape_count(call->in[SOFTMAX_BIAS].shape) : 0;
	return (size_t)(l.queries * l.dh + l.keys * (l.dh + l.dv) + bias) * sizeof(double);
}

typedef struct sums {
	double *dq, *dk, *dv, *dbias;
} sums;

/* Add the terms of query i to dq_i, dk_j, dv_j and dbias. y, dy, log_normalizer: its rows. D_i = dy_i·y_i, ds_ij = p_ij
 * (drop(dy_i·v_j) - D_i), dq_i += scale ds_ij k_j, dk_j += scale ds_ij q_i, dv_j += drop(p_ij) dy_i, dbias += ds_ij;
 * frozen or nothing attended to: ds = 0 */
static void attend_grad(const head *a, int64_t i, const float *y, const float *dy, float log_normalizer, const sums *s)
{
	const softmax_layout *l = &a->l;
	const double along = dot(dy, y, l->dv), scale = (double)a->p->scale;
	bool blind = true;
	for (int64_t j = 0; j < l->keys && blind; j++)
		blind = softmax_attention_score_of(a, i, j) == -INFINITY;
	for (int64_t j = 0; j < l->keys; j++) {
		const double p = probability_of(a, i, j, (double)log_normalizer, blind);
		if (p == 0)
			continue;
		const double drop = drop_of(a, i, j);
		for (int64_t d = 0; d < l->dv; d++)
			s->dv[j * l->dv + d] += drop * p * (double)dy[d];
		if (a->p->frozen || blind)
			continue;
		double ds = p * (drop * dot(dy, a->value + j * l->v_row, l->dv) - along);
		for (int64_t d = 0; d < l->dh; d++) {
			s->dq[i * l->dh + d] += scale * ds * (double)a->key[j * l->k_row + d];
			s->dk[j * l->dh + d] += scale * ds * (double)a->query[i * l->q_row + d];
		}
		if (a->bias)
			s->dbias[(distance(a, i, j) - a->p->bias_first) * l->heads + a->n] += ds;
	}
}

static void clear(double *sum, int64_t count)
{
	for (int64_t e = 0; e < count; e++)
		sum[e] = 0;
}

/* Row r of `width` sums to `to` + r · row; to NULL: unwanted. */
static void store(const double *sum, int64_t rows, int64_t width, float *to, int64_t row)
{
	for (int64_t e = 0; to && e < rows * width; e++)
		to[e / width * row + e % width] = (float)sum[e];
}

/* Output o from element `offset` on; NULL when it is unwanted. */
static float *output(const op_call *call, int o, int64_t offset)
{
	return call->out[o].data ? (float *)call->out[o].data + offset : NULL;
}

/* q, k?, v?, mask?, bias?, rng?, y, log_normalizer, dy -> dq, dk, dv, dbias */
status reference_softmax_attention_grad(backend *unused, const op_call *call)
{
	(void)unused;
	const float *y = call->in[SOFTMAX_Y].data, *log_normalizer = call->in[SOFTMAX_LOG_NORMALIZER].data;
	const float *dy = call->in[SOFTMAX_DY].data;
	const softmax_layout l = softmax_layout_of(call);
	const int64_t bias = call->in[SOFTMAX_BIAS].data ? shape_count(call->in[SOFTMAX_BIAS].shape) : 0;
	sums s = {.dq = call->scratch};
	s.dk = s.dq + l.queries * l.dh;
	s.dv = s.dk + l.keys * l.dh;
	s.dbias = s.dv + l.keys * l.dv;
	clear(s.dbias, bias);
	for (int64_t c = 0; c < l.batch * l.heads; c++) {
		const int64_t b = c / l.heads, n = c % l.heads, g = n / l.group;
		head a = softmax_attention_head_at(call, b, n);
		clear(s.dq, l.queries * l.dh);
		if (n % l.group == 0)
			clear(s.dk, l.keys * (l.dh + l.dv));
		for (int64_t i = 0; i < l.queries; i++) {
			const int64_t at = (b * l.queries + i) * l.heads + n;
			attend_grad(&a, i, y + at * l.dv, dy + at * l.dv, log_normalizer[at], &s);
		}
		store(s.dq, l.queries, l.dh, output(call, 0, b * l.queries * l.q_row + n * l.dh), l.q_row);
		if ((n + 1) % l.group != 0)
			continue;
		store(s.dk, l.keys, l.dh, output(call, l.k_input, l.k_offset + b * l.keys * l.k_row + g * l.dh),
		      l.k_row);
		store(s.dv, l.keys, l.dv, output(call, l.v_input, l.v_offset + b * l.keys * l.v_row + g * l.dv),
		      l.v_row);
	}
	store(s.dbias, bias, 1, output(call, 3, 0), 1);
	return STATUS_OK;
}
