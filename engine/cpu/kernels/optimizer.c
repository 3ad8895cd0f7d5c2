/* adamw, sgd, muon: clipping, moments, decay and step in one pass over the arenas. row_squares, normalized_sgd: the
 * rows of all tensors are one sequence, of which each thread takes a part. muon_direction: parts of a matrix are
 * summed, and the parts in order; then it is scaled. */
#include "engine/cpu/kernels/kernels.h"

#include <math.h>
#include <string.h>

#include "engine/tensor/panel.h"

enum { COST = 4 };

/* With step_factors every 16 numbers have their own. */
enum { CHUNK = 4096 };

static step_factors optimizer_factors(const step_factors *factors, int64_t unit)
{
	return factors ? factors[unit] : (step_factors){1.0f, 1.0f};
}

/* Input `copy`: the bf16 copy. */
static status optimizer_kernel_finish(backend *b, const op_call *call, int copy)
{
	const int64_t n = shape_count(call->in[0].shape);
	const float *p = call->in[0].data;
	uint16_t *out = copy < call->n_in ? call->in[copy].data : NULL;
	const int threads = kernel_threads(b, n);
#pragma omp parallel for simd schedule(simd : static) num_threads(threads)
	for (int64_t i = 0; i < (out ? n : 0); i++)
		out[i] = panel_bf16(p[i]);
	return STATUS_OK;
}

static int64_t optimizer_least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

status KERNEL(adamw)(backend *b, const op_call *call)
{
	const adamw_params *h = call->params;
	float *p = call->in[0].data, *m = call->in[2].data, *v = call->in[3].data;
	const float *g = call->in[1].data, *hyper = call->in[5].data;
	const float norm2 = *(const float *)call->in[4].data, norm = sqrtf(norm2), lr = hyper[0];
	int64_t n = shape_count(call->in[0].shape);
	if (!isfinite(norm2))
		return optimizer_kernel_finish(b, call, 6);
	const float clip = h->clip > 0.0f && norm > h->clip ? h->clip / (norm + 1e-6f) : 1.0f;
	const float beta1 = h->beta1, beta2 = h->beta2;
	const step_factors *factors = kernel_optional(call, 7);
	/* The bias corrections in double: 1 - 0.999^t loses digits early on. */
	const float rate = (float)(lr / (1.0 - pow(beta1, hyper[1])));
	const float root = (float)(1.0 / sqrt(1.0 - pow(beta2, hyper[1])));
	/* The order of transformers is the same expression with other constants. */
	const float eps = h->transformers ? h->eps * root : h->eps;
	const int threads = kernel_threads(b, n * COST);
	const int64_t chunk = factors ? ROW_SPAN_UNIT : CHUNK;
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t at = 0; at < n; at += chunk) {
		const step_factors f = optimizer_factors(factors, at / ROW_SPAN_UNIT);
		const float shrink = 1.0f - lr * f.rate * h->decay * f.decay;
		const float step = rate * f.rate * (h->transformers ? shrink : 1.0f);
		const int64_t end = optimizer_least(at + chunk, n);
#pragma omp simd
		for (int64_t i = at; i < end; i++) {
			float grad = clip * g[i];
			m[i] = beta1 * m[i] + (1.0f - beta1) * grad;
			v[i] = beta2 * v[i] + (1.0f - beta2) * grad * grad;
			p[i] = p[i] * shrink - step * m[i] / (sqrtf(v[i]) * root + eps);
		}
	}
	return optimizer_kernel_finish(b, call, 6);
}

status KERNEL(sgd)(backend *b, const op_call *call)
{
	const sgd_params *h = call->params;
	float *p = call->in[0].data, *m = call->in[2].data;
	const float *g = call->in[1].data;
	const float norm2 = *(const float *)call->in[3].data, norm = sqrtf(norm2),
	            lr = *(const float *)call->in[4].data;
	int64_t n = shape_count(call->in[0].shape);
	if (!isfinite(norm2))
		return optimizer_kernel_finish(b, call, 5);
	const float clip = h->clip > 0.0f && norm > h->clip ? h->clip / (norm + 1e-6f) : 1.0f;
	const float factor = !h->normalize ? clip : norm > 0.0f ? 1.0f / norm : 0.0f;
	const float momentum = h->momentum;
	const step_factors *factors = kernel_optional(call, 6);
	const int threads = kernel_threads(b, n);
	const int64_t chunk = factors ? ROW_SPAN_UNIT : CHUNK;
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t at = 0; at < n; at += chunk) {
		const step_factors f = optimizer_factors(factors, at / ROW_SPAN_UNIT);
		const float rate = lr * f.rate, shrink = 1.0f - rate * h->decay * f.decay;
		const int64_t end = optimizer_least(at + chunk, n);
#pragma omp simd
		for (int64_t i = at; i < end; i++) {
			m[i] = momentum * m[i] + factor * g[i];
			p[i] = p[i] * shrink - rate * m[i];
		}
	}
	return optimizer_kernel_finish(b, call, 5);
}

/* --- by tensors and rows of an arena ----------------------------------------------------------- */

/* The tensors of an arena. */
typedef struct row_spans {
	const row_span *each;
	int64_t count, rows;
} row_spans;

static row_spans spans_of(const op_call *call, int input, int64_t rows)
{
	return (row_spans){call->in[input].data, shape_rows(call->in[input].shape), rows};
}

static int64_t optimizer_end_of(const row_spans *s, int64_t k)
{
	return k + 1 < s->count ? s->each[k + 1].row : s->rows;
}

/* The tensor that a row is of. */
static int64_t find_span(const row_spans *s, int64_t row)
{
	int64_t low = 0, high = s->count;
	while (high - low > 1) {
		const int64_t middle = low + (high - low) / 2;
		if (s->each[middle].row <= row)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* Offset of a row of the k-th tensor. */
static int64_t optimizer_place_of(const row_spans *s, int64_t k, int64_t row)
{
	return (int64_t)ROW_SPAN_UNIT * s->each[k].place + (row - s->each[k].row) * s->each[k].width;
}

static void square_rows(const op_call *call, int64_t first, int64_t last)
{
	const row_spans s = spans_of(call, 1, shape_count(call->out[0].shape));
	const float *x = call->in[0].data;
	float *rows = call->out[0].data;
	for (int64_t r = first, k = find_span(&s, first); r < last; r++) {
		k += r == optimizer_end_of(&s, k);
		const float *row = x + optimizer_place_of(&s, k, r);
		double sum = 0.0;
#pragma omp simd reduction(+ : sum)
		for (int64_t i = 0; i < s.each[k].width; i++)
			sum += (double)row[i] * (double)row[i];
		rows[r] = (float)sum;
	}
}

size_t KERNEL(row_squares_scratch)(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)kernel_spare_floats(call, 0) * sizeof(float);
}

status KERNEL(row_squares)(backend *b, const op_call *call)
{
	op_call whole = *call;
	float *scratch = call->scratch, *tensors = call->out[1].data;
	const float *rows = whole.out[0].data = kernel_output(call, 0, &scratch);
	const row_spans s = spans_of(call, 1, shape_count(call->out[0].shape));
	TRY(kernel_for(b, &whole, s.rows, shape_count(call->in[0].shape), square_rows));
	for (int64_t k = 0; k < s.count && tensors; k++) {
		double sum = 0.0;
		for (int64_t r = s.each[k].row; r < optimizer_end_of(&s, k); r++)
			sum += (double)rows[r];
		tensors[k] = (float)sum;
	}
	return STATUS_OK;
}

/* Weights, or the same weights where the norm is not finite, and their copy. */
static void step_rows(const op_call *call, int64_t first, int64_t last)
{
	const normalized_sgd_params *h = call->params;
	float *p = call->in[0].data, *statistics = call->in[2].data;
	const float *g = call->in[1].data, *rows = call->in[3].data, *tensors = call->in[4].data,
	            *hyper = call->in[7].data;
	const step_factors *factors = kernel_optional(call, 9);
	uint16_t *copy = call->n_in > 8 ? call->in[8].data : NULL;
	const row_spans s = spans_of(call, 5, shape_count(call->in[2].shape));
	const bool skip = !isfinite(*(const float *)call->in[6].data);
	const double rho = (double)h->row_decay, weights = (1.0 - pow(rho, (double)hyper[1])) / (1.0 - rho);
	for (int64_t r = first, k = find_span(&s, first); r < last; r++) {
		k += r == optimizer_end_of(&s, k);
		const int64_t at = optimizer_place_of(&s, k, r), width = s.each[k].width;
		const bool by_row = s.each[k].by_row;
		const step_factors f = optimizer_factors(factors, s.each[k].place);
		const float lr = hyper[0] * f.rate, shrink = 1.0f - lr * h->decay * f.decay;
		const double count = (double)(by_row ? width : width * (optimizer_end_of(&s, k) - s.each[k].row));
		const double squares = (double)(by_row ? rows[r] : tensors[k]);
		double c = h->rms ? squares / count : squares;
		if (by_row && !skip) {
			statistics[r] = (float)(rho * (double)statistics[r] + c);
			c = (double)statistics[r] / weights;
		}
		const float rate = squares > 0.0 && c > 0.0 ? (float)((double)lr / sqrt(c)) : 0.0f;
#pragma omp simd
		for (int64_t i = at; i < at + width * !skip; i++)
			p[i] = p[i] * shrink - rate * g[i];
		for (int64_t i = at; i < at + width && copy; i++)
			copy[i] = panel_bf16(p[i]);
	}
}

status KERNEL(normalized_sgd)(backend *b, const op_call *call)
{
	return kernel_for(b, call, shape_count(call->in[2].shape), shape_count(call->in[0].shape), step_rows);
}

/* --- muon ------------------------------------------------------------------------------------- */

static float clip_factor(float clip, float norm2)
{
	const float norm = sqrtf(norm2);
	return clip > 0.0f && norm > clip ? clip / (norm + 1e-6f) : 1.0f;
}

size_t KERNEL(muon_direction_scratch)(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)kernel_parts(shape_count(call->out[0].shape), CHUNK) * sizeof(double);
}

status KERNEL(muon_direction)(backend *b, const op_call *call)
{
	const muon_direction_params *h = call->params;
	const float *m = (const float *)call->in[0].data + h->first, *g = (const float *)call->in[1].data + h->first;
	const float clip = clip_factor(h->clip, *(const float *)call->in[2].data), momentum = h->momentum;
	const int64_t n = shape_count(call->out[0].shape), parts = kernel_parts(n, CHUNK);
	float *x = call->out[0].data;
	double *sums = call->scratch, squares = 0.0;
	const int threads = kernel_threads(b, n * COST);
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t part = 0; part < parts; part++) {
		double sum = 0.0;
#pragma omp simd reduction(+ : sum)
		for (int64_t i = part * CHUNK; i < optimizer_least(n, (part + 1) * CHUNK); i++) {
			const float grad = clip * g[i];
			x[i] = grad + momentum * (momentum * m[i] + grad);
			sum += (double)x[i] * (double)x[i];
		}
		sums[part] = sum;
	}
	for (int64_t part = 0; part < parts; part++)
		squares += sums[part];
	const float inverse = squares > 0.0 ? (float)(1.0 / sqrt(squares)) : 0.0f;
#pragma omp parallel for simd schedule(simd : static) num_threads(threads)
	for (int64_t i = 0; i < n; i++)
		x[i] *= inverse;
	return STATUS_OK;
}

status KERNEL(write_range)(backend *b, const op_call *call)
{
	(void)b;
	const int64_t first = ((const write_range_params *)call->params)->first;
	const size_t n = (size_t)shape_count(call->in[0].shape), count = (size_t)shape_count(call->in[1].shape);
	float *y = call->out[0].data;
	if (y != call->in[0].data && n > 0)
		memcpy(y, call->in[0].data, n * sizeof *y);
	if (count > 0)
		memcpy(y + first, call->in[1].data, count * sizeof *y);
	return STATUS_OK;
}

status KERNEL(muon)(backend *b, const op_call *call)
{
	const muon_params *h = call->params;
	float *p = call->in[0].data, *m = call->in[2].data, *v = call->in[3].data;
	const float *g = call->in[1].data, *d = call->in[4].data, *hyper = call->in[6].data, *scales = call->in[7].data;
	const float norm2 = *(const float *)call->in[5].data, lr = hyper[0];
	const int64_t n = shape_count(call->in[0].shape);
	if (!isfinite(norm2))
		return optimizer_kernel_finish(b, call, 8);
	const float clip = clip_factor(h->adamw.clip, norm2), momentum = h->momentum, eps = h->adamw.eps;
	const float beta1 = h->adamw.beta1, beta2 = h->adamw.beta2;
	const step_factors *factors = kernel_optional(call, 9);
	const float rate = (float)(lr / (1.0 - pow(beta1, hyper[1])));
	const float root = (float)(1.0 / sqrt(1.0 - pow(beta2, hyper[1])));
	const int threads = kernel_threads(b, n * COST);
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t at = 0; at < n; at += ROW_SPAN_UNIT) {
		const step_factors f = optimizer_factors(factors, at / ROW_SPAN_UNIT);
		const float shrink = 1.0f - lr * f.rate * h->adamw.decay * f.decay;
		const float step = lr * f.rate * scales[at / ROW_SPAN_UNIT], own = rate * f.rate;
		const int64_t end = optimizer_least(at + ROW_SPAN_UNIT, n);
		if (scales[at / ROW_SPAN_UNIT] > 0.0f) {
#pragma omp simd
			for (int64_t i = at; i < end; i++) {
				m[i] = momentum * m[i] + clip * g[i];
				p[i] = p[i] * shrink - step * d[i];
			}
			continue;
		}
#pragma omp simd
		for (int64_t i = at; i < end; i++) {
			const float grad = clip * g[i];
			m[i] = beta1 * m[i] + (1.0f - beta1) * grad;
			v[i] = beta2 * v[i] + (1.0f - beta2) * grad * grad;
			p[i] = p[i] * shrink - own * m[i] / (sqrtf(v[i]) * root + eps);
		}
	}
	return optimizer_kernel_finish(b, call, 8);
}
