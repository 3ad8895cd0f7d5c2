/* attention_weights, attention_weights_grad: a warp has a row and reads it in steps of 32. Each lane reads and writes
 * the same columns in every pass, so a row is its own working memory.
 *
 * The top_k-th largest number of a row is found bit by bit by counting. The gradient of the bias table is summed along
 * the diagonals of the matrix, one thread for each distance of a head, then over the sequences in order.
 *
 * Bytes: forward 8 per element and as many again from the caches for each pass, gradient 12, and 4 for dbias. */
#include "cuda/device.cuh"
#include "cuda/kernels.h"

extern "C" {
#include "engine/tensor/ops/attention_matrix.h"
}

enum { WARPS = 4, THREADS = WARPS * WARP };

struct weights_call {
	const float *scores, *bias;
	const int32_t *mask, *visible;
	float *weights, *log_normalizer; /* the last may be NULL */
	int64_t rows, heads, queries, keys, window, bias_first, top_k, period /* rows of visible */;
	bool bidirectional, uniform;
};

static __device__ __forceinline__ unsigned order_of(float x)
{
	return float_order(__float_as_uint(__fadd_rn(x, 0.0f))); /* -0 becomes 0 */
}

/* Return the order (float_order) of a row's k-th largest element. */
static __device__ __forceinline__ unsigned least_of(const float *a, key_range r, int64_t k)
{
	unsigned least = 0;
	for (int bit = 31; bit >= 0; bit--) {
		const unsigned tried = least | 1u << bit;
		int above = 0;
		for (int64_t j = r.first + threadIdx.x % WARP; j < r.end; j += WARP)
			above += order_of(a[j]) >= tried;
		above = warp_sum(above);
		if (above >= k)
			least = tried;
		if (above == k)
			break;
	}
	return least;
}

static __global__ void __launch_bounds__(THREADS) attention_weights_kernel(weights_call c)
{
	const int lane = threadIdx.x % WARP;
	for (int64_t row = grid_first() / WARP; row < c.rows; row += grid_stride() / WARP) {
		const int64_t b = row / c.queries / c.heads, head = row / c.queries % c.heads;
		const int64_t position = row % c.queries + c.keys - c.queries;
		key_range r = keys_in_sight(position, c.keys, c.window, c.bidirectional);
		const float *scores = c.scores + row * c.keys;
		float *a = c.weights + row * c.keys, top = -INFINITY, sum = 0.0f;
		for (int64_t j = r.first + lane; j < r.end; j += WARP) {
			float x = scores[j];
			if (c.bias)
				x = __fadd_rn(x, c.bias[(position - j - c.bias_first) * c.heads + head]);
			if ((c.mask && c.mask[b * c.keys + j] == 0) ||
			    (c.visible && c.visible[row % c.period * c.keys + j] == 0))
				x = -INFINITY;
			a[j] = x;
			top = x > top ? x : top;
		}
		top = warp_max(top);
		const bool cut = c.top_k > 0 && c.top_k < r.end - r.first;
		const unsigned least = cut ? least_of(a, r, c.top_k) : 0;
		const bool sees = top > -INFINITY;
		for (int64_t j = r.first + lane; sees && j < r.end; j += WARP) {
			const float x = cut && order_of(a[j]) < least ? 0.0f : expf(a[j] - top);
			a[j] = x;
			sum = __fadd_rn(sum, x);
		}
		sum = warp_sum(sum);
		for (int64_t j = r.first + lane; sees && j < r.end; j += WARP)
			a[j] = __fdiv_rn(a[j], sum);
		if (!sees)
			r.first = r.end = 0;
		const float elsewhere = !sees && c.uniform ? 1.0f / (float)c.keys : 0.0f;
		for (int64_t j = lane; j < r.first; j += WARP)
			a[j] = elsewhere;
		for (int64_t j = r.end + lane; j < c.keys; j += WARP)
			a[j] = elsewhere;
		if (lane == 0 && c.log_normalizer)
			c.log_normalizer[row] = sees ? top + logf(sum) : -INFINITY;
	}
}

/* Bytes of the matrix if it is not an output. */
size_t cuda_attention_weights_scratch(const backend *b, const op_call *call)
{
	(void)b;
	return call->out[0].data ? 0 : (size_t)shape_count(call->out[0].shape) * sizeof(float);
}

status cuda_attention_weights(backend *b, const op_call *call)
{
	const attention_weights_params *p = (const attention_weights_params *)call->params;
	const shape s = call->in[0].shape;
	weights_call c = {};
	c.scores = (const float *)call->in[0].data;
	c.mask = (const int32_t *)cuda_optional(call, 1);
	c.visible = (const int32_t *)cuda_optional(call, 2);
	c.bias = (const float *)cuda_optional(call, 3);
	c.weights = (float *)(call->out[0].data ? call->out[0].data : call->scratch);
	c.log_normalizer = (float *)call->out[1].data;
	c.rows = shape_rows(s);
	c.heads = s.dim[1];
	c.queries = s.dim[2];
	c.keys = s.dim[3];
	c.window = p->window;
	c.bias_first = p->bias_first;
	c.top_k = p->top_k;
	c.period = c.visible ? shape_rows(call->in[2].shape) : 1;
	c.bidirectional = p->bidirectional;
	c.uniform = p->uniform;
	return cuda_launch(b, attention_weights_kernel, dim3(cuda_blocks(b, c.rows, WARPS)), THREADS, 0, c);
}

/* --- the gradient ------------------------------------------------------------------------------------------------ */

static __global__ void __launch_bounds__(THREADS) attention_weights_grad_kernel(const float *weights,
                                                                               const float *dweights,
                                                                               const float *log_normalizer,
                                                                               int64_t rows, int64_t keys,
                                                                               float *dscores)
{
	const int lane = threadIdx.x % WARP;
	for (int64_t row = grid_first() / WARP; row < rows; row += grid_stride() / WARP) {
		const float *w = weights + row * keys, *dw = dweights + row * keys;
		const bool sees = !log_normalizer || log_normalizer[row] > -INFINITY;
		float along = 0.0f;
		for (int64_t j = lane; j < keys; j += WARP)
			along = __fmaf_rn(w[j], dw[j], along);
		along = warp_sum(along);
		for (int64_t j = lane; j < keys; j += WARP)
			dscores[row * keys + j] = sees ? w[j] * (dw[j] - along) : 0.0f;
	}
}

/* sums [B · H, T]: Σ_i of dscores at each distance, for one head of one sequence. */
static __global__ void __launch_bounds__(THREADS) sum_diagonals(const float *dscores, int64_t matrices, int64_t queries,
                                                               int64_t keys, int64_t first, int64_t distances,
                                                               float *sums)
{
	for (int64_t e = grid_first(); e < matrices * distances; e += grid_stride()) {
		const int64_t matrix = e / distances, offset = keys - queries - (e % distances + first);
		const int64_t end = keys - offset < queries ? keys - offset : queries; /* key i + offset */
		const float *from = dscores + matrix * queries * keys + offset;
		float sum = 0.0f;
		for (int64_t i = offset < 0 ? -offset : 0; i < end; i++)
			sum = __fadd_rn(sum, from[i * keys + i]);
		sums[e] = sum;
	}
}

static __global__ void __launch_bounds__(THREADS) sum_sequences(const float *sums, int64_t batches, int64_t heads,
                                                               int64_t distances, float *dbias)
{
	for (int64_t e = grid_first(); e < heads * distances; e += grid_stride()) {
		float sum = 0.0f;
		for (int64_t b = 0; b < batches; b++)
			sum = __fadd_rn(sum, sums[(b * heads + e % heads) * distances + e / heads]);
		dbias[e] = sum;
	}
}

/* Bytes of dscores if they are not an output, and of the sums of diagonals. */
size_t cuda_attention_weights_grad_scratch(const backend *b, const op_call *call)
{
	(void)b;
	const shape s = call->in[0].shape;
	const int64_t spare = call->out[0].data ? 0 : shape_count(s);
	return (size_t)(spare + s.dim[0] * s.dim[1] * call->out[1].shape.dim[0]) * sizeof(float);
}

status cuda_attention_weights_grad(backend *b, const op_call *call)
{
	const attention_weights_params *p = (const attention_weights_params *)call->params;
	const shape s = call->in[0].shape;
	const int64_t rows = shape_rows(s), keys = s.dim[3], distances = call->out[1].shape.dim[0];
	const int64_t matrices = s.dim[0] * s.dim[1];
	float *sums = (float *)call->scratch, *dscores = (float *)call->out[0].data;
	if (!dscores) {
		dscores = sums;
		sums += shape_count(s);
	}
	TRY(cuda_launch(b, attention_weights_grad_kernel, dim3(cuda_blocks(b, rows, WARPS)), THREADS, 0,
	                (const float *)call->in[0].data, (const float *)call->in[1].data,
	                (const float *)cuda_optional(call, 2), rows, keys, dscores));
	if (!call->out[1].data)
		return STATUS_OK;
	TRY(cuda_launch(b, sum_diagonals, dim3(cuda_blocks(b, matrices * distances, THREADS)), THREADS, 0,
	                (const float *)dscores, matrices, s.dim[2], keys, p->bias_first, distances, sums));
	return cuda_launch(b, sum_sequences, dim3(cuda_blocks(b, s.dim[1] * distances, THREADS)), THREADS, 0,
	                   (const float *)sums, s.dim[0], s.dim[1], distances, (float *)call->out[1].data);
}
