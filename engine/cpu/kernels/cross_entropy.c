/* cross_entropy, cross_entropy_grad: a row of logits at a time, three passes over a row
 * that stays in the cache. Row losses are kept and added in double in row order. */
#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/math.h"

enum { COST = 4, LANES = 16 };

static inline bool counts(int32_t label, int64_t v)
{
	return label >= 0 && label < v;
}

/* LANES running maxima: compilers do not turn a single one into vectors without fast-math. */
static inline float row_max(const float *z, int64_t v)
{
	float top[LANES];
	for (int l = 0; l < LANES; l++)
		top[l] = -INFINITY;
	int64_t j = 0;
	for (; j + LANES <= v; j += LANES) {
#pragma omp simd
		for (int l = 0; l < LANES; l++)
			top[l] = z[j + l] > top[l] ? z[j + l] : top[l];
	}
	for (; j < v; j++)
		top[0] = z[j] > top[0] ? z[j] : top[0];
	for (int l = 1; l < LANES; l++)
		top[0] = top[l] > top[0] ? top[l] : top[0];
	return top[0];
}

static inline float log_sum_exp(const float *z, int64_t v)
{
	float top = row_max(z, v), sum = 0.0f;
#pragma omp simd reduction(+ : sum)
	for (int64_t j = 0; j < v; j++)
		sum += math_exp(z[j] - top);
	return top + math_log(sum);
}

/* The loss of each row. */
size_t KERNEL(cross_entropy_scratch)(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)shape_rows(call->in[0].shape) * sizeof(float);
}

status KERNEL(cross_entropy)(backend *b, const op_call *call)
{
	const float smoothing = ((const cross_entropy_params *)call->params)->smoothing;
	const float *logits = call->in[0].data;
	const int32_t *label = call->in[1].data;
	float *mean = call->out[0].data, *lse = call->out[1].data, *counted = call->out[2].data, *loss = call->scratch;
	int64_t rows = shape_rows(call->in[0].shape), v = shape_last(call->in[0].shape);
	const int threads = kernel_threads(b, rows * v * COST);
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t r = 0; r < rows; r++) {
		const float *z = logits + r * v;
		const float row_lse = log_sum_exp(z, v);
		if (lse)
			lse[r] = row_lse;
		if (!counts(label[r], v))
			continue;
		float sum = 0.0f;
		if (smoothing != 0.0f) {
#pragma omp simd reduction(+ : sum)
			for (int64_t j = 0; j < v; j++)
				sum += row_lse - z[j];
		}
		loss[r] = (1.0f - smoothing) * (row_lse - z[label[r]]) + smoothing * (sum / (float)v);
	}
	double total = 0.0;
	int64_t count = 0;
	for (int64_t r = 0; r < rows; r++) {
		if (!counts(label[r], v))
			continue;
		total += loss[r];
		count++;
	}
	if (mean)
		*mean = count ? (float)(total / (double)count) : 0.0f;
	if (counted)
		*counted = (float)count;
	return STATUS_OK;
}

/* dz = (softmax - (1-ε) onehot - ε/V) dloss / count. */
status KERNEL(cross_entropy_grad)(backend *b, const op_call *call)
{
	const float smoothing = ((const cross_entropy_params *)call->params)->smoothing;
	const float *logits = call->in[0].data, *lse = call->in[2].data;
	const int32_t *label = call->in[1].data;
	const float count = *(const float *)call->in[3].data, dloss = *(const float *)call->in[4].data;
	float *dlogits = call->out[0].data;
	int64_t rows = shape_rows(call->in[0].shape), v = shape_last(call->in[0].shape);
	const float factor = count > 0.0f ? dloss / count : 0.0f, even = smoothing / (float)v;
	const int threads = kernel_threads(b, rows * v * COST);
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t r = 0; r < rows; r++) {
		const float *z = logits + r * v;
		float *dz = dlogits + r * v;
		const float row_factor = counts(label[r], v) ? factor : 0.0f, row_lse = lse[r];
#pragma omp simd
		for (int64_t j = 0; j < v; j++)
			dz[j] = row_factor * (math_exp(z[j] - row_lse) - even);
		if (counts(label[r], v))
			dz[label[r]] -= row_factor * (1.0f - smoothing);
	}
	return STATUS_OK;
}
