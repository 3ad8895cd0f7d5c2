/* dot_rows, sum_rows, sum_squares, and sums of partial sums.
 *
 * dot_rows: a warp takes a row, 16 bytes at a time where rows are whole packs. The order of sums depends on the width
 * alone. Bytes per element: 8, or 4 if b is one row.
 *
 * sum_rows: a block takes a strip of columns and every n-th row; a thread sums its columns over its rows, 16 bytes of a
 * row at a time. The block's warps are added in shared memory. The blocks' sums go to scratch, [parts, D], and
 * cuda_sum_parts adds them. x is read once: 4 / 2 bytes per element (f32 / bf16), and 8 D bytes for each part of at
 * least 256 rows.
 *
 * sum_squares: in double, every thread over a fixed set of elements, then the threads of a block, then the blocks: 4
 * bytes per element. There are no atomics, so the same call on the same device gives the same bits. */
#include "cuda/reduce.cuh"

#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"

enum { THREADS = 256, WARPS = THREADS / WARP, PART_ROWS = 256 };

/* --- adding up parts --------------------------------------------------------------------- */

/* A block: WARP columns of one sum. Each warp adds every WARPS-th part, then the first warp adds the warps' sums. */
static __global__ void __launch_bounds__(THREADS)
    sum_parts_kernel(float *first, float *second, const float *parts, int64_t n, int64_t width, float factor)
{
	float *space = shared_memory<float>(), *out = blockIdx.y ? second : first;
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	const int64_t column = (int64_t)blockIdx.x * WARP + lane, stride = gridDim.y * width;
	if (!out)
		return; /* for the whole block */
	float sum = 0.0f;
	if (column < width)
		for (int64_t i = warp; i < n; i += WARPS)
			sum += parts[i * stride + blockIdx.y * width + column];
	space[threadIdx.x] = sum;
	__syncthreads();
	if (warp > 0 || column >= width)
		return;
	for (int i = 1; i < WARPS; i++)
		sum += space[i * WARP + lane];
	out[column] = factor * sum;
}

status cuda_sum_parts(backend *b, float *const out[], int sums, const float *parts, int64_t n, int64_t width,
                      float factor)
{
	const dim3 grid(cuda_parts(width, WARP), (unsigned)sums);
	return cuda_launch(b, sum_parts_kernel, grid, THREADS, THREADS * sizeof(float), out[0],
	                   sums > 1 ? out[1] : nullptr, parts, n, width, factor);
}

/* --- dot_rows ------------------------------------------------------------------------------ */

/* stride: b's, 0 if it is one row. */
template <int N>
static __global__ void __launch_bounds__(THREADS)
    dot_rows_kernel(float *y, const float *a, const float *b, int64_t rows, int64_t width, int64_t stride, float factor)
{
	const int lane = threadIdx.x % WARP;
	for (int64_t row = grid_first() / WARP; row < rows; row += grid_stride() / WARP) {
		float sum = 0.0f;
		for (int64_t column = lane * N; column < width; column += WARP * N) {
			const numbers<N> u = load<N>(a + row * width + column), v = load<N>(b + row * stride + column);
#pragma unroll
			for (int i = 0; i < N; i++)
				sum = __fmaf_rn(u.at[i], v.at[i], sum);
		}
		sum = warp_sum(sum);
		if (lane == 0)
			y[row] = factor * sum;
	}
}

status cuda_dot_rows(backend *b, const op_call *call)
{
	const tensor *x = &call->in[0];
	const int64_t rows = shape_rows(x->shape), width = shape_last(x->shape);
	const int64_t stride = call->in[1].shape.rank == 1 ? 0 : width;
	auto kernel = cuda_packs(x->type, width) ? dot_rows_kernel<packed<float>::N> : dot_rows_kernel<1>;
	return cuda_launch(b, kernel, cuda_blocks(b, rows, WARPS), THREADS, 0, (float *)call->out[0].data,
	                   (const float *)x->data, (const float *)call->in[1].data, rows, width, stride,
	                   ((const scale_params *)call->params)->factor);
}

/* --- sum_rows ------------------------------------------------------------------------------ */

/* A block: columns from blockIdx.x · WARP · N on, rows from blockIdx.y · WARPS on in steps of gridDim.y · WARPS. */
template <class T, int N>
static __global__ void __launch_bounds__(THREADS) sum_rows_kernel(float *parts, const T *x, int64_t rows, int64_t width)
{
	float *space = shared_memory<float>();
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	const int64_t column = ((int64_t)blockIdx.x * WARP + lane) * N;
	numbers<N> sum = {};
	if (column < width)
		for (int64_t row = (int64_t)blockIdx.y * WARPS + warp; row < rows; row += (int64_t)gridDim.y * WARPS)
			sum = sum_of(sum, load<N>(x + row * width + column));
#pragma unroll
	for (int i = 0; i < N; i++)
		space[i * THREADS + threadIdx.x] = sum.at[i];
	__syncthreads();
	for (int j = threadIdx.x; j < WARP * N; j += THREADS) {
		const int64_t mine = (int64_t)blockIdx.x * WARP * N + j;
		float total = 0.0f;
		for (int i = 0; i < WARPS; i++)
			total += space[j % N * THREADS + i * WARP + j / N];
		if (mine < width)
			parts[blockIdx.y * width + mine] = total;
	}
}

/* Divide a tensor into strips of columns and parts of rows: enough blocks for the device and no more. */
static dim3 strips_and_parts(const backend *b, const tensor *x)
{
	const int64_t rows = shape_rows(x->shape), width = shape_last(x->shape);
	const int64_t strip = WARP * (cuda_packs(x->type, width) ? 16 / (int64_t)dtype_bytes(x->type) : 1);
	const int64_t strips = (width + strip - 1) / strip, most = (rows + PART_ROWS - 1) / PART_ROWS;
	int64_t parts = strips ? (int64_t)cuda_of(b)->processors * 8 / strips : 0;
	parts = parts < 1 ? 1 : parts > CUDA_MOST_YZ ? (int64_t)CUDA_MOST_YZ : parts;
	return dim3(cuda_extent(strips), (unsigned)(parts < most ? parts : most));
}

size_t cuda_sum_rows_scratch(const backend *b, const op_call *call)
{
	return (size_t)strips_and_parts(b, &call->in[0]).y * (size_t)shape_last(call->in[0].shape) * sizeof(float);
}

status cuda_sum_rows(backend *b, const op_call *call)
{
	const tensor *x = &call->in[0];
	const int64_t rows = shape_rows(x->shape), width = shape_last(x->shape);
	const dim3 grid = strips_and_parts(b, x);
	float *parts = (float *)call->scratch, *out = (float *)call->out[0].data;
	TRY(cuda_by_type(x->type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		enum { N = packed<T>::N };
		const bool packs = cuda_packs(x->type, width);
		return cuda_launch(b, packs ? sum_rows_kernel<T, N> : sum_rows_kernel<T, 1>, grid, THREADS,
		                   THREADS * sizeof(float) * (packs ? N : 1), parts, (const T *)x->data, rows, width);
	}));
	return cuda_sum_parts(b, &out, 1, parts, grid.y, width, ((const scale_params *)call->params)->factor);
}

/* --- sum_squares ----------------------------------------------------------------------------- */

/* Return the sum to the first thread of the block; space: WARPS doubles. */
static __device__ __forceinline__ double block_sum_double(double x, double *space)
{
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	x = warp_sum(x);
	if (lane == 0)
		space[warp] = x;
	__syncthreads();
	x = 0.0;
	for (int i = 0; i < WARPS && threadIdx.x == 0; i++)
		x += space[i];
	return x;
}

static __global__ void __launch_bounds__(THREADS) sum_squares_kernel(double *parts, const float *x, int64_t n)
{
	enum { N = 4 };
	double sum = 0.0;
	for (int64_t i = grid_first() * N; i + N <= n; i += grid_stride() * N) {
		const numbers<N> v = load<N>(x + i);
#pragma unroll
		for (int j = 0; j < N; j++)
			sum += (double)v.at[j] * (double)v.at[j];
	}
	const int64_t last = n / N * N + grid_first();
	if (last < n)
		sum += (double)x[last] * (double)x[last];
	sum = block_sum_double(sum, shared_memory<double>());
	if (threadIdx.x == 0)
		parts[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(THREADS) sum_doubles_kernel(float *out, const double *parts, int n)
{
	double sum = 0.0;
	for (int i = threadIdx.x; i < n; i += THREADS)
		sum += parts[i];
	sum = block_sum_double(sum, shared_memory<double>());
	if (threadIdx.x == 0)
		*out = (float)sum;
}

static unsigned square_blocks(const backend *b, const op_call *call)
{
	return cuda_blocks(b, shape_count(call->in[0].shape), THREADS * 4);
}

size_t cuda_sum_squares_scratch(const backend *b, const op_call *call)
{
	return square_blocks(b, call) * sizeof(double);
}

status cuda_sum_squares(backend *b, const op_call *call)
{
	const unsigned blocks = square_blocks(b, call);
	double *parts = (double *)call->scratch;
	TRY(cuda_launch(b, sum_squares_kernel, blocks, THREADS, WARPS * sizeof(double), parts,
	                (const float *)call->in[0].data, shape_count(call->in[0].shape)));
	return cuda_launch(b, sum_doubles_kernel, 1, THREADS, WARPS * sizeof(double), (float *)call->out[0].data, parts,
	                   blocks);
}
