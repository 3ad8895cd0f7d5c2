/* scale_columns, scale_columns_grad.
 *
 * The gradient of the factors: a block takes a group's strip of columns and every n-th row. Its sums go to scratch,
 * [parts, groups], and cuda_sum_parts adds them in order. If groups have one column, a warp takes WARP groups, one per
 * lane; otherwise a warp's lanes share a group.
 *
 * Bytes per element, f32 / bf16: scale_columns 8 / 4, its gradient 8 / 4. */
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
