#include <math.h>

#include "engine/cpu/reference/reference.h"

/* lse = log Σ_v e^{z_v}, around the largest z. */
static double log_sum_exp(const float *z, int64_t classes)
{
	double top = -INFINITY, sum = 0;
	for (int64_t v = 0; v < classes; v++)
		top = fmax(top, (double)z[v]);
	for (int64_t v = 0; v < classes; v++)
		sum += exp((double)z[v] - top);
	/* There is at least one class, so the sum holds e^0. */
	return top + log(sum); /* cppcheck-suppress invalidFunctionArg */
}

/* Rows with a label outside the classes are ignored. */
static bool counts(int32_t label, int64_t classes)
{
	return label >= 0 && label < classes;
}

static double mean_of(const float *z, int64_t classes)
{
	double sum = 0;
	for (int64_t v = 0; v < classes; v++)
		sum += (double)z[v];
	return sum / (double)classes;
}

/* logits [rows, V], label [rows] -> loss [], lse [rows], count []:
 *   loss = mean over rows that count of (1-ε)(lse - z[label]) + ε (lse - mean_v z_v) */
status reference_cross_entropy(backend *b, const op_call *call)
{
	(void)b;
	const cross_entropy_params *p = call->params;
	const float *logits = call->in[0].data;
	const int32_t *label = call->in[1].data;
	float *loss = call->out[0].data, *lse_out = call->out[1].data, *count_out = call->out[2].data;
	int64_t rows = shape_rows(call->in[0].shape), classes = shape_last(call->in[0].shape), count = 0;
	double sum = 0, smoothing = (double)p->smoothing;
	for (int64_t r = 0; r < rows; r++) {
		const float *z = logits + r * classes;
		double lse = log_sum_exp(z, classes);
		if (lse_out)
			lse_out[r] = (float)lse;
		if (!counts(label[r], classes))
			continue;
		count++;
		sum += (1 - smoothing) * (lse - (double)z[label[r]]) + smoothing * (lse - mean_of(z, classes));
	}
	if (loss)
		loss[0] = count ? (float)(sum / (double)count) : 0;
	if (count_out)
		count_out[0] = (float)count;
	return STATUS_OK;
}

/* logits [rows, V], label [rows], lse [rows], count [], dloss [] -> dlogits [rows, V]:
 *   dz_v = dloss / count · (e^{z_v - lse} - (1-ε) [v = label] - ε / V), 0 in ignored rows.
 * Element by element, so dlogits may be logits. */
status reference_cross_entropy_grad(backend *b, const op_call *call)
{
	(void)b;
	const cross_entropy_params *p = call->params;
	const float *logits = call->in[0].data, *lse = call->in[2].data;
	const int32_t *label = call->in[1].data;
	double count = (double)*(const float *)call->in[3].data, dloss = (double)*(const float *)call->in[4].data;
	float *dlogits = call->out[0].data;
	int64_t rows = shape_rows(call->in[0].shape), classes = shape_last(call->in[0].shape);
	for (int64_t r = 0; r < rows; r++) {
		for (int64_t v = 0; v < classes; v++) {
			double softmax = exp((double)logits[r * classes + v] - (double)lse[r]);
			double target =
			    (v == label[r] ? 1 - (double)p->smoothing : 0) + (double)p->smoothing / (double)classes;
			dlogits[r * classes + v] =
			    counts(label[r], classes) ? (float)(dloss / count * (softmax - target)) : 0;
		}
	}
	return STATUS_OK;
}
