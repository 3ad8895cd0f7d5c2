/* decay_biases, decay_merge, decay_merge_grad: a row and a head at a time. The sums over rows of the gradient are cut
 * into parts of a fixed number of rows, added in order. */
#include "engine/tensor/ops/decay.h"
#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/math.h"

#include <math.h>
#include <string.h>

enum { COST = 2, BIAS_COST = 8 };

static void biases(const op_call *call, int64_t first, int64_t last)
{
	const decay_biases_params *p = call->params;
	float *to = call->out[0].data;
	for (int64_t row = first; row < last; row++) {
		const float bias = decay_table_bias(p->slope, p->hyper, p->first + row);
		for (int64_t h = 0; h < p->heads; h++)
			to[row * p->heads + h] = bias;
	}
}

status KERNEL(decay_biases)(backend *b, const op_call *call)
{
	const decay_biases_params *p = call->params;
	return kernel_for(b, call, p->count, p->count * (p->heads + BIAS_COST), biases);
}

/* Data shared by all rows of a call. */
typedef struct merge {
	int64_t heads, length;
	int64_t key_width, value_width; /* Q / H, T / H */
	const float *query, *first_k, *first_v, *y, *log_normalizer;
	const int32_t *positions; /* or NULL */
	float scale, slope, hyper;
} merge;

static merge merge_of(const op_call *call, int positions)
{
	const decay_params *p = call->params;
	const shape q = call->in[DECAY_Q].shape;
	return (merge){.heads = p->heads,
	               .length = q.dim[1],
	               .key_width = q.dim[2] / p->heads,
	               .value_width = shape_last(call->in[DECAY_Y].shape) / p->heads,
	               .query = call->in[DECAY_Q].data,
	               .first_k = call->in[DECAY_FIRST_K].data,
	               .first_v = call->in[DECAY_FIRST_V].data,
	               .y = call->in[DECAY_Y].data,
	               .log_normalizer = call->in[DECAY_LOG_NORMALIZER].data,
	               .positions = kernel_optional(call, positions),
	               .scale = decay_scale(p->scale),
	               .slope = p->slope,
	               .hyper = p->hyper};
}

/* Distance term of the first key in the scores of a row. */
static float row_bias(const merge *a, int64_t row)
{
	return decay_bias(a->slope, a->hyper, (a->positions ? a->positions[row] : row % a->length) + 1);
}

/* Return the score of the first key for head `at`, counted over all rows. */
static float first_score(const merge *a, int64_t at, float bias)
{
	const float *q = a->query + at * a->key_width, *k = a->first_k + at % a->heads * a->key_width;
	float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
	for (int64_t d = 0; d < a->key_width; d++)
		sum += q[d] * k[d];
	return a->scale * sum + bias;
}

static void merge_rows(const op_call *call, int64_t first, int64_t last)
{
	const merge a = merge_of(call, DECAY_POSITIONS);
	float *out = call->out[0].data, *log_normalizer = call->out[1].data, bias = 0.0f;
	for (int64_t at = first * a.heads; at < last * a.heads; at++) {
		if (at % a.heads == 0)
			bias = row_bias(&a, at / a.heads);
		const float s = first_score(&a, at, bias), m = a.log_normalizer[at];
		const float high = s > m ? s : m, top = high > 0.0f ? high : 0.0f;
		const float first_part = math_exp(s - top), rest = math_exp(m - top);
		const float total = math_exp(-top) + first_part + rest;
		const float *y = a.y + at * a.value_width, *v = a.first_v + at % a.heads * a.value_width;
		const float by_y = rest / total, by_v = first_part / total;
		if (log_normalizer)
			log_normalizer[at] = top + math_log(total);
		if (!out)
			continue;
		float *u = out + at * a.value_width;
#pragma omp simd
		for (int64_t d = 0; d < a.value_width; d++)
			u[d] = by_y * y[d] + by_v * v[d];
	}
}

/* Work of a row: q and y, and 16 channels for each head. */
static int64_t merge_work(const op_call *call)
{
	return shape_count(call->in[DECAY_Q].shape) + shape_count(call->in[DECAY_Y].shape) +
	       16 * shape_count(call->in[DECAY_LOG_NORMALIZER].shape);
}

status KERNEL(decay_merge)(backend *b, const op_call *call)
{
	return kernel_for(b, call, shape_rows(call->in[DECAY_Q].shape), merge_work(call), merge_rows);
}

/* --- the gradient ----------------------------------------------------------------------------------------------- */

/* Rows first … last - 1, and their part of the sums [Q + T]. */
static void part_grad(const op_call *call, int64_t first, int64_t last, float *sums)
{
	const merge a = merge_of(call, DECAY_GRAD_POSITIONS);
	const int64_t keys = a.heads * a.key_width, values = a.heads * a.value_width;
	float *dq_out = call->out[0].data, bias = 0.0f;
	memset(sums, 0, (size_t)(keys + values) * sizeof *sums);
	for (int64_t at = first * a.heads; at < last * a.heads; at++) {
		const int64_t h = at % a.heads;
		if (h == 0)
			bias = row_bias(&a, at / a.heads);
		const float weight = math_exp(first_score(&a, at, bias) - a.log_normalizer[at]);
		const float *du = (const float *)call->in[DECAY_DU].data + at * a.value_width;
		const float *u = a.y + at * a.value_width, *v = a.first_v + h * a.value_width;
		float along = 0.0f, *dv = sums + keys + h * a.value_width;
#pragma omp simd reduction(+ : along)
		for (int64_t d = 0; d < a.value_width; d++) {
			along += du[d] * (v[d] - u[d]);
			dv[d] += weight * du[d];
		}
		const float ds = a.scale * weight * along, *q = a.query + at * a.key_width;
		const float *k = a.first_k + h * a.key_width;
		float *dk = sums + h * a.key_width;
#pragma omp simd
		for (int64_t d = 0; d < a.key_width; d++)
			dk[d] += ds * q[d];
		if (!dq_out)
			continue;
		float *dq = dq_out + at * a.key_width;
#pragma omp simd
		for (int64_t d = 0; d < a.key_width; d++)
			dq[d] = ds * k[d];
	}
}

static int64_t sum_floats(const op_call *call)
{
	return shape_last(call->in[DECAY_Q].shape) + shape_last(call->in[DECAY_Y].shape);
}

/* The parts' sums [parts, Q + T], and those of all. */
size_t KERNEL(decay_merge_grad_scratch)(const backend *b, const op_call *call)
{
	(void)b;
	const int64_t rows = shape_rows(call->in[DECAY_Q].shape);
	return (size_t)((kernel_parts(rows, kernel_part_rows(rows)) + 1) * sum_floats(call)) * sizeof(float);
}

status KERNEL(decay_merge_grad)(backend *b, const op_call *call)
{
	const int64_t rows = shape_rows(call->in[DECAY_Q].shape), size = kernel_part_rows(rows);
	const int64_t parts = kernel_parts(rows, size), width = sum_floats(call);
	const size_t keys = (size_t)shape_last(call->in[DECAY_Q].shape) * sizeof(float);
	const int threads = kernel_threads(b, COST * merge_work(call));
	float *partial = call->scratch, *all = partial + parts * width;
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t part = 0; part < parts; part++)
		part_grad(call, part * size, kernel_min(rows, (part + 1) * size), partial + part * width);
	kernel_sum_parts(all, partial, parts, width, 1.0f);
	if (call->out[1].data)
		memcpy(call->out[1].data, all, keys);
	if (call->out[2].data)
		memcpy(call->out[2].data, (char *)all + keys, (size_t)width * sizeof(float) - keys);
	return STATUS_OK;
}
