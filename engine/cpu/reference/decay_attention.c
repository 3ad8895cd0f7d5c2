/* The table of biases of attention that decays with distance, and its first key and sink. */
#include "engine/tensor/ops/decay.h"

#include <math.h>

#include "engine/cpu/reference/reference.h"

/* -> [count, heads] */
status reference_decay_biases(backend *unused, const op_call *call)
{
	(void)unused;
	const decay_biases_params *p = call->params;
	float *to = call->out[0].data;
	for (int64_t e = 0; e < p->count * p->heads; e++)
		to[e] = decay_table_bias(p->slope, p->hyper, p->first + e / p->heads);
	return STATUS_OK;
}

/* One head of one row. */
typedef struct head {
	const float *query, *first_k, *first_v;
	int64_t key_width, value_width; /* Q / H, T / H */
	int64_t key, value, at;         /* offset of its channels in q and in u; index in log_normalizer */
	double score;                   /* for the first key */
} head;

static head decay_attention_head_at(const op_call *call, int positions, int64_t at)
{
	const decay_params *p = call->params;
	const shape q = call->in[DECAY_Q].shape;
	const int32_t *position = positions < call->n_in ? call->in[positions].data : NULL;
	const int64_t row = at / p->heads, h = at % p->heads;
	head a = {
	    .key_width = q.dim[2] / p->heads, .value_width = shape_last(call->in[DECAY_Y].shape) / p->heads, .at = at};
	a.key = at * a.key_width;
	a.value = at * a.value_width;
	a.query = (const float *)call->in[DECAY_Q].data + a.key;
	a.first_k = (const float *)call->in[DECAY_FIRST_K].data + h * a.key_width;
	a.first_v = (const float *)call->in[DECAY_FIRST_V].data + h * a.value_width;
	for (int64_t d = 0; d < a.key_width; d++)
		a.score += (double)a.query[d] * (double)a.first_k[d];
	const int64_t distance = (position ? position[row] : row % q.dim[1]) + 1;
	a.score = a.score * (double)decay_scale(p->scale) + (double)decay_bias(p->slope, p->hyper, distance);
	return a;
}

static int64_t head_count(const op_call *call)
{
	return shape_rows(call->in[DECAY_Q].shape) * ((const decay_params *)call->params)->heads;
}

/* q [B, N, Q], first_k [Q], first_v [T], y [B, N, T], M [B, N, H], positions? -> u [B, N, T], L [B, N, H]:
 *   L = ln(1 + e^s + e^M),  u = e^{M - L} y + e^{s - L} first_v */
status reference_decay_merge(backend *unused, const op_call *call)
{
	(void)unused;
	const float *y = call->in[DECAY_Y].data, *m = call->in[DECAY_LOG_NORMALIZER].data;
	float *u = call->out[0].data, *log_normalizer = call->out[1].data;
	for (int64_t i = 0; i < head_count(call); i++) {
		const head a = decay_attention_head_at(call, DECAY_POSITIONS, i);
		const double before = (double)m[i], top = fmax(0, fmax(a.score, before));
		const double l = top + log(exp(-top) + exp(a.score - top) + exp(before - top));
		for (int64_t d = 0; d < a.value_width && u; d++)
			u[a.value + d] =
			    (float)(exp(before - l) * (double)y[a.value + d] + exp(a.score - l) * (double)a.first_v[d]);
		if (log_normalizer)
			log_normalizer[i] = (float)l;
	}
	return STATUS_OK;
}

size_t reference_decay_merge_grad_scratch(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)(shape_last(call->in[DECAY_Q].shape) + shape_last(call->in[DECAY_Y].shape)) * sizeof(double);
}

/* q, first_k, first_v, u, L, du, positions? -> dq [B, N, Q], dfirst_k [Q], dfirst_v [T]:
 *   P = e^{s - L},  ds = P (du·first_v - du·u)
 *   dq = scale ds first_k,  dfirst_k = scale Σ ds q,  dfirst_v = Σ P du */
status reference_decay_merge_grad(backend *unused, const op_call *call)
{
	(void)unused;
	const decay_params *p = call->params;
	const float *u = call->in[DECAY_Y].data, *l = call->in[DECAY_LOG_NORMALIZER].data,
	            *du = call->in[DECAY_DU].data;
	float *dq = call->out[0].data, *out_k = call->out[1].data, *out_v = call->out[2].data;
	const int64_t keys = shape_last(call->in[DECAY_Q].shape), values = shape_last(call->in[DECAY_Y].shape);
	const double scale = (double)decay_scale(p->scale);
	double *dk = call->scratch, *dv = dk + keys;
	for (int64_t d = 0; d < keys + values; d++)
		dk[d] = 0;
	for (int64_t i = 0; i < head_count(call); i++) {
		const head a = decay_attention_head_at(call, DECAY_GRAD_POSITIONS, i);
		const int64_t h = i % p->heads;
		const double weight = exp(a.score - (double)l[i]);
		double ds = 0;
		for (int64_t d = 0; d < a.value_width; d++) {
			ds += weight * (double)du[a.value + d] * ((double)a.first_v[d] - (double)u[a.value + d]);
			dv[h * a.value_width + d] += weight * (double)du[a.value + d];
		}
		for (int64_t d = 0; d < a.key_width; d++) {
			dk[h * a.key_width + d] += scale * ds * (double)a.query[d];
			if (dq)
				dq[a.key + d] = (float)(scale * ds * (double)a.first_k[d]);
		}
	}
	for (int64_t d = 0; d < keys && out_k; d++)
		out_k[d] = (float)dk[d];
	for (int64_t d = 0; d < values && out_v; d++)
		out_v[d] = (float)dv[d];
	return STATUS_OK;
}
