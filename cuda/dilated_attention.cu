/* dilated_attention: one branch after another (dilated_attention.cuh), a block for each tile of 64 queries of a
 * segment. A block walks over the tiles of keys with an online softmax (Milakov and Gimelshein 2018). It merges its
 * result into the sum of the earlier branches of its rows, by their log-normalizers:
 *
 *   y = e^{M' - M} y + e^{L_i - M} o_i,   M' = log Σ_{l<i} e^{L_l},   M = log Σ_{l≤i} e^{L_l}
 *
 * Blocks of a launch have different rows, so there are no atomics, and two runs give the same bits. In bf16 the sums
 * stay in f32 in scratch until the last branch.
 *
 * Bytes per branch: q, k and v of the kept rows once (12 D / r a token in f32), and y twice. In addition each tile of
 * queries reads the tiles of keys, which are expected in the L2 cache. */
#include "cuda/dilated_attention.cuh"
#include "cuda/kernels.h"

/* Convert a thread's 4 by 4 scores to exponentials; its rows are shared with the other 15 threads of its half warp. */
__device__ __forceinline__ void dilated_soften(float (&s)[4][4], float (&top)[4], float (&sum)[4], float (&out)[4][4])
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const float best = fmaxf(fmaxf(s[i][0], s[i][1]), fmaxf(s[i][2], s[i][3]));
		const float high = fmaxf(top[i], warp_max<16>(best)), base = high == -INFINITY ? 0.0f : high;
		const float shrink = expf(top[i] - base);
		float more = 0.0f;
		top[i] = high;
#pragma unroll
		for (int j = 0; j < 4; j++) {
			s[i][j] = expf(s[i][j] - base);
			more += s[i][j];
			out[i][j] *= shrink;
		}
		sum[i] = sum[i] * shrink + warp_sum<16>(more);
	}
}

/* Store one row's result, from its online softmax, in y and log_normalizer. column: in the head. */
__device__ __forceinline__ void dilated_leave(const dilated_call &c, const dilated_place &p, int row, float top,
                                              float sum, const float (&out)[4], int column, float *y)
{
	float shrink = 1.0f;
	if (p.zeros > 0.0f) { /* scores of 0 */
		const float high = fmaxf(top, 0.0f);
		shrink = expf(top - high);
		sum = sum * shrink + p.zeros * expf(-high);
		top = high;
	}
	if (sum == 0.0f)
		return;
	const float l = top + logf(sum);
	float keep = 1.0f, add = shrink / sum;
	if (c.mixture) {
		add *= dilated_weight(c, c.branch);
	} else {
		const float before = dilated_sum(c, p, c.branch, row), high = fmaxf(before, l);
		const float left = expf(before - high), right = expf(l - high);
		keep = left / (left + right);
		add *= right / (left + right);
	}
	if (blockIdx.y == 0 && threadIdx.x % 16 == 0)
		*dilated_normalizer(c, p, c.branch, row) = l;
#pragma unroll
	for (int j = 0; j < 4 && y; j++)
		if (column + j < c.dh) {
			float *to = y + p.at + row * p.stride + column + j;
			*to = keep * *to + add * out[j];
		}
}

template <class T>
__global__ void __launch_bounds__(PLAIN_THREADS, 1)
    dilated_attend(dilated_call c, const T *q, const T *k, const T *v, float *y)
{
	float *space = shared_memory<float>(), *weights = space + 2 * ATTENTION_TILE * PLAIN_PITCH,
	      *values = weights + ATTENTION_TILE * PLAIN_WIDE;
	const dilated_place p = dilated_here(c);
	const int column = (int)blockIdx.y * PLAIN_COLUMNS, last = min(p.first + ATTENTION_TILE, p.count);
	const int end = c.causal ? last : p.count, dh = (int)c.dh;
	float s[4][4], out[4][4] = {}, top[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY}, sum[4] = {};
	if (p.first >= p.count)
		return;
	for (int key = 0; key < end; key += ATTENTION_TILE) {
		const int64_t at = p.at + key * p.stride;
		plain_products<T>(s, {q + p.at + p.first * p.stride, p.stride, p.count - p.first},
		                  {k + at, p.stride, p.count - key}, dh, space);
#pragma unroll
		for (int i = 0; i < 16; i++)
			s[i / 4][i % 4] =
			    dilated_sees(c, p, p.first + plain_row() + i / 4, key + plain_column() + i % 4)
			        ? s[i / 4][i % 4] * c.scale
			        : -INFINITY;
		dilated_soften(s, top, sum, out);
		plain_keep(weights, s);
		plain_load<PLAIN_COLUMNS, PLAIN_WIDE>(values, v + at + column, p.stride, p.count - key, dh - column);
		__syncthreads();
		plain_accumulate<false>(out, weights, values);
		__syncthreads();
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		if (p.first + plain_row() + i < last)
			dilated_leave(c, p, p.first + plain_row() + i, top[i], sum[i], out[i], column + plain_column(),
			              y);
}

/* --- the op ------------------------------------------------------------------------------------- */

/* Bytes of the sums of y in bf16, and of the log-normalizers if they are not requested. */
size_t cuda_dilated_attention_scratch(const backend *b, const op_call *call)
{
	(void)b;
	const bool sums = call->in[0].type == DTYPE_BF16 && call->out[0].data;
	return ((sums ? (size_t)shape_count(call->out[0].shape) : 0) +
	        (call->out[1].data ? 0 : (size_t)shape_count(call->out[1].shape))) *
	       sizeof(float);
}

status cuda_dilated_attention(backend *b, const op_call *call)
{
	const int64_t count = shape_count(call->in[0].shape), norms = shape_count(call->out[1].shape);
	if (count == 0)
		return STATUS_OK;
	return cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		constexpr bool rounds = !std::is_same<T, float>::value;
		float *scratch = (float *)call->scratch, *y = (float *)call->out[0].data;
		if (rounds && y) {
			y = scratch;
			scratch += count;
		}
		dilated_call c = dilated_call_of(call, call->out[1].data ? (float *)call->out[1].data : scratch);
		TRY(dilated_set(b, c.log_normalizer, norms, -INFINITY));
		TRY(dilated_set(b, y, count, 0.0f));
		for (c.branch = 0; c.branch < c.pattern.branches; c.branch++)
			TRY(cuda_launch(b, dilated_attend<T>, dilated_grid(c), PLAIN_THREADS, DILATED_SPACE, c,
			                (T *)call->in[0].data, (T *)call->in[1].data, (T *)call->in[2].data, y));
		if (rounds && y)
			return cuda_launch(b, dilated_round<T>, dilated_blocks(count), PLAIN_THREADS, 0, y, count,
			                   (T *)call->out[0].data);
		return STATUS_OK;
	});
}
