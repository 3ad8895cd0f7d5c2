/* decay_biases, decay_merge, decay_merge_grad.
 *
 * decay_merge: a warp has a head of a row, with its lanes along the channels. Bytes: q, y and u once, 8 a head for
 * log-normalizers.
 *
 * decay_merge_grad: the same warps write dq and, in scratch, ds and P of each row and head. Then a block takes WARP
 * columns of q or du and the rows of a part, and one thread for each column adds the parts in order. Bytes: q and du
 * twice, u and dq once. Equal calls give equal bits. */
#include "cuda/device.cuh"
#include "cuda/kernels.h"

extern "C" {
#include "engine/tensor/ops/decay.h"
}

enum { THREADS = 256, WARPS = THREADS / WARP, PART_ROWS = 256, MOST_PARTS = 64 };

static __global__ void __launch_bounds__(THREADS) decay_biases_kernel(decay_biases_params p, float *to)
{
	for (int64_t e = grid_first(); e < p.count * p.heads; e += grid_stride())
		to[e] = decay_table_bias(p.slope, p.hyper, p.first + e / p.heads);
}

status cuda_decay_biases(backend *b, const op_call *call)
{
	const decay_biases_params *p = (const decay_biases_params *)call->params;
	return cuda_launch(b, decay_biases_kernel, cuda_blocks(b, p->count * p->heads, THREADS), THREADS, 0, *p,
	                   (float *)call->out[0].data);
}

/* --- the call ------------------------------------------------------------------------------------------------ */

struct merge_call {
	const void *query, *first_k, *first_v, *y;
	const float *log_normalizer;
	const int32_t *positions; /* may be NULL */
	int64_t rows, length;
	int heads, key_width, value_width; /* Q / H, T / H */
	float scale, slope, hyper;
};

static merge_call merge_call_of(const op_call *call, int positions)
{
	const decay_params *p = (const decay_params *)call->params;
	const shape q = call->in[DECAY_Q].shape;
	merge_call c = {};
	c.query = call->in[DECAY_Q].data;
	c.first_k = call->in[DECAY_FIRST_K].data;
	c.first_v = call->in[DECAY_FIRST_V].data;
	c.y = call->in[DECAY_Y].data;
	c.log_normalizer = (const float *)call->in[DECAY_LOG_NORMALIZER].data;
	c.positions = (const int32_t *)cuda_optional(call, positions);
	c.rows = shape_rows(q);
	c.length = q.dim[1];
	c.heads = (int)p->heads;
	c.key_width = (int)(q.dim[2] / p->heads);
	c.value_width = (int)(shape_last(call->in[DECAY_Y].shape) / p->heads);
	c.scale = decay_scale(p->scale);
	c.slope = p->slope;
	c.hyper = p->hyper;
	return c;
}

/* The first key's score for head `at` (counted over all rows), in every lane. */
template <class T> static __device__ __forceinline__ float first_score(const merge_call &c, int64_t at)
{
	const int64_t row = at / c.heads;
	const T *q = (const T *)c.query + at * c.key_width, *k = (const T *)c.first_k + at % c.heads * c.key_width;
	float sum = 0.0f;
	for (int d = threadIdx.x % WARP; d < c.key_width; d += WARP)
		sum = __fmaf_rn(load_real(q + d), load_real(k + d), sum);
	const int64_t position = c.positions ? c.positions[row] : row % c.length;
	return __fmaf_rn(c.scale, warp_sum(sum), decay_bias(c.slope, c.hyper, position + 1));
}

static unsigned head_blocks(const backend *b, const merge_call &c)
{
	return cuda_blocks(b, c.rows * c.heads, WARPS);
}

/* --- decay_merge --------------------------------------------------------------------------------------------- */

template <class T>
static __global__ void __launch_bounds__(THREADS) decay_merge_kernel(merge_call c, T *u, float *log_normalizer)
{
	const int lane = threadIdx.x % WARP;
	for (int64_t at = grid_first() / WARP; at < c.rows * c.heads; at += grid_stride() / WARP) {
		const float s = first_score<T>(c, at), m = c.log_normalizer[at], top = fmaxf(0.0f, fmaxf(s, m));
		const float first = expf(s - top), rest = expf(m - top), total = expf(-top) + first + rest;
		const float by_y = rest / total, by_v = first / total;
		const T *y = (const T *)c.y + at * c.value_width,
		        *v = (const T *)c.first_v + at % c.heads * c.value_width;
		if (log_normalizer && lane == 0)
			log_normalizer[at] = top + logf(total);
		for (int d = lane; u && d < c.value_width; d += WARP)
			store_real(u + at * c.value_width + d,
			           __fmaf_rn(by_y, load_real(y + d), by_v * load_real(v + d)));
	}
}

status cuda_decay_merge(backend *b, const op_call *call)
{
	const merge_call c = merge_call_of(call, DECAY_POSITIONS);
	return cuda_by_type(call->in[DECAY_Q].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		return cuda_launch(b, decay_merge_kernel<T>, head_blocks(b, c), THREADS, 0, c, (T *)call->out[0].data,
		                   (float *)call->out[1].data);
	});
}

/* --- decay_merge_grad ---------------------------------------------------------------------------------------- */

/* slopes [rows, heads] ds, shares [rows, heads] P. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    decay_merge_grad_kernel(merge_call c, const T *du, T *dq, float *slopes, float *shares)
{
	const int lane = threadIdx.x % WARP;
	for (int64_t at = grid_first() / WARP; at < c.rows * c.heads; at += grid_stride() / WARP) {
		const float share = expf(first_score<T>(c, at) - c.log_normalizer[at]);
		const T *u = (const T *)c.y + at * c.value_width,
		        *k = (const T *)c.first_k + at % c.heads * c.key_width,
		        *v = (const T *)c.first_v + at % c.heads * c.value_width;
		float along = 0.0f;
		for (int d = lane; d < c.value_width; d += WARP)
			along = __fmaf_rn(load_real(du + at * c.value_width + d), load_real(v + d) - load_real(u + d),
			                  along);
		const float slope = c.scale * share * warp_sum(along);
		if (lane == 0) {
			slopes[at] = slope;
			shares[at] = share;
		}
		for (int d = lane; dq && d < c.key_width; d += WARP)
			store_real(dq + at * c.key_width + d, slope * load_real(k + d));
	}
}

/* parts [gridDim.y, heads · width]: Σ_row factor[row, head] x[row, head, ·] over the rows of each part. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    decay_columns_kernel(const T *x, const float *factor, int64_t rows, int heads, int width, float *parts)
{
	float *space = shared_memory<float>();
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, columns = heads * width;
	const int column = (int)blockIdx.x * WARP + lane, head = column / width;
	float sum = 0.0f;
	for (int64_t row = (int64_t)blockIdx.y * WARPS + warp; column < columns && row < rows;
	     row += (int64_t)gridDim.y * WARPS)
		sum = __fmaf_rn(factor[row * heads + head], load_real(x + row * columns + column), sum);
	space[threadIdx.x] = sum;
	__syncthreads();
	if (warp > 0 || column >= columns)
		return;
	for (int w = 1; w < WARPS; w++)
		sum += space[w * WARP + lane];
	parts[(int64_t)blockIdx.y * columns + column] = sum;
}

template <class T>
static __global__ void __launch_bounds__(THREADS)
    decay_parts_kernel(const float *parts, int count, int64_t columns, T *to)
{
	for (int64_t column = grid_first(); column < columns; column += grid_stride()) {
		float sum = 0.0f;
		for (int i = 0; i < count; i++)
			sum += parts[i * columns + column];
		store_real(to + column, sum);
	}
}

static unsigned decay_attention_parts_of(const merge_call &c)
{
	return (unsigned)min((c.rows + PART_ROWS - 1) / PART_ROWS, (int64_t)MOST_PARTS);
}

/* Bytes of ds and P, then of the parts of the wider of first_k and first_v. */
size_t cuda_decay_merge_grad_scratch(const backend *b, const op_call *call)
{
	(void)b;
	const merge_call c = merge_call_of(call, DECAY_GRAD_POSITIONS);
	return (size_t)(2 * c.rows * c.heads +
	                (int64_t)decay_attention_parts_of(c) * c.heads * max(c.key_width, c.value_width)) *
	       sizeof(float);
}

template <class T>
static status sum_columns(backend *b, const merge_call &c, const T *x, const float *factor, int width, float *parts,
                          T *to)
{
	const int64_t columns = (int64_t)c.heads * width;
	const dim3 grid(cuda_parts(columns, WARP), decay_attention_parts_of(c));
	if (!to)
		return STATUS_OK;
	TRY(cuda_launch(b, decay_columns_kernel<T>, grid, THREADS, THREADS * sizeof(float), x, factor, c.rows, c.heads,
	                width, parts));
	return cuda_launch(b, decay_parts_kernel<T>, cuda_blocks(b, columns, THREADS), THREADS, 0, parts,
	                   (int)decay_attention_parts_of(c), columns, to);
}

status cuda_decay_merge_grad(backend *b, const op_call *call)
{
	const merge_call c = merge_call_of(call, DECAY_GRAD_POSITIONS);
	float *slopes = (float *)call->scratch, *shares = slopes + c.rows * c.heads, *parts = shares + c.rows * c.heads;
	return cuda_by_type(call->in[DECAY_Q].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		const T *du = (const T *)call->in[DECAY_DU].data;
		TRY(cuda_launch(b, decay_merge_grad_kernel<T>, head_blocks(b, c), THREADS, 0, c, du,
		                (T *)call->out[0].data, slopes, shares));
		TRY(sum_columns(b, c, (const T *)c.query, slopes, c.key_width, parts, (T *)call->out[1].data));
		return sum_columns(b, c, du, shares, c.value_width, parts, (T *)call->out[2].data);
	});
}
