#include <math.h>

#include "engine/cpu/reference/reference.h"
#include "engine/tensor/panel.h"

/* All logits and one row of the weight. */
size_t reference_linear_cross_entropy_scratch(const backend *b, const op_call *call)
{
	(void)b;
	shape hidden = call->in[0].shape, weight = call->in[1].shape;
	return (size_t)(shape_rows(hidden) * weight.dim[0]) * sizeof(double) + (size_t)weight.dim[1] * sizeof(float);
}

/* z [rows, V] = alpha (h Eᵀ + b); row [D] is a place for a row of E. */
static void logits(const op_call *call, double *z, float *row)
{
	const double alpha = (double)((const linear_cross_entropy_params *)call->params)->alpha;
	const tensor *weight = &call->in[1];
	const float *hidden = call->in[0].data, *bias = call->in[2].data;
	int64_t rows = shape_rows(call->in[0].shape), classes = weight->shape.dim[0], d = weight->shape.dim[1];
	for (int64_t v = 0; v < classes; v++) {
		const float *e = (const float *)weight->data + v * d;
		if (weight->type != DTYPE_F32) {
			panel_row(weight->type, weight->data, d, v, row);
			e = row;
		}
		for (int64_t r = 0; r < rows; r++) {
			double sum = bias ? (double)bias[v] : 0;
			for (int64_t k = 0; k < d; k++)
				sum += (double)hidden[r * d + k] * (double)e[k];
			z[r * classes + v] = alpha * sum;
		}
	}
}

/* lse = log Σ_v e^{z_v}, around the largest z. */
static double log_sum_exp(const double *z, int64_t classes)
{
	double top = -INFINITY, sum = 0;
	for (int64_t v = 0; v < classes; v++)
		top = fmax(top, z[v]);
	for (int64_t v = 0; v < classes; v++)
		sum += exp(z[v] - top);
	/* There is at least one class, so the sum holds e^0. */
	return top + log(sum); /* cppcheck-suppress invalidFunctionArg */
}

/* Rows with a label outside the classes are ignored. */
static bool reference_linear_cross_entropy_counts(int32_t label, int64_t classes)
{
	return label >= 0 && label < classes;
}

/* (1-ε)(lse - z[label]) + ε (lse - mean_v z_v) */
static double row_loss(const double *z, int32_t label, int64_t classes, double smoothing)
{
	double lse = log_sum_exp(z, classes), sum = 0;
	for (int64_t v = 0; v < classes; v++)
		sum += z[v];
	return (1 - smoothing) * (lse - z[label]) + smoothing * (lse - sum / (double)classes);
}

/* True if z[label] is the largest, the first of equals. */
static bool is_hit(const double *z, int32_t label, int64_t classes)
{
	int64_t best = 0;
	for (int64_t v = 1; v < classes; v++)
		best = z[v] > z[best] ? v : best;
	return best == label;
}

/* z [V] becomes dz_v = factor (e^{z_v - lse} - (1-ε) [v = label] - ε / V). */
static void row_gradient(double *z, int32_t label, int64_t classes, double smoothing, double factor)
{
	double lse = log_sum_exp(z, classes);
	for (int64_t v = 0; v < classes; v++) {
		double target = (v == label ? 1 - smoothing : 0) + smoothing / (double)classes;
		z[v] = reference_linear_cross_entropy_counts(label, classes) ? (exp(z[v] - lse) - target) * factor : 0;
	}
}

/* Σ_i a[i · a_stride] b[i · b_stride], b NULL: ones. */
static double dot(const double *a, int64_t a_stride, const float *b, int64_t b_stride, int64_t n)
{
	double sum = 0;
	for (int64_t i = 0; i < n; i++)
		sum += a[i * a_stride] * (b ? (double)b[i * b_stride] : 1);
	return sum;
}

/* hidden [rows, D], weight [V, D], bias? [V], label [rows], row_weight? [rows] -> loss [], count [], hit [rows],
 * log_probability [rows], and the gradients of loss:
 *   dhidden [rows, D] = alpha dz E, dweight [V, D] = alpha dzᵀ h, dbias [V] = alpha Σ_rows dz */
status reference_linear_cross_entropy(backend *b, const op_call *call)
{
	(void)b;
	const linear_cross_entropy_params *p = call->params;
	const tensor *weight = &call->in[1];
	const float *hidden = call->in[0].data;
	const int32_t *label = call->in[3].data;
	const float *row_weight = call->n_in > 4 ? call->in[4].data : NULL;
	float *loss = call->out[0].data, *count_out = call->out[1].data, *log_probability = call->out[6].data;
	float *dhidden = call->out[2].data, *dweight = call->out[3].data, *dbias = call->out[4].data,
	      *hit = call->out[5].data;
	int64_t rows = shape_rows(call->in[0].shape), classes = weight->shape.dim[0], d = weight->shape.dim[1];
	if (weight->type != DTYPE_F32 && (dhidden || dweight || dbias))
		return STATUS_UNSUPPORTED;
	double *z = call->scratch, sum = 0, alpha = (double)p->alpha, smoothing = (double)p->smoothing;
	void *row = z + rows * classes;
	int64_t count = 0;
	logits(call, z, row);
	for (int64_t r = 0; r < rows && hit; r++)
		hit[r] = reference_linear_cross_entropy_counts(label[r], classes) &&
		                 is_hit(z + r * classes, label[r], classes)
		             ? 1
		             : 0;
	for (int64_t r = 0; r < rows; r++) {
		if (log_probability)
			log_probability[r] = 0;
		if (!reference_linear_cross_entropy_counts(label[r], classes))
			continue;
		count++;
		sum +=
		    (row_weight ? (double)row_weight[r] : 1) * row_loss(z + r * classes, label[r], classes, smoothing);
		if (log_probability)
			log_probability[r] = (float)-row_loss(z + r * classes, label[r], classes, 0);
	}
	if (loss)
		loss[0] = count ? (float)(sum / (double)count) : 0;
	if (count_out)
		count_out[0] = (float)count;
	for (int64_t r = 0; r < rows; r++)
		row_gradient(z + r * classes, label[r], classes, smoothing,
		             (row_weight ? (double)row_weight[r] : 1) / (double)count);
	for (int64_t i = 0; dhidden && i < rows * d; i++)
		dhidden[i] =
		    (float)(alpha * dot(z + i / d * classes, 1, (const float *)weight->data + i % d, d, classes));
	for (int64_t i = 0; dweight && i < classes * d; i++)
		dweight[i] = (float)(alpha * dot(z + i / d, classes, hidden + i % d, d, rows));
	for (int64_t v = 0; dbias && v < classes; v++)
		dbias[v] = (float)(alpha * dot(z + v, classes, NULL, 0, rows));
	return STATUS_OK;
}
