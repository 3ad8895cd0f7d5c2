/* quantize, with the order of additions in engine/tensor/ops/quantize.h.
 *
 * For a whole tensor, a warp sums each part of QUANTIZE_PART elements; its lanes are the lanes of the order. Then a
 * warp sums each part of these sums, until one is left, and a thread converts each 16 bytes of y. For rows, a warp
 * takes a row with all of its parts, whose sums are the second level's elements in the lanes.
 *
 * Bytes per element: 12 (x twice, y), with a fixed step 8. */
#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"

extern "C" {
#include "engine/tensor/ops/quantize.h"
}

enum { THREADS = 256, WARPS = THREADS / WARP };
static_assert((int)QUANTIZE_LANES == (int)WARP, "a lane of the order is a lane of a warp");

/* Return the sum to every lane; lane l adds lane l + 16, 8, 4, 2, 1. */
static __device__ __forceinline__ double lane_sum(double x)
{
#pragma unroll
	for (int flip = WARP / 2; flip > 0; flip /= 2)
		x += __shfl_xor_sync(ALL_LANES, x, flip);
	return x;
}

static __device__ __forceinline__ double term(float x)
{
	return (double)x * (double)x;
}
static __device__ __forceinline__ double term(double x)
{
	return x;
}

/* Sum of part `part` of n elements. */
template <class X> static __device__ __forceinline__ double part_sum(const X *x, int64_t n, int64_t part)
{
	const int64_t first = part * QUANTIZE_PART, end = min(n, first + QUANTIZE_PART);
	double sum = 0.0;
	for (int64_t i = first + threadIdx.x % WARP; i < end; i += WARP)
		sum += term(x[i]);
	return lane_sum(sum);
}

/* sums [parts] or, for a single last part, the step of `total` numbers, to both addresses. */
template <class X>
static __global__ void __launch_bounds__(THREADS)
    quantize_sum_kernel(const X *x, int64_t n, int64_t parts, double *sums, float *step, float *step_out, int64_t total)
{
	const int lane = threadIdx.x % WARP;
	for (int64_t part = grid_first() / WARP; part < parts; part += grid_stride() / WARP) {
		const double sum = part_sum(x, n, part);
		if (lane != 0)
			continue;
		sums[part] = sum;
		if (step)
			*step = quantize_step(sum, total);
		if (step_out)
			*step_out = *step;
	}
}

struct quantized_numbers {
	const float *x, *step; /* step NULL: QUANTIZE_FIXED_STEP */
	int64_t bits;
	template <int N> __device__ __forceinline__ numbers<N> at(int64_t i) const
	{
		const float by = step ? __ldg(step) : QUANTIZE_FIXED_STEP;
		numbers<N> v = load<N>(x + i);
#pragma unroll
		for (int j = 0; j < N; j++)
			v.at[j] = quantize_value(v.at[j], by, bits);
		return v;
	}
};

static __global__ void __launch_bounds__(THREADS)
    quantize_rows_kernel(const float *x, int64_t rows, int64_t width, float *y, float *step_out)
{
	const int lane = threadIdx.x % WARP;
	const int64_t parts = (width + QUANTIZE_PART - 1) / QUANTIZE_PART;
	for (int64_t row = grid_first() / WARP; row < rows; row += grid_stride() / WARP) {
		const float *from = x + row * width;
		double sum = 0.0;
		for (int64_t part = 0; part < parts; part++) {
			const double more = part_sum(from, width, part);
			if (part % WARP == lane)
				sum += more;
		}
		const float step = quantize_step(lane_sum(sum), width);
		if (step_out && lane == 0)
			step_out[row] = step;
		for (int64_t d = lane; y && d < width; d += WARP)
			y[row * width + d] = quantize_value(from[d], step, 8);
	}
}

static int64_t quantize_parts_of(int64_t n)
{
	return n > 0 ? (n + QUANTIZE_PART - 1) / QUANTIZE_PART : 1; /* without elements one part, with step 0 */
}

template <class X>
static status sum_level(backend *b, const X *x, int64_t n, double *sums, float *step, float *step_out, int64_t total)
{
	const int64_t parts = quantize_parts_of(n);
	const bool last = parts == 1;
	return cuda_launch(b, quantize_sum_kernel<X>, cuda_blocks(b, parts, WARPS), THREADS, 0, x, n, parts, sums,
	                   last ? step : nullptr, last ? step_out : nullptr, total);
}

/* Bytes of the sums of all levels, and of the step. */
size_t cuda_quantize_scratch(const backend *b, const op_call *call)
{
	(void)b;
	int64_t sums = 1, n = shape_count(call->in[0].shape);
	do
		sums += n = quantize_parts_of(n);
	while (n > 1);
	return (size_t)sums * sizeof(double);
}

static status quantize_tensor(backend *b, const op_call *call, int64_t bits)
{
	const float *x = (const float *)call->in[0].data;
	float *step = (float *)call->scratch, *step_out = (float *)call->out[1].data;
	double *sums = (double *)call->scratch + 1;
	const int64_t total = shape_count(call->in[0].shape);
	TRY(sum_level(b, x, total, sums, step, step_out, total));
	for (int64_t n = quantize_parts_of(total); n > 1; n = quantize_parts_of(n)) {
		TRY(sum_level(b, sums, n, sums + n, step, step_out, total));
		sums += n;
	}
	if (!call->out[0].data)
		return STATUS_OK;
	return cuda_elementwise(b, (float *)call->out[0].data, quantized_numbers{x, step, bits}, total);
}

status cuda_quantize(backend *b, const op_call *call)
{
	const quantize_params *p = (const quantize_params *)call->params;
	const float *x = (const float *)call->in[0].data;
	float *y = (float *)call->out[0].data, *step = (float *)call->out[1].data;
	const int64_t rows = shape_rows(call->in[0].shape), width = shape_last(call->in[0].shape);
	if (p->mode == QUANTIZE_TENSOR)
		return quantize_tensor(b, call, p->bits);
	if (p->mode == QUANTIZE_ROWS)
		return cuda_launch(b, quantize_rows_kernel, cuda_blocks(b, rows, WARPS), THREADS, 0, x, rows, width, y,
		                   step);
	return y ? cuda_elementwise(b, y, quantized_numbers{x, nullptr, p->bits}, rows * width) : STATUS_OK;
}
