#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/cpu/reference/reference.h"
#include "engine/tensor/panel.h"

/* A row of the weight, the rows of x as whole numbers and their scales. */
size_t reference_linear_scratch(const backend *b, const op_call *call)
{
	(void)b;
	int64_t m = shape_rows(call->in[0].shape), k = shape_last(call->in[0].shape);
	return (size_t)(k + m * k + m) * sizeof(float);
}

/* v_k = round(x_k / s) with s = max |x| / 127, or `step` where that is not 0; returns s. */
static float quantise(const float *x, int64_t k, float step, float *v)
{
	float top = 0;
	for (int64_t i = 0; i < k; i++)
		top = fabsf(x[i]) <= top || isnan(top) ? top : fabsf(x[i]);
	float s = top / PANEL_INT8_MAX < FLT_MIN ? FLT_MIN : top / PANEL_INT8_MAX;
	s = step > 0 && s < INFINITY ? step : s;
	for (int64_t i = 0; i < k; i++)
		v[i] = nearbyintf(x[i] / s);
	return s;
}

/* maxima [M, ⌈N / LINEAR_BLOCK⌉] of y [M, N]. */
static void find_maxima(const float *y, int64_t m, int64_t n, float *maxima)
{
	for (int64_t i = 0; i < m; i++)
		for (int64_t first = 0; first < n; first += LINEAR_BLOCK) {
			float most = -INFINITY;
			for (int64_t j = first; j < n && j < first + LINEAR_BLOCK; j++)
				if (isfinite(y[i * n + j]))
					most = fmaxf(most, y[i * n + j]);
			*maxima++ = most;
		}
}

/* x [M, K], weight [N, K], bias? [N] -> y [M, N] = alpha (x Wᵀ + b). For int8 panels the sum is over whole numbers, and
 * so exact: x_k = s v_k, w_k = scale q_k. (ops.h has u = v + 128, since Σ u q - 128 Σ q = Σ v q.) */
status reference_linear(backend *b, const op_call *call)
{
	(void)b;
	const linear_params *p = call->params;
	const tensor *weight = &call->in[1];
	const float *bias = call->n_in > 2 ? call->in[2].data : NULL, *x = call->in[0].data;
	int64_t m = shape_rows(call->in[0].shape), n = weight->shape.dim[0], k = weight->shape.dim[1];
	float *y = call->out[0].data, *row = call->scratch, *whole = row + k, *scale = whole + m * k;
	const bool int8 = weight->type == DTYPE_PANEL_INT8;
	for (int64_t i = 0; i < m; i++)
		scale[i] = int8 ? quantise(x + i * k, k, p->step, whole + i * k) : 1;
	if (int8)
		x = whole;
	for (int64_t j = 0; j < n; j++) {
		double factor = 1;
		if (weight->type == DTYPE_F32)
			memcpy(row, (const float *)weight->data + j * k, (size_t)k * sizeof *row);
		else
			factor = (double)panel_stored(weight->type, weight->data, k, j, row);
		for (int64_t i = 0; i < m; i++) {
			double sum = 0;
			for (int64_t l = 0; l < k; l++)
				sum += (double)x[i * k + l] * (double)row[l];
			sum *= (double)scale[i] * factor;
			y[i * n + j] = (float)((double)p->alpha * (sum + (bias ? (double)bias[j] : 0)));
		}
	}
	if (p->maxima && call->out[1].data)
		find_maxima(y, m, n, call->out[1].data);
	return STATUS_OK;
}
