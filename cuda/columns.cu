/* scale_columns, mix_columns and their gradients.
 *
 * The gradient of the factors: a block takes a group's strip of columns and every n-th row. Its sums go to scratch,
 * [parts, groups], and cuda_sum_parts adds them in order. If groups have one column, a warp takes WARP groups, one per
 * lane; otherwise a warp's lanes share a group.
 *
 * The gradient of a mixture is one pass over its arguments. A lane has the same pack of columns of every row that its
 * warp takes, and sums dw in registers.
 *
 * Bytes per element, f32 / bf16: scale_columns 8 / 4, its gradient 8 / 4, mix_columns 12 / 6, its gradient 20 / 10. */
#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"
#include "cuda/reduce.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP, PART_ROWS = 256 };

template <class T> struct columns {
	const T *x;
	const float *w;
	T *y;
	int64_t width, group;
	template <int N> __device__ __forceinline__ void at(int64_t row, int64_t column) const
	{
		numbers<N> by, x = load<N>(this->x + row * width + column);
		if (group == 1) {
			by = load<N>(w + column);
		} else { /* a pack is within one group */
			const float one = w[quotient_of(column, group)];
#pragma unroll
			for (int i = 0; i < N; i++)
				by.at[i] = one;
		}
		store(y + row * width + column, product_of(x, by));
	}
};

status cuda_scale_columns(backend *b, const op_call *call)
{
	const int64_t group = ((const scale_columns_params *)call->params)->group;
	const shape s = call->out[0].shape;
	return cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		const columns<T> f = {(const T *)call->in[0].data, (const float *)call->in[1].data,
		                      (T *)call->out[0].data, shape_last(s), group};
		return cuda_elementwise_rows<T>(b, f, shape_rows(s), f.width, group == 1 || group % packed<T>::N == 0);
	});
}

/* A block: groups from blockIdx.x · columns on, of which a warp has `columns` (WARP, or one that its lanes share); rows
 * from blockIdx.y · WARPS on in steps of gridDim.y · WARPS. */
template <class T, bool SINGLE>
static __global__ void __launch_bounds__(THREADS)
    scale_columns_grad_kernel(float *parts, const T *x, const T *dy, int64_t rows, int64_t width, int64_t group)
{
	enum { COLUMNS = SINGLE ? WARP : 1 };
	float *space = shared_memory<float>(); /* [WARPS, COLUMNS] */
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	const int64_t groups = width / group, first = (int64_t)blockIdx.x * COLUMNS;
	float sum = 0.0f;
	for (int64_t row = (int64_t)blockIdx.y * WARPS + warp; row < rows; row += (int64_t)gridDim.y * WARPS) {
		const T *a = x + row * width + first * group, *b = dy + row * width + first * group;
		if constexpr (SINGLE) {
			if (first + lane < groups)
				sum = __fmaf_rn(load_real(a + lane), load_real(b + lane), sum);
		} else {
			for (int64_t c = lane; c < group; c += WARP)
				sum = __fmaf_rn(load_real(a + c), load_real(b + c), sum);
		}
	}
	if constexpr (!SINGLE)
		sum = warp_sum(sum);
	if (SINGLE || lane == 0)
		space[warp * COLUMNS + (SINGLE ? lane : 0)] = sum;
	__syncthreads();
	if (threadIdx.x >= COLUMNS || first + threadIdx.x >= groups)
		return;
	float total = 0.0f;
	for (int i = 0; i < WARPS; i++)
		total += space[i * COLUMNS + threadIdx.x];
	parts[blockIdx.y * groups + first + threadIdx.x] = total;
}

static dim3 grad_grid(const backend *b, const op_call *call)
{
	const int64_t group = ((const scale_columns_params *)call->params)->group;
	const int64_t rows = shape_rows(call->in[0].shape), groups = shape_count(call->out[0].shape);
	const int64_t strips = group == 1 ? (groups + WARP - 1) / WARP : groups;
	const int64_t most = (rows + PART_ROWS - 1) / PART_ROWS;
	int64_t parts = strips ? (int64_t)cuda_of(b)->processors * 8 / strips : 0;
	parts = parts < 1 ? 1 : parts > CUDA_MOST_YZ ? (int64_t)CUDA_MOST_YZ : parts;
	return dim3(cuda_extent(strips), (unsigned)(parts < most ? parts : most));
}

size_t cuda_scale_columns_grad_scratch(const backend *b, const op_call *call)
{
	return (size_t)grad_grid(b, call).y * (size_t)shape_count(call->out[0].shape) * sizeof(float);
}

status cuda_scale_columns_grad(backend *b, const op_call *call)
{
	const int64_t group = ((const scale_columns_params *)call->params)->group;
	const int64_t rows = shape_rows(call->in[0].shape), width = shape_last(call->in[0].shape);
	const dim3 grid = grad_grid(b, call);
	float *parts = (float *)call->scratch, *out = (float *)call->out[0].data;
	TRY(cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		return cuda_launch(
		    b, group == 1 ? scale_columns_grad_kernel<T, true> : scale_columns_grad_kernel<T, false>, grid,
		    THREADS, WARPS * WARP * sizeof(float), parts, (const T *)call->in[0].data,
		    (const T *)call->in[1].data, rows, width, group);
	}));
	return cuda_sum_parts(b, &out, 1, parts, grid.y, width / group, 1.0f);
}

/* --- mix_columns ------------------------------------------------------------------------------------- */

template <class T> struct mixture {
	const T *x, *other;
	const float *w;
	T *y;
	int64_t width;
	template <int N> __device__ __forceinline__ void at(int64_t row, int64_t column) const
	{
		const int64_t e = row * width + column;
		numbers<N> x = load<N>(this->x + e);
		const numbers<N> other = load<N>(this->other + e), w = load<N>(this->w + column);
#pragma unroll
		for (int i = 0; i < N; i++)
			x.at[i] = __fmaf_rn(w.at[i], other.at[i] - x.at[i], x.at[i]);
		store(y + e, x);
	}
};

/* Where the row of w begins. */
static int64_t first_of(const op_call *call)
{
	return ((const mix_columns_params *)call->params)->row * shape_last(call->in[0].shape);
}

status cuda_mix_columns(backend *b, const op_call *call)
{
	const shape s = call->out[0].shape;
	return cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		const mixture<T> f = {(const T *)call->in[0].data, (const T *)call->in[1].data,
		                      (const float *)call->in[2].data + first_of(call), (T *)call->out[0].data,
		                      shape_last(s)};
		return cuda_elementwise_rows<T>(b, f, shape_rows(s), f.width);
	});
}

template <class T> struct mixture_grad {
	const T *x, *other, *dy;
	const float *w;
	T *dx, *dother; /* NULL: not requested */
	float *parts;   /* [gridDim.y, width]: sums of dw; NULL: not requested */
	int64_t rows, width;
};

/* A block: columns from blockIdx.x · WARP · N on, rows from blockIdx.y · WARPS on in steps of gridDim.y · WARPS. */
template <class T, int N> static __global__ void __launch_bounds__(THREADS) mix_columns_grad_kernel(mixture_grad<T> o)
{
	float *space = shared_memory<float>(); /* [N, THREADS] */
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	const int64_t column = ((int64_t)blockIdx.x * WARP + lane) * N;
	numbers<N> sum = {}, w = {};
	if (column < o.width)
		w = load<N>(o.w + column);
	for (int64_t row = (int64_t)blockIdx.y * WARPS + warp; row < o.rows && column < o.width;
	     row += (int64_t)gridDim.y * WARPS) {
		const int64_t e = row * o.width + column;
		numbers<N> dx = load<N>(o.dy + e), dother;
		if (o.parts) {
			const numbers<N> x = load<N>(o.x + e), other = load<N>(o.other + e);
#pragma unroll
			for (int i = 0; i < N; i++)
				sum.at[i] = __fmaf_rn(dx.at[i], other.at[i] - x.at[i], sum.at[i]);
		}
#pragma unroll
		for (int i = 0; i < N; i++) {
			dother.at[i] = __fmul_rn(w.at[i], dx.at[i]);
			dx.at[i] = __fmul_rn(1.0f - w.at[i], dx.at[i]);
		}
		if (o.dother)
			store(o.dother + e, dother);
		if (o.dx)
			store(o.dx + e, dx);
	}
	if (!o.parts)
		return;
#pragma unroll
	for (int i = 0; i < N; i++)
		space[i * THREADS + threadIdx.x] = sum.at[i];
	__syncthreads();
	for (int j = threadIdx.x; j < WARP * N; j += THREADS) {
		const int64_t mine = (int64_t)blockIdx.x * WARP * N + j;
		float total = 0.0f;
		for (int i = 0; i < WARPS; i++)
			total += space[j % N * THREADS + i * WARP + j / N];
		if (mine < o.width)
			o.parts[blockIdx.y * o.width + mine] = total;
	}
}

/* Strips of columns and parts of rows; a part is short, since the kernel also writes rows. */
static dim3 mixture_grid(const backend *b, const op_call *call)
{
	enum { ROWS = 32 };
	const tensor *x = &call->in[0];
	const int64_t rows = shape_rows(x->shape), width = shape_last(x->shape);
	const int64_t strip = WARP * (cuda_packs(x->type, width) ? 16 / (int64_t)dtype_bytes(x->type) : 1);
	const int64_t strips = (width + strip - 1) / strip, most = (rows + ROWS - 1) / ROWS;
	int64_t parts = strips ? (int64_t)cuda_of(b)->processors * 8 / strips : 0;
	parts = parts < 1 ? 1 : parts > CUDA_MOST_YZ ? (int64_t)CUDA_MOST_YZ : parts;
	return dim3(cuda_extent(strips), (unsigned)(parts < most ? parts : most));
}

size_t cuda_mix_columns_grad_scratch(const backend *b, const op_call *call)
{
	const size_t width = (size_t)shape_last(call->in[0].shape);
	return call->out[2].data ? mixture_grid(b, call).y * width * sizeof(float) : 0;
}

/* dw from the sums of its row; the other rows become zeros. */
static status finish_mixture(backend *b, const op_call *call, const float *parts, int64_t n)
{
	const int64_t width = shape_last(call->in[0].shape), first = first_of(call);
	const int64_t sizes[] = {first, width, shape_count(call->in[2].shape) - first - width};
	float *dw = (float *)call->out[2].data;
	for (int i = 0; i < 3 && dw; dw += sizes[i++])
		if (sizes[i])
			TRY(cuda_sum_parts(b, &dw, 1, parts, i == 1 ? n : 0, sizes[i], 1.0f));
	return STATUS_OK;
}

status cuda_mix_columns_grad(backend *b, const op_call *call)
{
	const dim3 grid = mixture_grid(b, call);
	float *parts = call->out[2].data ? (float *)call->scratch : nullptr;
	const int64_t rows = shape_rows(call->in[0].shape), width = shape_last(call->in[0].shape);
	TRY(cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		enum { N = packed<T>::N };
		const bool packs = cuda_packs(call->in[0].type, width);
		const mixture_grad<T> o = {(const T *)call->in[0].data,
		                           (const T *)call->in[1].data,
		                           (const T *)call->in[3].data,
		                           (const float *)call->in[2].data + first_of(call),
		                           (T *)call->out[0].data,
		                           (T *)call->out[1].data,
		                           parts,
		                           rows,
		                           width};
		return cuda_launch(b, packs ? mix_columns_grad_kernel<T, N> : mix_columns_grad_kernel<T, 1>, grid,
		                   THREADS, THREADS * sizeof(float) * (packs ? N : 1), o);
	}));
	return finish_mixture(b, call, parts, grid.y);
}
