#include <math.h>

#include "engine/cpu/reference/reference.h"
#include "engine/tensor/panel.h"

/* sum […] += factor · x […] */
status reference_accumulate(backend *b, const op_call *call)
{
	(void)b;
	const scale_params *p = call->params;
	float *sum = call->in[0].data;
	const float *x = call->in[1].data;
	for (int64_t i = 0; i < shape_count(call->in[0].shape); i++)
		sum[i] = (float)((double)sum[i] + (double)p->factor * (double)x[i]);
	return STATUS_OK;
}

/* p […] += rate · (x […] - p), rate [] */
status reference_lerp(backend *b, const op_call *call)
{
	(void)b;
	float *p = call->in[0].data;
	const float *x = call->in[1].data;
	const double rate = (double)*(const float *)call->in[2].data;
	for (int64_t i = 0; i < shape_count(call->in[0].shape); i++)
		p[i] = (float)((double)p[i] + rate * ((double)x[i] - (double)p[i]));
	return STATUS_OK;
}

/* The rate and the weight decay of one number. */
typedef struct step_size {
	double rate, decay;
} step_size;

/* Those of number i of p: factors? [⌈n / 16⌉, 2]; `input`: index of that input. */
static step_size step_size_of(const op_call *call, int input, int64_t i, float rate, float decay)
{
	const step_factors *factors = call->n_in > input ? call->in[input].data : NULL;
	const step_factors f = factors ? factors[i / ROW_SPAN_UNIT] : (step_factors){1, 1};
	return (step_size){(double)rate * (double)f.rate, (double)decay * (double)f.decay};
}

/* narrow? [n] bf16 = p, rounded; `input`: index of that input. */
static status optimizer_narrow(const op_call *call, int input)
{
	const float *p = call->in[0].data;
	uint16_t *out = call->n_in > input ? call->in[input].data : NULL;
	for (int64_t i = 0; i < shape_count(call->in[0].shape) && out; i++)
		out[i] = panel_bf16(p[i]);
	return STATUS_OK;
}

/* p, g, m, v [n], norm2 [], hyper [2] = {lr, t}, narrow? [n], factors? [⌈n / 16⌉, 2]; p, m, v and narrow in place:
 *   c = clip > 0 and norm > clip ? clip / (norm + 1e-6) : 1,  norm = √norm2,  g' = c g
 *   m = β1 m + (1-β1) g',  v = β2 v + (1-β2) g'²
 *   p = p (1 - lr·decay) - lr (m / (1-β1^t)) / (√(v / (1-β2^t)) + eps), or with `transformers`
 *   p = (p - lr √(1-β2^t) / (1-β1^t) m / (√v + eps)) (1 - lr·decay) */
status reference_adamw(backend *b, const op_call *call)
{
	(void)b;
	const adamw_params *o = call->params;
	float *p = call->in[0].data, *m = call->in[2].data, *v = call->in[3].data;
	const float *g = call->in[1].data, *hyper = call->in[5].data;
	double norm2 = (double)*(const float *)call->in[4].data;
	if (!isfinite(norm2))
		return optimizer_narrow(call, 6);
	double t = (double)hyper[1], norm = sqrt(norm2), clip = (double)o->clip;
	double beta1 = (double)o->beta1, beta2 = (double)o->beta2;
	double c = clip > 0 && norm > clip ? clip / (norm + 1e-6) : 1;
	for (int64_t i = 0; i < shape_count(call->in[0].shape); i++) {
		double grad = c * (double)g[i];
		double mean = beta1 * (double)m[i] + (1 - beta1) * grad;
		double square = beta2 * (double)v[i] + (1 - beta2) * grad * grad;
		double correction1 = 1 - pow(beta1, t), correction2 = 1 - pow(beta2, t), eps = (double)o->eps;
		const step_size size = step_size_of(call, 7, i, hyper[0], o->decay);
		double lr = size.rate, shrink = 1 - lr * size.decay, old = (double)p[i];
		if (o->transformers)
			p[i] = (float)((old - lr * sqrt(correction2) / correction1 * mean / (sqrt(square) + eps)) *
			               shrink);
		else
			p[i] = (float)(old * shrink - lr * (mean / correction1) / (sqrt(square / correction2) + eps));
		m[i] = (float)mean;
		v[i] = (float)square;
	}
	return optimizer_narrow(call, 6);
}

/* p, g, m [n], norm2 [], hyper [2] = {lr, t}, narrow? [n], factors? [⌈n / 16⌉, 2]; p, m and narrow in place:
 *   c = normalize ? (norm > 0 ? 1 / norm : 0) : clip > 0 and norm > clip ? clip / (norm + 1e-6) : 1,  norm = √norm2
 *   m = μ m + c g,  p = p (1 - lr·decay) - lr m */
status reference_sgd(backend *b, const op_call *call)
{
	(void)b;
	const sgd_params *o = call->params;
	float *p = call->in[0].data, *m = call->in[2].data;
	const float *g = call->in[1].data;
	const float rate = *(const float *)call->in[4].data;
	double norm2 = (double)*(const float *)call->in[3].data;
	if (!isfinite(norm2))
		return optimizer_narrow(call, 5);
	double norm = sqrt(norm2), clip = (double)o->clip;
	double c = clip > 0 && norm > clip ? clip / (norm + 1e-6) : 1;
	if (o->normalize)
		c = norm > 0 ? 1 / norm : 0;
	for (int64_t i = 0; i < shape_count(call->in[0].shape); i++) {
		double moving = (double)o->momentum * (double)m[i] + c * (double)g[i];
		const step_size size = step_size_of(call, 6, i, rate, o->decay);
		p[i] = (float)((double)p[i] * (1 - size.rate * size.decay) - size.rate * moving);
		m[i] = (float)moving;
	}
	return optimizer_narrow(call, 5);
}

/* Rows of the k-th tensor: spans[k].row … the value. */
static int64_t reference_optimizer_end_of(const row_span *spans, int64_t k, int64_t tensors, int64_t rows)
{
	return k + 1 < tensors ? spans[k + 1].row : rows;
}

/* x [n], spans [K, 4] -> rows [R], tensors [K]: sums of squares of the rows of each tensor, and of each tensor */
status reference_row_squares(backend *b, const op_call *call)
{
	(void)b;
	const float *x = call->in[0].data;
	const row_span *spans = call->in[1].data;
	float *rows = call->out[0].data, *tensors = call->out[1].data;
	const int64_t n = shape_rows(call->in[1].shape), all = shape_count(call->out[0].shape);
	for (int64_t k = 0; k < n; k++) {
		const int64_t first = spans[k].row, width = spans[k].width;
		double whole = 0;
		for (int64_t r = first; r < reference_optimizer_end_of(spans, k, n, all); r++) {
			const float *row = x + (int64_t)ROW_SPAN_UNIT * spans[k].place + (r - first) * width;
			double sum = 0;
			for (int64_t i = 0; i < width; i++)
				sum += (double)row[i] * (double)row[i];
			if (rows)
				rows[r] = (float)sum;
			whole += sum;
		}
		if (tensors)
			tensors[k] = (float)whole;
	}
	return STATUS_OK;
}

/* p, g [n], s, rows [R], tensors [K], spans [K, 4], norm2 [], hyper [2] = {lr, t}, narrow? [n], factors? [⌈n / 16⌉, 2];
 * p, s and narrow in place. For each tensor, or with by_row for each row of it, with gradient g of N numbers:
 *   tensor: c = |g|² / (rms ? N : 1)
 *   row:    s = ρ s + |g|² / (rms ? N : 1),  c = s / Σ_{i<t} ρ^i
 *   p = p (1 - lr·decay) - (|g|² > 0 ? lr g / √c : 0) */
status reference_normalized_sgd(backend *b, const op_call *call)
{
	(void)b;
	const normalized_sgd_params *o = call->params;
	float *p = call->in[0].data, *s = call->in[2].data;
	const float *g = call->in[1].data, *rows = call->in[3].data, *tensors = call->in[4].data,
	            *hyper = call->in[7].data;
	const bool finite = isfinite(*(const float *)call->in[6].data);
	uint16_t *copy = call->n_in > 8 ? call->in[8].data : NULL;
	const row_span *spans = call->in[5].data;
	const int64_t n = shape_rows(call->in[5].shape), all = shape_count(call->in[2].shape);
	const double rho = (double)o->row_decay;
	double weights = 0;
	for (int i = 0; i < (int)hyper[1]; i++)
		weights += pow(rho, i);
	for (int64_t k = 0; k < n; k++) {
		const int64_t first = spans[k].row, end = reference_optimizer_end_of(spans, k, n, all),
		              width = spans[k].width;
		for (int64_t r = first; r < end; r++) {
			const int64_t begin = (int64_t)ROW_SPAN_UNIT * spans[k].place, at = begin + (r - first) * width;
			const step_size size = step_size_of(call, 9, begin, hyper[0], o->decay);
			const double count = (double)(spans[k].by_row ? width : width * (end - first));
			double squares = (double)(spans[k].by_row ? rows[r] : tensors[k]);
			double c = o->rms ? squares / count : squares;
			if (spans[k].by_row && finite) {
				s[r] = (float)(rho * (double)s[r] + c);
				c = (double)s[r] / weights;
			}
			for (int64_t i = at; i < at + width && finite; i++)
				p[i] = (float)((double)p[i] * (1 - size.rate * size.decay) -
				               (squares > 0 && c > 0 ? size.rate * (double)g[i] / sqrt(c) : 0));
			for (int64_t i = at; i < at + width && copy; i++)
				copy[i] = panel_bf16(p[i]);
		}
	}
	return STATUS_OK;
}

/* c of the gradients' norm: clip > 0 and norm > clip ? clip / (norm + 1e-6) : 1 */
static double clip_factor(double clip, double norm2)
{
	const double norm = sqrt(norm2);
	return clip > 0 && norm > clip ? clip / (norm + 1e-6) : 1;
}

/* m, g [n], norm2 [] -> x [rows, columns] = u / ‖u‖, u = c g + μ (μ m + c g) from `first` on; 0 where u is 0 */
status reference_muon_direction(backend *unused, const op_call *call)
{
	(void)unused;
	const muon_direction_params *o = call->params;
	const float *m = (const float *)call->in[0].data + o->first, *g = (const float *)call->in[1].data + o->first;
	float *x = call->out[0].data;
	const double c = clip_factor((double)o->clip, (double)*(const float *)call->in[2].data);
	const double mu = (double)o->momentum;
	double squares = 0;
	for (int64_t i = 0; i < o->rows * o->columns; i++) {
		const double u = c * (double)g[i] + mu * (mu * (double)m[i] + c * (double)g[i]);
		squares += u * u;
		x[i] = (float)u;
	}
	for (int64_t i = 0; i < o->rows * o->columns; i++)
		x[i] = squares > 0 ? (float)((double)x[i] / sqrt(squares)) : 0;
	return STATUS_OK;
}

/* x [n], part -> y = x with the numbers from `first` on replaced by part */
status reference_write_range(backend *unused, const op_call *call)
{
	(void)unused;
	const int64_t first = ((const write_range_params *)call->params)->first, n = shape_count(call->in[0].shape);
	const int64_t count = shape_count(call->in[1].shape);
	const float *x = call->in[0].data, *part = call->in[1].data;
	float *y = call->out[0].data;
	for (int64_t i = 0; i < n; i++)
		y[i] = i >= first && i < first + count ? part[i - first] : x[i];
	return STATUS_OK;
}

/* p, g, m, v, d [n], norm2 [], hyper [2] = {lr, t}, scales [⌈n / 16⌉], narrow? [n], factors? [⌈n / 16⌉, 2]; p, m, v and
 * narrow in place, with s the scale of the number's unit:
 *   s > 0: m = μ m + c g,  p = p (1 - lr·decay) - lr s d;  s = 0: as adamw */
status reference_muon(backend *unused, const op_call *call)
{
	(void)unused;
	const muon_params *o = call->params;
	float *p = call->in[0].data, *m = call->in[2].data, *v = call->in[3].data;
	const float *g = call->in[1].data, *d = call->in[4].data, *hyper = call->in[6].data, *scales = call->in[7].data;
	const double norm2 = (double)*(const float *)call->in[5].data, t = (double)hyper[1];
	if (!isfinite(norm2))
		return optimizer_narrow(call, 8);
	const double c = clip_factor((double)o->adamw.clip, norm2), beta1 = (double)o->adamw.beta1,
	             beta2 = (double)o->adamw.beta2;
	for (int64_t i = 0; i < shape_count(call->in[0].shape); i++) {
		const double s = (double)scales[i / ROW_SPAN_UNIT], grad = c * (double)g[i];
		const step_size size = step_size_of(call, 9, i, hyper[0], o->adamw.decay);
		const double lr = size.rate, kept = (double)p[i] * (1 - lr * size.decay);
		if (s > 0) {
			m[i] = (float)((double)o->momentum * (double)m[i] + grad);
			p[i] = (float)(kept - lr * s * (double)d[i]);
			continue;
		}
		const double first = beta1 * (double)m[i] + (1 - beta1) * grad,
		             second = beta2 * (double)v[i] + (1 - beta2) * grad * grad;
		m[i] = (float)first;
		v[i] = (float)second;
		p[i] = (float)(kept - lr * first / (1 - pow(beta1, t)) /
		                          (sqrt(second / (1 - pow(beta2, t))) + (double)o->adamw.eps));
	}
	return optimizer_narrow(call, 8);
}
