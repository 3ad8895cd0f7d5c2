#include <math.h>

#include "engine/cpu/reference/reference.h"

/* log(e^a + e^b); b is finite. */
static double log_of_both(double a, double b)
{
	const double top = fmax(a, b);
	return top + log(exp(a - top) + exp(b - top));
}

/* g [B, N, D], M [B, N, H], l [H], m [D] -> g' [B, N, D], M' [B, N, H] */
status reference_additive_initial(backend *unused, const op_call *call)
{
	(void)unused;
	const float *g = call->in[0].data, *M = call->in[1].data, *l = call->in[2].data, *m = call->in[3].data;
	float *to = call->out[0].data, *normalizer = call->out[1].data;
	const int64_t rows = shape_rows(call->in[0].shape), heads = shape_count(call->in[2].shape);
	const int64_t width = shape_last(call->in[0].shape), dh = width / heads;
	for (int64_t i = 0; i < rows * heads; i++) {
		const int64_t h = i % heads;
		const double all = log_of_both((double)M[i], (double)l[h]), p = exp((double)l[h] - all);
		for (int64_t c = 0; c < dh && to; c++) {
			const double old = (double)g[i * dh + c];
			to[i * dh + c] = (float)(old + p * ((double)m[h * dh + c] - old));
		}
		if (normalizer)
			normalizer[i] = (float)all;
	}
	return STATUS_OK;
}

/* l [H], m [D], g' [B, N, D], M' [B, N, H], dg' [B, N, D] -> dl [H], dm [D] */
status reference_additive_initial_grad(backend *unused, const op_call *call)
{
	(void)unused;
	const float *l = call->in[0].data, *m = call->in[1].data;
	const float *g = call->in[2].data, *M = call->in[3].data, *dg = call->in[4].data;
	float *dl = call->out[0].data, *dm = call->out[1].data;
	const int64_t rows = shape_rows(call->in[2].shape), heads = shape_count(call->in[0].shape);
	const int64_t width = shape_last(call->in[2].shape), dh = width / heads;
	for (int64_t h = 0; h < heads; h++) {
		double score = 0;
		for (int64_t c = h * dh; c < (h + 1) * dh; c++) {
			double mean = 0;
			for (int64_t row = 0; row < rows; row++) {
				const double part =
				    exp((double)l[h] - (double)M[row * heads + h]) * (double)dg[row * width + c];
				mean += part;
				score += part * ((double)m[c] - (double)g[row * width + c]);
			}
			if (dm)
				dm[c] = (float)mean;
		}
		if (dl)
			dl[h] = (float)score;
	}
	return STATUS_OK;
}
