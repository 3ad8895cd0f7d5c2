/* Attention with its matrix in memory, each sum taken directly. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/reference/reference.h"

/* Heads that read one head of keys. */
static int64_t group_of(const attention_matrix_params *p)
{
	return p->kv_heads > 0 ? p->heads / p->kv_heads : 1;
}

/* q [B, N, H·h], k [B, S, G·h] -> x [B, H, N, S]: x_ij = scale · q_i·k_j */
status reference_attention_scores(backend *unused, const op_call *call)
{
	(void)unused;
	const attention_matrix_params *p = call->params;
	const shape k = call->in[1].shape, whole = call->out[0].shape;
	const int64_t n = whole.dim[2], s = whole.dim[3], d_q = shape_last(call->in[0].shape);
	const int64_t width = d_q / p->heads, group = group_of(p);
	float *x = call->out[0].data;
	for (int64_t row = 0; row < shape_rows(whole); row++) {
		const int64_t b = row / n / p->heads, head = row / n % p->heads, i = row % n;
		const float *query = (const float *)call->in[0].data + (b * n + i) * d_q + head * width;
		for (int64_t j = 0; j < s; j++) {
			const float *key =
			    (const float *)call->in[1].data + (b * s + j) * k.dim[2] + head / group * width;
			double sum = 0;
			for (int64_t d = 0; d < width; d++)
				sum += (double)query[d] * (double)key[d];
			x[row * s + j] = (float)((double)p->scale * sum);
		}
	}
	return STATUS_OK;
}

/* x [B, H, N, S], v [B, S, G·w] -> y [B, N, H·w]: y_i = scale Σ_j x_ij v_j */
status reference_attention_apply(backend *unused, const op_call *call)
{
	(void)unused;
	const attention_matrix_params *p = call->params;
	const shape y = call->out[0].shape, v = call->in[1].shape;
	const int64_t n = y.dim[1], s = v.dim[1], width = y.dim[2] / p->heads, group = group_of(p);
	for (int64_t e = 0; e < shape_count(y); e++) {
		const int64_t b = e / y.dim[2] / n, i = e / y.dim[2] % n, head = e % y.dim[2] / width, d = e % width;
		const float *row = (const float *)call->in[0].data + ((b * p->heads + head) * n + i) * s;
		const float *from = (const float *)call->in[1].data + b * s * v.dim[2] + head / group * width + d;
		double sum = 0;
		for (int64_t j = 0; j < s; j++)
			sum += (double)row[j] * (double)from[j * v.dim[2]];
		((float *)call->out[0].data)[e] = (float)((double)p->scale * sum);
	}
	return STATUS_OK;
}

/* x [B, H, N, S], y [B, N, H·w] -> z [B, S, G·w]: z_j = scale Σ_{n of the group} Σ_i x_nij y_ni */
status reference_attention_apply_transposed(backend *unused, const op_call *call)
{
	(void)unused;
	const attention_matrix_params *p = call->params;
	const shape y = call->in[1].shape, z = call->out[0].shape;
	const int64_t n = z.dim[0] ? shape_rows(y) / z.dim[0] : 0, s = z.dim[1], d_y = shape_last(y);
	const int64_t width = d_y / p->heads, group = group_of(p);
	for (int64_t e = 0; e < shape_count(z); e++) {
		const int64_t b = e / z.dim[2] / s, j = e / z.dim[2] % s, first = e % z.dim[2] / width * group;
		double sum = 0;
		for (int64_t head = first; head < first + group; head++) {
			const float *from = (const float *)call->in[0].data + (b * p->heads + head) * n * s + j;
			const float *row = (const float *)call->in[1].data + b * n * d_y + head * width + e % width;
			for (int64_t i = 0; i < n; i++)
				sum += (double)from[i * s] * (double)row[i * d_y];
		}
		((float *)call->out[0].data)[e] = (float)((double)p->scale * sum);
	}
	return STATUS_OK;
}

/* --- weights ---------------------------------------------------------------------------------------------------- */

static int descending(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;
	return (x < y) - (x > y);
}

/* Element (b, head, i, j) of visible, whose leading dimensions may be missing. */
static bool is_visible(const op_call *call, int64_t b, int64_t head, int64_t i, int64_t j)
{
	const int32_t *visible = call->n_in > 2 ? call->in[2].data : NULL;
	if (!visible)
		return true;
	const shape s = call->in[0].shape;
	const int rank = call->in[2].shape.rank;
	const int64_t matrix = rank == 2 ? 0 : rank == 3 ? head : b * s.dim[1] + head;
	return visible[(matrix * s.dim[2] + i) * s.dim[3] + j] != 0;
}

/* a_ij, -inf if the key is hidden, before top_k. */
static double attention_matrix_score_of(const op_call *call, int64_t b, int64_t head, int64_t i, int64_t j)
{
	const attention_weights_params *p = call->params;
	const shape s = call->in[0].shape;
	const int32_t *mask = call->n_in > 1 ? call->in[1].data : NULL;
	const float *bias = call->n_in > 3 ? call->in[3].data : NULL;
	const int64_t distance = i + s.dim[3] - s.dim[2] - j;
	if ((mask && !mask[b * s.dim[3] + j]) || !is_visible(call, b, head, i, j) ||
	    (!p->bidirectional && distance < 0) || (p->window > 0 && distance >= p->window))
		return -INFINITY;
	const float *scores = call->in[0].data;
	const double a = (double)scores[((b * s.dim[1] + head) * s.dim[2] + i) * s.dim[3] + j];
	return bias ? a + (double)bias[(distance - p->bias_first) * s.dim[1] + head] : a;
}

/* a_ij of a row, and them sorted. */
size_t reference_attention_weights_scratch(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)(2 * call->in[0].shape.dim[3]) * sizeof(double);
}

/* scores [B, H, N, S], mask? [B, S], visible? […, N, S], bias? [T, H] -> weights [B, H, N, S], log_normalizer [B, H, N]
 */
status reference_attention_weights(backend *unused, const op_call *call)
{
	(void)unused;
	const attention_weights_params *p = call->params;
	const shape s = call->in[0].shape;
	const int64_t keys = s.dim[3];
	double *a = call->scratch, *sorted = keys ? a + keys : a;
	float *weights = call->out[0].data, *log_normalizer = call->out[1].data;
	for (int64_t row = 0; row < s.dim[0] * s.dim[1] * s.dim[2]; row++) {
		double top = -INFINITY, sum = 0;
		for (int64_t j = 0; j < keys; j++) {
			a[j] = attention_matrix_score_of(call, row / s.dim[2] / s.dim[1], row / s.dim[2] % s.dim[1],
			                                 row % s.dim[2], j);
			top = fmax(top, a[j]);
		}
		if (p->top_k > 0 && p->top_k < keys) {
			memcpy(sorted, a, (size_t)keys * sizeof *a);
			qsort(sorted, (size_t)keys, sizeof *sorted, descending);
			for (int64_t j = 0; j < keys; j++)
				a[j] = a[j] < sorted[p->top_k - 1] ? -INFINITY : a[j];
		}
		for (int64_t j = 0; j < keys && top > -INFINITY; j++)
			sum += exp(a[j] - top);
		for (int64_t j = 0; j < keys && weights; j++) {
			const double nothing = p->uniform ? 1.0 / (double)keys : 0;
			weights[row * keys + j] = (float)(top > -INFINITY ? exp(a[j] - top) / sum : nothing);
		}
		if (log_normalizer)
			log_normalizer[row] = (float)(top > -INFINITY ? top + log(sum) : -INFINITY);
	}
	return STATUS_OK;
}

/* dbias in double. */
size_t reference_attention_weights_grad_scratch(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)shape_count(call->out[1].shape) * sizeof(double);
}

/* weights, dweights [B, H, N, S], log_normalizer? [B, H, N], bias? [T, H] -> dscores [B, H, N, S], dbias [T, H]:
 * dscores_ij = weights_ij (dweights_ij - Σ_k weights_ik dweights_ik), dbias[t][h] = Σ dscores at h and distance */
status reference_attention_weights_grad(backend *unused, const op_call *call)
{
	(void)unused;
	const attention_weights_params *p = call->params;
	const shape s = call->in[0].shape;
	const int64_t keys = s.dim[3], heads = s.dim[1];
	const float *log_normalizer = call->n_in > 2 ? call->in[2].data : NULL;
	float *dscores = call->out[0].data, *dbias = call->out[1].data;
	double *sums = call->scratch;
	const int64_t rows = call->out[1].shape.dim[0], count = rows * heads;
	for (int64_t e = 0; e < count; e++)
		sums[e] = 0;
	for (int64_t row = 0; row < s.dim[0] * heads * s.dim[2]; row++) {
		const float *w = (const float *)call->in[0].data + row * keys;
		const float *dw = (const float *)call->in[1].data + row * keys;
		const bool sees = !log_normalizer || log_normalizer[row] > -INFINITY;
		double along = 0;
		for (int64_t j = 0; j < keys; j++)
			along += (double)w[j] * (double)dw[j];
		for (int64_t j = 0; j < keys; j++) {
			const double ds = sees ? (double)w[j] * ((double)dw[j] - along) : 0;
			const int64_t at = row % s.dim[2] + keys - s.dim[2] - j - p->bias_first;
			if (dscores)
				dscores[row * keys + j] = (float)ds;
			if (at >= 0 && at < rows) /* a hidden key has no gradient, and may have no row */
				sums[at * heads + row / s.dim[2] % heads] += ds;
		}
	}
	for (int64_t e = 0; e < count && dbias; e++)
		dbias[e] = (float)sums[e];
	return STATUS_OK;
}

/* --- mix_heads ---------------------------------------------------------------------------------------------------- */

/* x [B, H, N, S], p [F, H] -> y [B, F, N, S]: y[b, f, ·] = Σ_h p[f][h] x[b, h, ·]; transposed: with f and h
 * exchanged */
status reference_mix_heads(backend *unused, const op_call *call)
{
	(void)unused;
	const bool transposed = ((const mix_heads_params *)call->params)->transposed;
	const shape y = call->out[0].shape;
	const int64_t each = y.dim[2] * y.dim[3], across = call->in[1].shape.dim[1];
	const int64_t heads = call->in[1].shape.dim[transposed ? 0 : 1];
	const float *p = call->in[1].data;
	for (int64_t e = 0; e < shape_count(y); e++) {
		const int64_t b = e / each / y.dim[1], to = e / each % y.dim[1];
		double sum = 0;
		for (int64_t from = 0; from < heads; from++) {
			const float factor = transposed ? p[from * across + to] : p[to * across + from];
			sum += (double)factor *
			       (double)((const float *)call->in[0].data)[(b * heads + from) * each + e % each];
		}
		((float *)call->out[0].data)[e] = (float)sum;
	}
	return STATUS_OK;
}

/* x [B, H, N, S], dy [B, F, N, S] -> dp [F, H]: dp[f][h] = Σ_b Σ_ij dy[b, f, i, j] x[b, h, i, j] */
status reference_mix_heads_grad(backend *unused, const op_call *call)
{
	(void)unused;
	const shape p = call->out[0].shape, x = call->in[call->in[0].shape.rank == 4 ? 0 : 1].shape;
	const int64_t each = x.dim[2] * x.dim[3];
	for (int64_t e = 0; e < shape_count(p); e++) {
		const int64_t f = e / p.dim[1], h = e % p.dim[1];
		double sum = 0;
		for (int64_t b = 0; b < x.dim[0]; b++) {
			const float *to = (const float *)call->in[1].data + (b * p.dim[0] + f) * each;
			const float *from = (const float *)call->in[0].data + (b * p.dim[1] + h) * each;
			for (int64_t i = 0; i < each; i++)
				sum += (double)to[i] * (double)from[i];
		}
		((float *)call->out[0].data)[e] = (float)sum;
	}
	return STATUS_OK;
}
