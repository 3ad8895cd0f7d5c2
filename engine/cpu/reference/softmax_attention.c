/* Causal softmax attention, every probability taken directly. */
#include <math.h>

#include "engine/base/philox.h"
#include "engine/cpu/reference/reference.h"

/* One head of one sequence. qkv, dqkv: row i at i·3D; y, dy: at i·D; log_normalizer: at i·H. */
typedef struct head {
	const float *query, *key, *value;
	const int32_t *mask; /* NULL: nothing is masked */
	int64_t length, window, width /* dh */, stride /* D */, heads, head /* of all sequences' heads */;
	double scale, p;
	bool frozen;
	uint64_t seed;
	uint32_t stream, step;
} head;

static head head_at(const op_call *call, int64_t b, int64_t h)
{
	const softmax_params *p = call->params;
	shape s = call->in[0].shape;
	int64_t length = s.dim[1], stride = s.dim[2] / 3, width = stride / p->heads;
	const float *qkv = (const float *)call->in[0].data + b * length * 3 * stride + h * width;
	const int32_t *mask = call->n_in > 1 ? call->in[1].data : NULL;
	head a = {
	    .query = qkv,
	    .key = qkv + stride,
	    .value = qkv + 2 * stride,
	    .mask = mask ? mask + b * length : NULL,
	    .length = length,
	    .window = p->window <= 0 || p->window > length ? length : p->window,
	    .width = width,
	    .stride = stride,
	    .heads = p->heads,
	    .head = b * p->heads + h,
	    .scale = (double)p->scale,
	    .p = (double)p->p,
	    .frozen = p->frozen,
	    .stream = p->stream,
	};
	if (p->p > 0) {
		const int32_t *rng = call->in[2].data;
		a.seed = (uint64_t)(uint32_t)rng[1] << 32 | (uint32_t)rng[0];
		a.step = (uint32_t)rng[2];
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

/* s_ij = scale · q_i·k_j, -inf for a masked j */
static double score_of(const head *a, int64_t i, int64_t j)
{
	if (a->mask && !a->mask[j])
		return -INFINITY;
	return a->scale * dot(a->query + i * 3 * a->stride, a->key + j * 3 * a->stride, a->width);
}

/* drop(x) = x · drop_of: element (i, j) of this head's matrix of [B, H, N, N] */
static double drop_of(const head *a, int64_t i, int64_t j)
{
	if (a->p == 0)
		return 1;
	uint64_t e = ((uint64_t)a->head * (uint64_t)a->length + (uint64_t)i) * (uint64_t)a->length + (uint64_t)j;
	philox_block block = philox(a->seed, a->stream, a->step, e / 4);
	return (double)philox_uniform(block.word[e % 4]) >= a->p ? 1 / (1 - a->p) : 0;
}

/* W(i) = {max(0, i-k+1) … i} */
static int64_t window_begin(const head *a, int64_t i)
{
	return i < a->window ? 0 : i - a->window + 1;
}

/* M_i = log Σ_{j∈W(i)} e^{s_ij}, -inf when the window is empty */
static double log_normalizer_of(const head *a, int64_t i)
{
	double top = -INFINITY, sum = 0;
	for (int64_t j = window_begin(a, i); j <= i; j++)
		top = fmax(top, score_of(a, i, j));
	if (top == -INFINITY)
		return top;
	for (int64_t j = window_begin(a, i); j <= i; j++)
		sum += exp(score_of(a, i, j) - top);
	return top + log(sum);
}

/* p_ij = e^{s_ij - M_i}, 0 for a masked j */
static double probability_of(const head *a, int64_t i, int64_t j, double log_normalizer)
{
	double score = score_of(a, i, j);
	return score == -INFINITY ? 0 : exp(score - log_normalizer);
}

/* y_i [dh] in double. */
size_t reference_softmax_attention_scratch(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)shape_last(call->in[0].shape) / 3 * sizeof(double);
}

/* y_i = Σ_{j∈W(i)} drop(p_ij) v_j */
static void attend(const head *a, int64_t i, double log_normalizer, double *sum, float *y)
{
	for (int64_t d = 0; d < a->width; d++)
		sum[d] = 0;
	for (int64_t j = window_begin(a, i); j <= i; j++) {
		double p = probability_of(a, i, j, log_normalizer) * drop_of(a, i, j);
		for (int64_t d = 0; d < a->width && p > 0; d++)
			sum[d] += p * (double)a->value[j * 3 * a->stride + d];
	}
	for (int64_t d = 0; d < a->width; d++)
		y[d] = (float)sum[d];
}

/* qkv [B, N, 3D], mask? [B, N], rng? [4] -> y [B, N, D], log_normalizer [B, N, H] */
status reference_softmax_attention(backend *unused, const op_call *call)
{
	(void)unused;
	const softmax_params *p = call->params;
	float *y = call->out[0].data, *log_normalizer = call->out[1].data;
	int64_t batch = call->in[0].shape.dim[0], length = call->in[0].shape.dim[1];
	for (int64_t b = 0; b < batch; b++) {
		for (int64_t h = 0; h < p->heads; h++) {
			head a = head_at(call, b, h);
			for (int64_t i = 0; i < length; i++) {
				int64_t row = b * length + i;
				double m = log_normalizer_of(&a, i);
				if (log_normalizer)
					log_normalizer[row * a.heads + h] = (float)m;
				if (y)
					attend(&a, i, m, call->scratch, y + row * a.stride + h * a.width);
			}
		}
	}
	return STATUS_OK;
}

/* dq, dk, dv [N, dh] of one head in double. */
size_t reference_softmax_attention_grad_scratch(const backend *b, const op_call *call)
{
	(void)b;
	const softmax_params *p = call->params;
	return (size_t)(call->in[0].shape.dim[1] * (call->in[0].shape.dim[2] / p->heads)) * sizeof(double);
}

/* What query i adds to dq_i, dk_j and dv_j (all [N, dh]). y, dy, log_normalizer: its rows.
 *   D_i = dy_i·y_i,  ds_ij = p_ij (drop(dy_i·v_j) - D_i),  dq_i += scale ds_ij k_j,
 *   dk_j += scale ds_ij q_i,  dv_j += drop(p_ij) dy_i;  frozen: ds = 0 */
static void attend_grad(const head *a, int64_t i, const float *y, const float *dy, float log_normalizer, double *dq,
                        double *dk, double *dv)
{
	double along = dot(dy, y, a->width);
	for (int64_t j = window_begin(a, i); j <= i; j++) {
		double p = probability_of(a, i, j, (double)log_normalizer), drop = drop_of(a, i, j);
		if (p == 0)
			continue;
		double ds =
		    a->frozen ? 0 : a->scale * p * (drop * dot(dy, a->value + j * 3 * a->stride, a->width) - along);
		for (int64_t d = 0; d < a->width; d++) {
			dq[i * a->width + d] += ds * (double)a->key[j * 3 * a->stride + d];
			dk[j * a->width + d] += ds * (double)a->query[i * 3 * a->stride + d];
			dv[j * a->width + d] += drop * p * (double)dy[d];
		}
	}
}

/* qkv [B, N, 3D], mask? [B, N], rng? [4], y [B, N, D], log_normalizer [B, N, H], dy [B, N, D] -> dqkv [B, N, 3D] */
status reference_softmax_attention_grad(backend *unused, const op_call *call)
{
	(void)unused;
	const softmax_params *p = call->params;
	const float *y = call->in[3].data, *log_normalizer = call->in[4].data, *dy = call->in[5].data;
	int64_t batch = call->in[0].shape.dim[0], length = call->in[0].shape.dim[1];
	for (int64_t b = 0; b < batch; b++) {
		for (int64_t h = 0; h < p->heads; h++) {
			head a = head_at(call, b, h);
			int64_t count = length * a.width, first = b * length * a.stride + h * a.width;
			double *sum = call->scratch;
			for (int64_t e = 0; e < 3 * count; e++)
				sum[e] = 0;
			for (int64_t i = 0; i < length; i++)
				attend_grad(&a, i, y + first + i * a.stride, dy + first + i * a.stride,
				            log_normalizer[(b * length + i) * a.heads + h], sum, sum + count,
				            sum + 2 * count);
			float *dqkv = (float *)call->out[0].data + b * length * 3 * a.stride + h * a.width;
			for (int64_t e = 0; e < 3 * count; e++) {
				int64_t part = e / count, i = e % count / a.width, d = e % a.width;
				dqkv[(3 * i + part) * a.stride + d] = (float)sum[e];
			}
		}
	}
	return STATUS_OK;
}
