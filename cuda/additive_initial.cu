/* additive_initial and its gradient.
 *
 * The gradient sums p dg' and p dg' (m - g') of each column: a lane has the same pack of columns of every row that its
 * warp takes. A block's sums go to scratch, [parts, 2, D]; cuda_sum_parts adds them in order, and a warp adds the
 * columns of a head.
 *
 * Bytes per element, f32 / bf16: 8 / 4 and 8 / 4, and 8 and 4 per token and head for M. */
#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"
#include "cuda/reduce.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP };

template <class T> struct initial {
	const T *g;
	const float *normalizer, *score, *mean;
	T *to; /* may be NULL, and so may the next */
	float *normalizer_to;
	int64_t width, heads, dh;
	/* A pack is within one head. */
	template <int N> __device__ __forceinline__ void at(int64_t row, int64_t column) const
	{
		const int64_t head = quotient_of(column, dh), i = row * heads + head;
		const float m = normalizer[i], l = score[head], less = expf(-fabsf(m - l));
		const float share = __fdividef(l < m ? less : 1.0f, 1.0f + less);
		if (normalizer_to && column == head * dh)
			normalizer_to[i] = fmaxf(m, l) + log1pf(less);
		if (!to)
			return;
		numbers<N> x = load<N>(g + row * width + column);
		const numbers<N> mean = load<N>(this->mean + column);
#pragma unroll
		for (int n = 0; n < N; n++)
			x.at[n] = __fmaf_rn(share, mean.at[n] - x.at[n], x.at[n]);
		store(to + row * width + column, x);
	}
};

status cuda_additive_initial(backend *b, const op_call *call)
{
	const shape s = call->in[0].shape;
	return cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		initial<T> f = {};
		f.g = (const T *)call->in[0].data;
		f.normalizer = (const float *)call->in[1].data;
		f.score = (const float *)call->in[2].data;
		f.mean = (const float *)call->in[3].data;
		f.to = (T *)call->out[0].data;
		f.normalizer_to = (float *)call->out[1].data;
		f.width = shape_last(s);
		f.heads = shape_count(call->in[2].shape);
		f.dh = f.width / f.heads;
		return cuda_elementwise_rows<T>(b, f, shape_rows(s), f.width, f.dh % packed<T>::N == 0);
	});
}

template <class T> struct initial_grad {
	const float *score, *mean;
	const T *g;
	const float *normalizer;
	const T *dg;
	float *parts; /* [gridDim.y, 2, width] */
	int64_t rows, width, heads, dh;
};

/* A block: columns from blockIdx.x · WARP · N on, rows from blockIdx.y · WARPS on in steps of gridDim.y · WARPS. */
template <class T, int N> static __global__ void __launch_bounds__(THREADS) initial_grad_kernel(initial_grad<T> o)
{
	float *space = shared_memory<float>(); /* [2, N, THREADS] */
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	const int64_t column = ((int64_t)blockIdx.x * WARP + lane) * N;
	numbers<N> sum[2] = {}, mean = {};
	float score = 0.0f;
	int64_t head = 0;
	if (column < o.width) {
		head = quotient_of(column, o.dh);
		score = o.score[head];
		mean = load<N>(o.mean + column);
	}
	for (int64_t row = (int64_t)blockIdx.y * WARPS + warp; row < o.rows && column < o.width;
	     row += (int64_t)gridDim.y * WARPS) {
		const float share = expf(score - o.normalizer[row * o.heads + head]);
		const numbers<N> g = load<N>(o.g + row * o.width + column), dg = load<N>(o.dg + row * o.width + column);
#pragma unroll
		for (int i = 0; i < N; i++) {
			const float part = __fmul_rn(share, dg.at[i]);
			sum[0].at[i] = __fadd_rn(sum[0].at[i], part);
			sum[1].at[i] = __fmaf_rn(part, mean.at[i] - g.at[i], sum[1].at[i]);
		}
	}
#pragma unroll
	for (int i = 0; i < N; i++)
		for (int which = 0; which < 2; which++)
			space[(which * N + i) * THREADS + threadIdx.x] = sum[which].at[i];
	__syncthreads();
	for (int j = threadIdx.x; j < 2 * WARP * N; j += THREADS) {
		const int which = j / (WARP * N), k = j % (WARP * N);
		const int64_t mine = (int64_t)blockIdx.x * WARP * N + k;
		float total = 0.0f;
		for (int i = 0; i < WARPS; i++)
			total += space[(which * N + k % N) * THREADS + i * WARP + k / N];
		if (mine < o.width)
			o.parts[(blockIdx.y * 2 + which) * o.width + mine] = total;
	}
}

/* dl[h] = Σ of the columns of head h; a warp takes a head. */
static __global__ void __launch_bounds__(THREADS) heads_kernel(float *dl, const float *sums, int64_t heads, int64_t dh)
{
	for (int64_t h = grid_first() / WARP; h < heads; h += grid_stride() / WARP) {
		float sum = 0.0f;
		for (int64_t c = threadIdx.x % WARP; c < dh; c += WARP)
			sum += sums[h * dh + c];
		sum = warp_sum(sum);
		if (threadIdx.x % WARP == 0)
			dl[h] = sum;
	}
}

template <class T> static bool grad_packs(const op_call *call)
{
	const int64_t width = shape_last(call->in[2].shape), heads = shape_count(call->in[0].shape);
	return cuda_packs(call->in[2].type, width) && width / heads % packed<T>::N == 0;
}

static dim3 grad_grid(const backend *b, const op_call *call, int64_t pack)
{
	enum { ROWS = 32 };
	const int64_t rows = shape_rows(call->in[2].shape), width = shape_last(call->in[2].shape);
	const int64_t strips = (width + WARP * pack - 1) / (WARP * pack), most = (rows + ROWS - 1) / ROWS;
	int64_t parts = strips ? (int64_t)cuda_of(b)->processors * 8 / strips : 0;
	parts = parts < 1 ? 1 : parts > CUDA_MOST_YZ ? (int64_t)CUDA_MOST_YZ : parts;
	return dim3(cuda_extent(strips), (unsigned)(parts < most ? parts : most));
}

/* The sums of all rows, [2, D], and those of each part. */
size_t cuda_additive_initial_grad_scratch(const backend *b, const op_call *call)
{
	return (size_t)(grad_grid(b, call, 8).y + 1) * 2 * (size_t)shape_last(call->in[2].shape) * sizeof(float);
}

status cuda_additive_initial_grad(backend *b, const op_call *call)
{
	const int64_t rows = shape_rows(call->in[2].shape), width = shape_last(call->in[2].shape);
	const int64_t heads = shape_count(call->in[0].shape);
	const unsigned parts = grad_grid(b, call, 8).y;
	float *sums = (float *)call->scratch, *dl = (float *)call->out[0].data, *dm = (float *)call->out[1].data;
	if (rows > 0)
		TRY(cuda_by_type(call->in[2].type, [&](auto *type) {
			typedef std::remove_pointer_t<decltype(type)> T;
			enum { N = packed<T>::N };
			const bool packs = grad_packs<T>(call);
			dim3 grid = grad_grid(b, call, packs ? N : 1);
			grid.y = parts;
			initial_grad<T> o = {};
			o.score = (const float *)call->in[0].data;
			o.mean = (const float *)call->in[1].data;
			o.g = (const T *)call->in[2].data;
			o.normalizer = (const float *)call->in[3].data;
			o.dg = (const T *)call->in[4].data;
			o.parts = sums + 2 * width;
			o.rows = rows;
			o.width = width;
			o.heads = heads;
			o.dh = width / heads;
			return cuda_launch(b, packs ? initial_grad_kernel<T, N> : initial_grad_kernel<T, 1>, grid, THREADS,
			                   2 * THREADS * sizeof(float) * (packs ? N : 1), o);
		}));
	float *score_sums = sums + width, *means = dm ? dm : sums;
	float *out[] = {means, score_sums};
	TRY(cuda_sum_parts(b, out, 2, sums + 2 * width, rows > 0 ? parts : 0, width, 1.0f));
	return dl ? cuda_launch(b, heads_kernel, cuda_blocks(b, heads, WARPS), THREADS, 0, dl, score_sums, heads,
	                        width / heads)
	          : STATUS_OK;
}
