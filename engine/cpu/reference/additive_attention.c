/* The windowed sums, taken directly: O(N·window) and obviously right. */
#include <math.h>

#include "engine/cpu/reference/reference.h"

/* One head of one sequence. x, g, dg, dx: row i at i·D; score, log_normalizer: at i·H. */
typedef struct head {
	const float *x, *w;
	const int32_t *mask; /* NULL: nothing is masked */
	int64_t length, window, width /* dh */, stride /* D */, heads;
} head;

static head additive_attention_head_at(const op_call *call, int64_t b, int64_t h)
{
	const additive_attention_params *p = call->params;
	shape x = call->in[0].shape;
	int64_t length = x.dim[1], stride = x.dim[2], width = stride / p->heads;
	const int32_t *mask = call->n_in > 2 ? call->in[2].data : NULL;
	return (head){
	    .x = (const float *)call->in[0].data + b * length * stride + h * width,
	    .w = (const float *)call->in[1].data + h * width,
	    .mask = mask ? mask + b * length : NULL,
	    .length = length,
	    .window = p->window <= 0 || p->window > length ? length : p->window,
	    .width = width,
	    .stride = stride,
	    .heads = p->heads,
	};
}

static bool is_masked(const head *a, int64_t j)
{
	return a->mask && !a->mask[j];
}

/* a_j = w·x_j / √dh */
static double additive_attention_score_of(const head *a, int64_t j)
{
	double sum = 0;
	for (int64_t d = 0; d < a->width; d++)
		sum += (double)a->w[d] * (double)a->x[j * a->stride + d];
	return sum / sqrt((double)a->width);
}

/* W(i) = {max(0, i-k+1) … i} */
static int64_t window_begin(const head *a, int64_t i)
{
	return i < a->window ? 0 : i - a->window + 1;
}

/* M_i = log Σ_{j∈W(i)} e^{a_j}, -inf when the window is empty. */
static double log_normalizer_of(const head *a, int64_t i)
{
	double top = -INFINITY, sum = 0;
	for (int64_t j = window_begin(a, i); j <= i; j++)
		if (!is_masked(a, j))
			top = fmax(top, additive_attention_score_of(a, j));
	for (int64_t j = window_begin(a, i); j <= i; j++)
		if (!is_masked(a, j))
			sum += exp(additive_attention_score_of(a, j) - top);
	return top + log(sum);
}

/* g_i = Σ_{j∈W(i)} e^{a_j - M_i} x_j */
static double pooled_of(const head *a, int64_t i, int64_t d, double log_normalizer)
{
	double sum = 0;
	for (int64_t j = window_begin(a, i); j <= i; j++)
		if (!is_masked(a, j))
			sum +=
			    exp(additive_attention_score_of(a, j) - log_normalizer) * (double)a->x[j * a->stride + d];
	return sum;
}

/* x [B, N, D], w [D], mask? [B, N] -> g [B, N, D], score [B, N, H], log_normalizer [B, N, H] */
status reference_additive_attention(backend *unused, const op_call *call)
{
	(void)unused;
	const additive_attention_params *p = call->params;
	float *g = call->out[0].data, *score = call->out[1].data, *log_normalizer = call->out[2].data;
	int64_t batch = call->in[0].shape.dim[0], length = call->in[0].shape.dim[1];
	for (int64_t b = 0; b < batch; b++) {
		for (int64_t h = 0; h < p->heads; h++) {
			head a = additive_attention_head_at(call, b, h);
			for (int64_t i = 0; i < length; i++) {
				int64_t row = b * length + i;
				double m = log_normalizer_of(&a, i);
				if (score)
					score[row * a.heads + h] = (float)additive_attention_score_of(&a, i);
				if (log_normalizer)
					log_normalizer[row * a.heads + h] = (float)m;
				if (g)
					for (int64_t d = 0; d < a.width; d++)
						g[row * a.stride + h * a.width + d] = (float)pooled_of(&a, i, d, m);
			}
		}
	}
	return STATUS_OK;
}

/* P [dh] of one position and dw [D], in double. */
size_t reference_additive_attention_grad_scratch(const backend *b, const op_call *call)
{
	(void)b;
	return 2 * (size_t)shape_last(call->in[0].shape) * sizeof(double);
}

/* The gradients that meet in token j. g, log_normalizer, dg point at this head:
 *   P_j = Σ_{i∈V(j)} p_ij dg_i,  Q_j = Σ_{i∈V(j)} p_ij (dg_i·g_i),  p_ij = e^{a_j - M_i},
 *   V(j) = {j … min(N-1, j+k-1)};   returns da_j = x_j·P_j - Q_j. */
static double score_grad(const head *a, int64_t j, const float *g, const float *log_normalizer, const float *dg,
                         double *P)
{
	double a_j = additive_attention_score_of(a, j), Q = 0, da = 0;
	for (int64_t d = 0; d < a->width; d++)
		P[d] = 0;
	if (is_masked(a, j))
		return 0;
	for (int64_t i = j; i < a->length && i - j < a->window; i++) {
		/* M_i is finite: token j is in the window and not masked. */
		double p = exp(a_j - (double)log_normalizer[i * a->heads]);
		for (int64_t d = 0; d < a->width; d++) {
			P[d] += p * (double)dg[i * a->stride + d];
			Q += p * (double)dg[i * a->stride + d] * (double)g[i * a->stride + d];
		}
	}
	for (int64_t d = 0; d < a->width; d++)
		da += (double)a->x[j * a->stride + d] * P[d];
	return da - Q;
}

/* x [B, N, D], w [D], mask? [B, N], g [B, N, D], log_normalizer [B, N, H], dg [B, N, D]
 *   -> dx [B, N, D] = P_j + c da_j w,  dw [D] = c Σ_{b,j} da_j x_j,  c = 1/√dh;  frozen: da = 0 */
status reference_additive_attention_grad(backend *unused, const op_call *call)
{
	(void)unused;
	const additive_attention_params *p = call->params;
	const float *g = call->in[3].data, *log_normalizer = call->in[4].data, *dg = call->in[5].data;
	float *dx = call->out[0].data, *dw = call->out[1].data;
	shape x = call->in[0].shape;
	double *P = call->scratch, *dw_sum = P + x.dim[2], c = 1 / sqrt((double)x.dim[2] / (double)p->heads);
	for (int64_t d = 0; d < x.dim[2]; d++)
		dw_sum[d] = 0;
	for (int64_t b = 0; b < x.dim[0]; b++) {
		for (int64_t h = 0; h < p->heads; h++) {
			head a = additive_attention_head_at(call, b, h);
			int64_t first = b * a.length * a.stride + h * a.width;
			for (int64_t j = 0; j < a.length; j++) {
				double da = score_grad(&a, j, g + first, log_normalizer + b * a.length * a.heads + h,
				                       dg + first, P);
				if (p->frozen)
					da = 0;
				for (int64_t d = 0; d < a.width; d++) {
					dw_sum[h * a.width + d] += c * da * (double)a.x[j * a.stride + d];
					if (dx)
						dx[first + j * a.stride + d] = (float)(P[d] + c * da * (double)a.w[d]);
				}
			}
		}
	}
	for (int64_t d = 0; d < x.dim[2] && dw; d++)
		dw[d] = (float)dw_sum[d];
	return STATUS_OK;
}
