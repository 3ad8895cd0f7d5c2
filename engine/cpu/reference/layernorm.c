#include <math.h>

#include "engine/cpu/reference/reference.h"

/* x [rows, D], weight [D], bias [D] -> y [rows, D], mean [rows], rstd [rows]:
 *   mean = Σ_d x / D,  rstd = 1 / √(Σ_d (x - mean)² / D + eps) or, unbiased, 1 / (√(Σ_d (x - mean)² / (D - 1)) + eps)
 *   y = weight ⊙ (x - mean) · rstd + bias */
status reference_layernorm(backend *b, const op_call *call)
{
	(void)b;
	const layernorm_params *p = call->params;
	const float *x = call->in[0].data, *weight = call->in[1].data, *bias = call->in[2].data;
	float *y = call->out[0].data, *mean_out = call->out[1].data, *rstd_out = call->out[2].data;
	int64_t rows = shape_rows(call->in[0].shape), width = shape_last(call->in[0].shape);
	for (int64_t r = 0; r < rows; r++, x += width) {
		double mean = 0, squares = 0;
		for (int64_t d = 0; d < width; d++)
			mean += (double)x[d] / (double)width;
		for (int64_t d = 0; d < width; d++)
			squares += ((double)x[d] - mean) * ((double)x[d] - mean);
		double rstd = p->unbiased ? 1 / (sqrt(squares / (double)(width - 1)) + (double)p->eps)
		                          : 1 / sqrt(squares / (double)width + (double)p->eps);
		if (y)
			for (int64_t d = 0; d < width; d++)
				y[r * width + d] =
				    (float)((double)weight[d] * ((double)x[d] - mean) * rstd + (double)bias[d]);
		if (mean_out)
			mean_out[r] = (float)mean;
		if (rstd_out)
			rstd_out[r] = (float)rstd;
	}
	return STATUS_OK;
}

/* One row: y' = weight ⊙ dy, x̂ = (x - mean) · rstd,
 *   dx = rstd (y' - mean_d(y') - c x̂ Σ_d(y' x̂)), c = 1 / D; unbiased 1 / ((D - 1) (1 - eps rstd)); frozen 0 */
static void row_grad(const layernorm_grad_params *p, float *dx, const float *x, const float *weight, const float *dy,
                     double mean, double rstd, int64_t width)
{
	double sum = 0, dot = 0;
	for (int64_t d = 0; d < width; d++) {
		double scaled = (double)weight[d] * (double)dy[d];
		sum += scaled;
		dot += scaled * ((double)x[d] - mean) * rstd;
	}
	const double rest = 1 - (double)p->eps * rstd;
	double c = p->unbiased ? rest > 0 ? 1 / ((double)(width - 1) * rest) : 0 : 1 / (double)width;
	if (p->frozen)
		c = 0;
	for (int64_t d = 0; d < width; d++) {
		double scaled = (double)weight[d] * (double)dy[d], normal = ((double)x[d] - mean) * rstd;
		dx[d] = (float)(rstd * (scaled - sum / (double)width - c * normal * dot));
	}
}

/* x [rows, D], weight [D], mean [rows], rstd [rows], dy [rows, D]
 *   -> dx [rows, D], dweight [D] = Σ_rows dy ⊙ x̂, dbias [D] = Σ_rows dy */
status reference_layernorm_grad(backend *b, const op_call *call)
{
	(void)b;
	const float *x = call->in[0].data, *weight = call->in[1].data, *mean = call->in[2].data;
	const float *rstd = call->in[3].data, *dy = call->in[4].data;
	float *dx = call->out[0].data, *dweight = call->out[1].data, *dbias = call->out[2].data;
	int64_t rows = shape_rows(call->in[0].shape), width = shape_last(call->in[0].shape);
	for (int64_t d = 0; d < width; d++) {
		double weight_sum = 0, bias_sum = 0;
		for (int64_t r = 0; r < rows; r++) {
			int64_t at = r * width + d;
			weight_sum += (double)dy[at] * ((double)x[at] - (double)mean[r]) * (double)rstd[r];
			bias_sum += (double)dy[at];
		}
		if (dweight)
			dweight[d] = (float)weight_sum;
		if (dbias)
			dbias[d] = (float)bias_sum;
	}
	if (dx)
		for (int64_t r = 0; r < rows; r++)
			row_grad(call->params, dx + r * width, x + r * width, weight, dy + r * width, (double)mean[r],
			         (double)rstd[r], width);
	return STATUS_OK;
}
