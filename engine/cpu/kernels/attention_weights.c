/* attention_weights, attention_weights_grad: a row at a time, in the caches after the first touch. Keys that a query
 * cannot see are not read.
 *
 * A bias table is reversed first, so that a head's biases are in the order of keys. The row of a query is then a
 * contiguous part of it. The gradient of the table is summed the same way, for each head of each sequence separately;
 * the sequences are added in order. The top_k-th largest number of a row is found bit by bit by counting, without a
 * branch.
 */
#include "engine/tensor/ops/attention_matrix.h"

#include <string.h>

#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/math.h"

enum { COST = 6, TOP_COST = 40, GRAD_COST = 2 };

/* turned [H, T] = bias [T, H] with its rows in reverse order. */
static void turn(const tensor *bias, float *turned)
{
	const int64_t rows = bias->shape.dim[0], heads = bias->shape.dim[1];
	for (int64_t t = 0; t < rows; t++)
		for (int64_t h = 0; h < heads; h++)
			turned[h * rows + rows - 1 - t] = ((const float *)bias->data)[t * heads + h];
}

/* Offset, in a head's turned table (T rows), of key 0 for a query at `position`; may be negative. */
static int64_t turned_at(int64_t rows, int64_t position, int64_t first)
{
	return rows - 1 - (position - first);
}

static uint32_t order_of(float x)
{
	return float_order(math_bits(x + 0.0f)); /* -0 becomes 0 */
}

/* Hide numbers smaller than the k-th largest of a. */
static void keep_top(float *a, int64_t count, int64_t k)
{
	uint32_t least = 0;
	for (int bit = 31; bit >= 0; bit--) {
		const uint32_t tried = least | 1u << bit;
		int64_t above = 0;
#pragma omp simd reduction(+ : above)
		for (int64_t j = 0; j < count; j++)
			above += order_of(a[j]) >= tried;
		if (above >= k)
			least = tried;
		if (above == k)
			break;
	}
#pragma omp simd
	for (int64_t j = 0; j < count; j++)
		a[j] = order_of(a[j]) >= least ? a[j] : -INFINITY;
}

static void hide(float *a, const int32_t *seen, int64_t count)
{
#pragma omp simd
	for (int64_t j = 0; j < count; j++)
		a[j] = seen[j] ? a[j] : -INFINITY;
}

/* Replace a by e^{a - M} and return M. If no key is seen, M is -inf and a is unchanged. */
static float attention_weights_normalize(float *a, int64_t count)
{
	float top = -INFINITY, sum = 0.0f;
#pragma omp simd reduction(max : top)
	for (int64_t j = 0; j < count; j++)
		top = a[j] > top ? a[j] : top;
	if (top == -INFINITY)
		return top;
#pragma omp simd reduction(+ : sum)
	for (int64_t j = 0; j < count; j++) {
		a[j] = math_exp(a[j] - top);
		sum += a[j];
	}
	const float inverse = 1.0f / sum;
#pragma omp simd
	for (int64_t j = 0; j < count; j++)
		a[j] *= inverse;
	return top + math_log(sum);
}

static void rows_of_weights(const op_call *call, int64_t first, int64_t last)
{
	const attention_weights_params *p = call->params;
	const shape s = call->in[0].shape;
	const int64_t heads = s.dim[1], queries = s.dim[2], keys = s.dim[3];
	const int32_t *mask = kernel_optional(call, 1), *visible = kernel_optional(call, 2);
	const float *turned = kernel_optional(call, 3) ? call->scratch : NULL;
	const int64_t rows = turned ? call->in[3].shape.dim[0] : 0;
	const int64_t period = visible ? shape_count(call->in[2].shape) / (keys ? keys : 1) : 1;
	float *log_normalizer = call->out[1].data, *spare = NULL;
	if (!call->out[0].data) /* one row for each range */
		spare = (float *)call->scratch + rows * heads + first * keys;
	for (int64_t row = first; row < last; row++) {
		const float *scores = (const float *)call->in[0].data + row * keys;
		float *weights = spare ? spare : (float *)call->out[0].data + row * keys;
		const int64_t b = row / queries / heads, head = row / queries % heads;
		const int64_t position = row % queries + keys - queries;
		const key_range r = keys_in_sight(position, keys, p->window, p->bidirectional);
		const int64_t count = r.end - r.first;
		float *a = weights + r.first;
		memmove(a, scores + r.first, (size_t)count * sizeof *a);
		if (turned && count > 0) {
			const float *bias = turned + (head * rows + turned_at(rows, position, p->bias_first) + r.first);
#pragma omp simd
			for (int64_t j = 0; j < count; j++)
				a[j] += bias[j];
		}
		if (mask)
			hide(a, mask + b * keys + r.first, count);
		if (visible)
			hide(a, visible + row % period * keys + r.first, count);
		if (p->top_k > 0 && p->top_k < count)
			keep_top(a, count, p->top_k);
		const float m = attention_weights_normalize(a, count);
		const float elsewhere = m == -INFINITY && p->uniform ? 1.0f / (float)keys : 0.0f;
		const key_range seen = m == -INFINITY ? (key_range){0, 0} : r;
		for (int64_t j = 0; j < seen.first; j++)
			weights[j] = elsewhere;
		for (int64_t j = seen.end; j < keys; j++)
			weights[j] = elsewhere;
		if (log_normalizer)
			log_normalizer[row] = m;
	}
}

/* The reversed table, and all rows if the weights are not requested. */
size_t KERNEL(attention_weights_scratch)(const backend *b, const op_call *call)
{
	(void)b;
	const int64_t table = kernel_optional(call, 3) ? shape_count(call->in[3].shape) : 0;
	return (size_t)(table + kernel_spare_floats(call, 0)) * sizeof(float);
}

status KERNEL(attention_weights)(backend *b, const op_call *call)
{
	const attention_weights_params *p = call->params;
	const shape s = call->in[0].shape;
	const int cost = p->top_k > 0 && p->top_k < s.dim[3] ? TOP_COST : COST;
	if (kernel_optional(call, 3))
		turn(&call->in[3], call->scratch);
	return kernel_for(b, call, s.dim[0] * s.dim[1] * s.dim[2], shape_count(s) * cost, rows_of_weights);
}

/* --- the gradient ------------------------------------------------------------------------------------------------ */

/* Scratch of a head: its turned dbias, and a row. */
static int64_t head_floats(const op_call *call)
{
	return call->out[1].shape.dim[0] + call->in[0].shape.dim[3];
}

static void grad_of_head(const op_call *call, int64_t index)
{
	const attention_weights_params *p = call->params;
	const shape s = call->in[0].shape;
	const int64_t queries = s.dim[2], keys = s.dim[3], rows = call->out[1].shape.dim[0];
	const float *log_normalizer = kernel_optional(call, 2);
	float *sums = (float *)call->scratch + index * head_floats(call), *spare = sums + rows;
	memset(sums, 0, (size_t)rows * sizeof *sums);
	for (int64_t i = 0; i < queries; i++) {
		const int64_t row = index * queries + i, position = i + keys - queries;
		const float *w = (const float *)call->in[0].data + row * keys;
		const float *dw = (const float *)call->in[1].data + row * keys;
		float *ds = call->out[0].data ? (float *)call->out[0].data + row * keys : spare;
		if (log_normalizer && log_normalizer[row] == -INFINITY) {
			memset(ds, 0, (size_t)keys * sizeof *ds);
			continue;
		}
		const key_range r = keys_in_sight(position, keys, p->window, p->bidirectional);
		float along = 0.0f;
#pragma omp simd reduction(+ : along)
		for (int64_t j = r.first; j < r.end; j++)
			along += w[j] * dw[j];
#pragma omp simd
		for (int64_t j = r.first; j < r.end; j++)
			ds[j] = w[j] * (dw[j] - along);
		for (int64_t j = 0; j < r.first; j++)
			ds[j] = 0.0f;
		for (int64_t j = r.end; j < keys; j++)
			ds[j] = 0.0f;
		if (rows == 0 || r.first == r.end)
			continue;
		float *to = sums + (turned_at(rows, position, p->bias_first) + r.first);
#pragma omp simd
		for (int64_t j = 0; j < r.end - r.first; j++)
			to[j] += ds[r.first + j];
	}
}

size_t KERNEL(attention_weights_grad_scratch)(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)(call->in[0].shape.dim[0] * call->in[0].shape.dim[1] * head_floats(call)) * sizeof(float);
}

status KERNEL(attention_weights_grad)(backend *b, const op_call *call)
{
	const shape s = call->in[0].shape;
	const int64_t heads = s.dim[1], all = s.dim[0] * heads, rows = call->out[1].shape.dim[0];
	const int threads = kernel_threads(b, shape_count(s) * GRAD_COST);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
	for (int64_t index = 0; index < all; index++)
		grad_of_head(call, index);
	float *dbias = call->out[1].data;
	for (int64_t e = 0; dbias && e < rows * heads; e++) {
		const float *from = (const float *)call->scratch + e % heads * head_floats(call) + rows - 1 - e / heads;
		float sum = 0.0f;
		for (int64_t batch = 0; batch < s.dim[0]; batch++)
			sum += from[batch * heads * head_floats(call)];
		dbias[e] = sum;
	}
	return STATUS_OK;
}
