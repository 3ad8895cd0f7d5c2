/* Dilated attention, every probability taken directly. */
#include <math.h>

#include "engine/cpu/reference/reference.h"
#include "engine/tensor/ops/dilated.h"

/* One head of one sequence; its row of token t is t · stride further on. */
typedef struct head {
	const dilated_params *p;
	const float *query, *key, *value;
	const int32_t *mask; /* NULL: nothing is masked */
	int64_t batch, length, width /* dh */, stride /* D */, sequence, head;
} head;

static head dilated_attention_head_at(const op_call *call, int64_t b, int64_t h)
{
	const dilated_params *p = call->params;
	const shape s = call->in[0].shape;
	const int32_t *mask = call->n_in > 3 ? call->in[3].data : NULL;
	const int64_t width = s.dim[2] / p->heads, first = b * s.dim[1] * s.dim[2] + h * width;
	return (head){.p = p,
	              .query = (const float *)call->in[0].data + first,
	              .key = (const float *)call->in[1].data + first,
	              .value = (const float *)call->in[2].data + first,
	              .mask = mask ? mask + b * s.dim[1] : NULL,
	              .batch = s.dim[0],
	              .length = s.dim[1],
	              .width = width,
	              .stride = s.dim[2],
	              .sequence = b,
	              .head = h};
}

/* Keys of token t in branch i: tokens first, first + step, … before end, and `zeros` keys of zeros. */
typedef struct keys {
	int64_t first, step, end;
	double zeros;
} keys;

static keys keys_of(const head *a, int64_t i, int64_t t)
{
	const dilated_pattern *p = &a->p->pattern;
	const int64_t w = p->segment[i] < a->length ? p->segment[i] : a->length, r = p->dilation[i];
	const int64_t start = t / w * w, first = dilated_first(p, i, a->p->heads, a->head);
	if ((t - start) % r != first)
		return (keys){.step = 1};
	keys k = {.first = start + first, .step = r, .end = start + w < a->length ? start + w : a->length};
	if (a->p->causal)
		k.end = t + 1;
	else if (a->p->zero_keys) /* every residue occurs ⌈w / r⌉ times in w filled up */
		k.zeros = (double)((w + r - 1) / r - dilated_kept(k.end - start, first, r));
	return k;
}

static double dot(const float *a, const float *b, int64_t width)
{
	double sum = 0;
	for (int64_t d = 0; d < width; d++)
		sum += (double)a[d] * (double)b[d];
	return sum;
}

/* s_tj = scale · q_t·k_j, -inf for a masked j */
static double dilated_attention_score_of(const head *a, int64_t t, int64_t j)
{
	if (a->mask && !a->mask[j])
		return -INFINITY;
	return (double)a->p->scale * dot(a->query + t * a->stride, a->key + j * a->stride, a->width);
}

/* L_i(t) = log(Σ_j e^{s_tj} + z_i(t)), -inf without a key */
static double log_normalizer_of(const head *a, int64_t i, int64_t t)
{
	const keys k = keys_of(a, i, t);
	double top = k.zeros > 0 ? 0 : -INFINITY, sum = 0;
	for (int64_t j = k.first; j < k.end; j += k.step)
		top = fmax(top, dilated_attention_score_of(a, t, j));
	if (top == -INFINITY)
		return top;
	for (int64_t j = k.first; j < k.end; j += k.step)
		sum += exp(dilated_attention_score_of(a, t, j) - top);
	return top + log(sum + k.zeros * exp(-top));
}

/* c = e^{x_i} / Σ_l e^{x_l}; all -inf: zeros */
static void softmax(const double *x, int64_t n, double *c)
{
	double top = -INFINITY, sum = 0;
	for (int64_t i = 0; i < n; i++)
		top = fmax(top, x[i]);
	for (int64_t i = 0; i < n; i++)
		sum += c[i] = top == -INFINITY ? 0 : exp(x[i] - top);
	for (int64_t i = 0; i < n && sum > 0; i++)
		c[i] /= sum;
}

/* c_i(t), from the log-normalizers of t or the mixture (NULL: none) */
static void weights_of(const head *a, const double *log_normalizer, const float *mixture, double *c)
{
	double x[DILATED_MAX_BRANCHES];
	for (int64_t i = 0; i < a->p->pattern.branches; i++)
		x[i] = mixture ? (double)mixture[i] : log_normalizer[i];
	softmax(x, a->p->pattern.branches, c);
}

/* Index of element (i, b, t, h) of [branches, B, N, H]. */
static int64_t normalizer_at(const head *a, int64_t i, int64_t t)
{
	return ((i * a->batch + a->sequence) * a->length + t) * a->p->heads + a->head;
}

/* y_t = Σ_i c_i Σ_j e^{s_tj - L_i} v_j; sum [dh] is scratch */
static void dilated_attention_attend(const head *a, int64_t t, const double *l, const double *c, double *sum, float *y)
{
	for (int64_t d = 0; d < a->width; d++)
		sum[d] = 0;
	for (int64_t i = 0; i < a->p->pattern.branches; i++) {
		const keys k = keys_of(a, i, t);
		for (int64_t j = k.first; j < k.end && l[i] > -INFINITY; j += k.step) {
			const double p = c[i] * exp(dilated_attention_score_of(a, t, j) - l[i]);
			for (int64_t d = 0; d < a->width && p > 0; d++)
				sum[d] += p * (double)a->value[j * a->stride + d];
		}
	}
	for (int64_t d = 0; d < a->width; d++)
		y[d] = (float)sum[d];
}

/* y_t [dh] in double. */
size_t reference_dilated_attention_scratch(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)shape_last(call->in[0].shape) * sizeof(double);
}

/* q, k, v [B, N, D], mask? [B, N], mixture? [branches] -> y [B, N, D], log_normalizer [branches, B, N, H] */
status reference_dilated_attention(backend *unused, const op_call *call)
{
	(void)unused;
	const dilated_params *p = call->params;
	const shape s = call->in[0].shape;
	const float *mixture = call->n_in > 4 ? call->in[4].data : NULL;
	float *y = call->out[0].data, *log_normalizer = call->out[1].data;
	double l[DILATED_MAX_BRANCHES], c[DILATED_MAX_BRANCHES];
	for (int64_t row = 0; row < s.dim[0] * s.dim[1] * p->heads; row++) {
		const int64_t h = row % p->heads, t = row / p->heads % s.dim[1], b = row / p->heads / s.dim[1];
		const head a = dilated_attention_head_at(call, b, h);
		for (int64_t i = 0; i < p->pattern.branches; i++) {
			l[i] = log_normalizer_of(&a, i, t);
			if (log_normalizer)
				log_normalizer[normalizer_at(&a, i, t)] = (float)l[i];
		}
		weights_of(&a, l, mixture, c);
		if (y)
			dilated_attention_attend(&a, t, l, c, call->scratch,
			                         y + (b * s.dim[1] + t) * s.dim[2] + h * a.width);
	}
	return STATUS_OK;
}

/* dq, dk, dv [N, dh] of one head in double. */
size_t reference_dilated_attention_grad_scratch(const backend *b, const op_call *call)
{
	(void)b;
	const dilated_params *p = call->params;
	return (size_t)(3 * call->in[0].shape.dim[1] * (call->in[0].shape.dim[2] / p->heads)) * sizeof(double);
}

/* Add the terms of query t in branch i to dq_t, dk_j and dv_j (all [N, dh]); return dy_t·o_i(t). y, dy: its rows. P_tj
 * = c e^{s_tj - l}, ds_tj = P_tj (dy·v_j - D), dq_t += scale ds_tj k_j, dk_j += scale ds_tj q_t, dv_j += P_tj dy; D =
 * dy·y with the exact gradient of c, otherwise dy·o_i(t) */
static double attend_grad(const head *a, int64_t i, int64_t t, double l, double c, bool exact, const float *y,
                          const float *dy, double *dq, double *dk, double *dv)
{
	const keys k = keys_of(a, i, t);
	double own = 0;
	if (l == -INFINITY)
		return 0;
	for (int64_t j = k.first; j < k.end; j += k.step)
		if (dilated_attention_score_of(a, t, j) > -INFINITY)
			own +=
			    exp(dilated_attention_score_of(a, t, j) - l) * dot(dy, a->value + j * a->stride, a->width);
	const double along = exact ? dot(dy, y, a->width) : own;
	for (int64_t j = k.first; j < k.end; j += k.step) {
		const double p = c * exp(dilated_attention_score_of(a, t, j) - l);
		if (p == 0)
			continue;
		const double ds = (double)a->p->scale * p * (dot(dy, a->value + j * a->stride, a->width) - along);
		for (int64_t d = 0; d < a->width; d++) {
			dq[t * a->width + d] += ds * (double)a->key[j * a->stride + d];
			dk[j * a->width + d] += ds * (double)a->query[t * a->stride + d];
			dv[j * a->width + d] += p * (double)dy[d];
		}
	}
	return own;
}

/* One head: dq, dk, dv [3, N, dh], and to own[i] Σ_t dy_t·o_i(t). */
static void head_grad(const op_call *call, const head *a, double *sum, double *own)
{
	const int64_t branches = a->p->pattern.branches, count = a->length * a->width;
	const int64_t first = a->sequence * a->length * a->stride + a->head * a->width;
	const float *mixture = call->in[4].data, *log_normalizer = call->in[6].data;
	const float *y = (const float *)call->in[5].data + first, *dy = (const float *)call->in[7].data + first;
	double l[DILATED_MAX_BRANCHES], c[DILATED_MAX_BRANCHES];
	for (int64_t e = 0; e < 3 * count; e++)
		sum[e] = 0;
	for (int64_t t = 0; t < a->length; t++) {
		for (int64_t i = 0; i < branches; i++)
			l[i] = (double)log_normalizer[normalizer_at(a, i, t)];
		weights_of(a, l, mixture, c);
		for (int64_t i = 0; i < branches; i++)
			own[i] += attend_grad(a, i, t, l[i], c[i], !mixture && !a->p->detach_weights, y + t * a->stride,
			                      dy + t * a->stride, sum, sum + count, sum + 2 * count);
	}
}

/* q, k, v [B, N, D], mask? [B, N], mixture? [branches], y [B, N, D], log_normalizer [branches, B, N, H], dy [B, N, D]
 *   -> dq, dk, dv [B, N, D], dmixture [branches]:  c_i (a_i - Σ_l c_l a_l),  a_i = Σ_t dy_t·o_i(t) */
status reference_dilated_attention_grad(backend *unused, const op_call *call)
{
	(void)unused;
	const dilated_params *p = call->params;
	const shape s = call->in[0].shape;
	double own[DILATED_MAX_BRANCHES] = {0}, c[DILATED_MAX_BRANCHES], mean = 0;
	for (int64_t row = 0; row < s.dim[0] * p->heads; row++) {
		const head a = dilated_attention_head_at(call, row / p->heads, row % p->heads);
		const int64_t count = a.length * a.width;
		const double *sum = call->scratch;
		head_grad(call, &a, call->scratch, own);
		for (int64_t e = 0; e < 3 * count; e++) {
			float *out = call->out[e / count].data;
			if (out)
				out[(a.sequence * a.length + e % count / a.width) * a.stride + a.head * a.width +
				    e % a.width] = (float)sum[e];
		}
	}
	float *dmixture = call->out[3].data;
	if (!call->in[4].data || !dmixture)
		return STATUS_OK;
	weights_of(&(head){.p = p}, own, call->in[4].data, c); /* for the mixture alone */
	for (int64_t i = 0; i < p->pattern.branches; i++)
		mean += c[i] * own[i];
	for (int64_t i = 0; i < p->pattern.branches; i++)
		dmixture[i] = (float)(c[i] * (own[i] - mean));
	return STATUS_OK;
}
