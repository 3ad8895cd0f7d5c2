/* Linear attention, every weight taken directly: O(N · S). */
#include <math.h>

#include "engine/cpu/reference/reference.h"
#include "engine/tensor/ops/linear_attention.h"

/* One head of one sequence. q, y: row i at i·D; k, v: row j at j·D; normalizer: at i·H. */
typedef struct head {
	const float *query, *key, *value;
	const int32_t *mask; /* NULL: nothing is masked */
	int64_t queries, keys, width /* dh */, stride /* D */, heads;
	int64_t row, channel; /* query 0 of the sequence in [B·N], channel 0 of the head in [D] */
	bool causal;
	double eps;
} head;

static head linear_attention_head_at(const op_call *call, int64_t b, int64_t h)
{
	const linear_attention_params *p = call->params;
	const int64_t queries = call->in[0].shape.dim[1], keys = call->in[1].shape.dim[1];
	const int64_t stride = call->in[0].shape.dim[2], width = stride / p->heads;
	const int32_t *mask = call->n_in > 3 ? call->in[3].data : NULL;
	return (head){
	    .query = (const float *)call->in[0].data + b * queries * stride + h * width,
	    .key = (const float *)call->in[1].data + b * keys * stride + h * width,
	    .value = (const float *)call->in[2].data + b * keys * stride + h * width,
	    .mask = mask ? mask + b * keys : NULL,
	    .queries = queries,
	    .keys = keys,
	    .width = width,
	    .stride = stride,
	    .heads = p->heads,
	    .row = b * queries,
	    .channel = h * width,
	    .causal = p->causal,
	    .eps = (double)p->eps,
	};
}

/* φ(x) = elu(x) + 1, and its slope */
static double linear_attention_feature(float x)
{
	return x > 0 ? (double)x + 1 : exp((double)x);
}

static double slope(float x)
{
	return x > 0 ? 1 : exp((double)x);
}

/* True if key j is in W(i). */
static bool is_seen(const head *a, int64_t i, int64_t j)
{
	return (!a->mask || a->mask[j]) && (!a->causal || j <= i);
}

/* w_ij = φ(q_i)·φ(k_j) */
static double weight_of(const head *a, int64_t i, int64_t j)
{
	double sum = 0;
	for (int64_t d = 0; d < a->width; d++)
		sum += linear_attention_feature(a->query[i * a->stride + d]) *
		       linear_attention_feature(a->key[j * a->stride + d]);
	return sum;
}

/* 1 / (normalizer + eps), or 0 where no weight is */
static double inverse_of(const head *a, double normalizer)
{
	return normalizer > 0 ? 1 / (normalizer + a->eps) : 0;
}

/* y_i [dh] in double. */
size_t reference_linear_attention_scratch(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)shape_last(call->in[0].shape) * sizeof(double);
}

/* y_i = Σ_{j∈W(i)} w_ij v_j / (Σ_{j∈W(i)} w_ij + eps); the sum of weights */
static double linear_attention_attend(const head *a, int64_t i, double *sum, float *y)
{
	double normalizer = 0;
	for (int64_t d = 0; d < a->width; d++)
		sum[d] = 0;
	for (int64_t j = 0; j < a->keys; j++) {
		if (!is_seen(a, i, j))
			continue;
		const double w = weight_of(a, i, j);
		normalizer += w;
		for (int64_t d = 0; d < a->width; d++)
			sum[d] += w * (double)a->value[j * a->stride + d];
	}
	for (int64_t d = 0; d < a->width && y; d++)
		y[d] = (float)(sum[d] * inverse_of(a, normalizer));
	return normalizer;
}

/* q [B, N, D], k, v [B, S, D], mask? [B, S] -> y [B, N, D], normalizer [B, N, H] */
status reference_linear_attention(backend *unused, const op_call *call)
{
	(void)unused;
	const linear_attention_params *p = call->params;
	float *y = call->out[0].data, *normalizer = call->out[1].data;
	for (int64_t b = 0; b < call->in[0].shape.dim[0]; b++) {
		for (int64_t h = 0; h < p->heads; h++) {
			const head a = linear_attention_head_at(call, b, h);
			for (int64_t i = 0; i < a.queries; i++) {
				const int64_t row = a.row + i;
				const double sum = linear_attention_attend(&a, i, call->scratch,
				                                           y ? y + row * a.stride + a.channel : NULL);
				if (normalizer)
					normalizer[row * a.heads + h] = (float)sum;
			}
		}
	}
	return STATUS_OK;
}

/* dφ(q) [dh] of a query, dφ(k) and dv [S, dh] of one head in double. */
size_t reference_linear_attention_grad_scratch(const backend *b, const op_call *call)
{
	(void)b;
	const linear_attention_params *p = call->params;
	const int64_t width = call->in[0].shape.dim[2] / p->heads;
	return (size_t)((2 * call->in[1].shape.dim[1] + 1) * width) * sizeof(double);
}

/* Compute dφ(q_i) of query i, and add its terms to dφ(k_j) and dv_j. y, dy: its row. Z = 1 / (normalizer + eps), c = -Z
 * dy·y, t_j = Z dy·v_j + c dφ(q_i) = Σ_j t_j φ(k_j), dφ(k_j) += t_j φ(q_i), dv_j += w_ij Z dy */
static void attend_grad(const head *a, int64_t i, const float *y, const float *dy, double inverse, double *dq,
                        double *dk, double *dv)
{
	double along = 0;
	for (int64_t d = 0; d < a->width; d++) {
		along -= inverse * (double)dy[d] * (double)y[d];
		dq[d] = 0;
	}
	for (int64_t j = 0; j < a->keys; j++) {
		if (!is_seen(a, i, j))
			continue;
		const double w = weight_of(a, i, j);
		double t = along;
		for (int64_t d = 0; d < a->width; d++)
			t += inverse * (double)dy[d] * (double)a->value[j * a->stride + d];
		for (int64_t d = 0; d < a->width; d++) {
			dq[d] += t * linear_attention_feature(a->key[j * a->stride + d]);
			dk[j * a->width + d] += t * linear_attention_feature(a->query[i * a->stride + d]);
			dv[j * a->width + d] += w * inverse * (double)dy[d];
		}
	}
}

static void head_grad(const op_call *call, const head *a, double *scratch)
{
	const float *y = call->in[4].data, *normalizer = call->in[5].data, *dy = call->in[6].data;
	float *dq = call->out[0].data, *dk = call->out[1].data, *dv = call->out[2].data;
	const int64_t key_row = a->key - (const float *)call->in[1].data; /* with the channel in it */
	double *dquery = scratch, *dkey = dquery + a->width, *dvalue = dkey + a->keys * a->width;
	for (int64_t e = 0; e < 2 * a->keys * a->width; e++)
		dkey[e] = 0;
	for (int64_t i = 0; i < a->queries; i++) {
		const int64_t at = (a->row + i) * a->stride + a->channel;
		const double normal = (double)normalizer[(a->row + i) * a->heads + a->channel / a->width];
		attend_grad(a, i, y + at, dy + at, inverse_of(a, normal), dquery, dkey, dvalue);
		for (int64_t d = 0; d < a->width && dq; d++)
			dq[at + d] = (float)(dquery[d] * slope(a->query[i * a->stride + d]));
	}
	for (int64_t e = 0; e < a->keys * a->width; e++) {
		const int64_t j = e / a->width, at = j * a->stride + e % a->width;
		const bool present = !a->mask || a->mask[j];
		if (dk)
			dk[key_row + at] = present ? (float)(dkey[e] * slope(a->key[at])) : 0;
		if (dv)
			dv[key_row + at] = (float)dvalue[e];
	}
}

/* q, k, v, mask?, y, normalizer, dy -> dq [B, N, D], dk, dv [B, S, D] */
status reference_linear_attention_grad(backend *unused, const op_call *call)
{
	(void)unused;
	const linear_attention_params *p = call->params;
	for (int64_t b = 0; b < call->in[0].shape.dim[0]; b++) {
		for (int64_t h = 0; h < p->heads; h++) {
			const head a = linear_attention_head_at(call, b, h);
			head_grad(call, &a, call->scratch);
		}
	}
	return STATUS_OK;
}

/* q, before [slots, floats], slot, position [B], y, normalizer, dy -> [B, N, D]: with the state S, z of the slot
 *   Z = 1 / (normalizer + eps),  dq = φ'(q) ⊙ (Z S dy - Z (dy·y) z), 0 at position 0 */
status reference_linear_stream_grad(backend *b, const op_call *call)
{
	(void)b;
	const linear_stream_params *p = call->params;
	const shape s = call->in[0].shape;
	const int64_t width = s.dim[2] / p->heads;
	const float *q = call->in[0].data, *before = call->in[1].data, *y = call->in[4].data,
	            *normalizer = call->in[5].data, *dy = call->in[6].data;
	const int32_t *slot = call->in[2].data, *position = call->in[3].data;
	float *dq = call->out[0].data;
	for (int64_t i = 0; i < s.dim[0] * s.dim[1] * p->heads; i++) {
		const int64_t sequence = i / p->heads / s.dim[1], h = i % p->heads, at = i * width;
		const float *state = before + slot[sequence] * call->in[1].shape.dim[1] + p->offset;
		const float *sums = state + linear_sums(width, h), *z = state + linear_normals(width, h);
		const double normal = (double)normalizer[i];
		const double inverse = normal == 0 || position[sequence] == 0 ? 0 : 1 / (normal + (double)p->eps);
		double along = 0;
		for (int64_t d = 0; d < width; d++)
			along += (double)dy[at + d] * (double)y[at + d];
		for (int64_t d = 0; d < width; d++) {
			double sum = 0;
			for (int64_t m = 0; m < width && inverse != 0; m++)
				sum += (double)sums[d * width + m] * (double)dy[at + m];
			sum -= inverse != 0 ? along * (double)z[d] : 0;
			dq[at + d] = (float)(inverse * sum * slope(q[at + d]));
		}
	}
	return STATUS_OK;
}
