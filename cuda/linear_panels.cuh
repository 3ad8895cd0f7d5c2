/* linear_panels.cuh - what the kernels of linear over panels share: the call taken apart, and what a lane gives to a tensor
 * core. linear_panels.cu says how the work is cut. */
#ifndef CUDA_LINEAR_PANELS_CUH
#define CUDA_LINEAR_PANELS_CUH

#include "cuda/backend.h"
#include "cuda/device.cuh"
#include "cuda/ptx.cuh"

extern "C" {
#include "engine/tensor/panel.h"
}

enum {
	STEP_WORDS = 8, /* of K in one product */
	SLICES = 8,     /* of bf16 and int8 */
	ROWS = 8,       /* of one product */
	F32_SLICES = 32
};

/* The call, taken apart. */
struct panel_product {
	int64_t rows, n, k;
	const unsigned char *panels;
	int64_t panel_bytes, panel_count;
	const float *x;
	uint2 *bytes;     /* int8: x as bytes [rows, 4 · steps], zeros past K */
	float *row_scale; /* int8 */
	const float *bias;
	float *y;
	float alpha;
	int64_t steps, slice; /* of K; of a slice (f32: inputs) */
	bool packed;          /* rows of x are 16-byte aligned */
};

__device__ __forceinline__ void finish(const panel_product &p, int64_t row, int64_t output, float sum)
{
	if (row < p.rows && output < p.n)
		p.y[row * p.n + output] = __fmul_rn(p.alpha, p.bias ? __fadd_rn(sum, p.bias[output]) : sum);
}

/* x[row][k … k + 3], zeros outside. */
__device__ __forceinline__ float4 four_of_x(const panel_product &p, int64_t row, int64_t k)
{
	const float *x = p.x + row * p.k + k;
	if (row >= p.rows || k >= p.k)
		return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
	if (p.packed)
		return *(const float4 *)x;
	return make_float4(x[0], k + 1 < p.k ? x[1] : 0.0f, k + 2 < p.k ? x[2] : 0.0f, k + 3 < p.k ? x[3] : 0.0f);
}

/* --- words: bf16 and int8 ----------------------------------------------------------------- */

/* Two floats as bf16, and what that leaves of them. */
__device__ __forceinline__ void split(float a, float b, unsigned &high, unsigned &low)
{
	high = two_bf16(a, b);
	low = two_bf16(a - __uint_as_float(high << 16), b - __uint_as_float(high & 0xffff0000u));
}

/* What the types differ in. A raw is a lane's share of a row of x in a step, an operand is it as products take it. */
struct bf16_words {
	typedef float4 raw;
	typedef uint4 operand;
	typedef float sum;
	enum { GROUP = PANEL_PAIR, HEADER = 0 };
	static __device__ __forceinline__ raw load(const panel_product &p, int64_t row, int64_t at)
	{
		return four_of_x(p, row, 4 * at);
	}
	static __device__ __forceinline__ operand make(raw x)
	{
		operand o;
		split(x.x, x.y, o.x, o.z);
		split(x.z, x.w, o.y, o.w);
		return o;
	}
	static __device__ __forceinline__ void product(sum d[4], const unsigned a[4], operand x)
	{
		const unsigned low[2] = {x.z, x.w}, high[2] = {x.x, x.y};
		mma_bf16(d, a, low);
		mma_bf16(d, a, high);
	}
	static __device__ __forceinline__ void store(const panel_product &p, int64_t row, int64_t output, sum total)
	{
		finish(p, row, output, total);
	}
};

struct int8_words {
	typedef uint2 raw;
	typedef uint2 operand;
	typedef int sum;
	enum { GROUP = PANEL_GROUP, HEADER = sizeof(panel_header) };
	static __device__ __forceinline__ raw load(const panel_product &p, int64_t row, int64_t at)
	{
		return row < p.rows && at < 4 * p.steps ? p.bytes[row * 4 * p.steps + at] : make_uint2(0, 0);
	}
	static __device__ __forceinline__ operand make(raw x)
	{
		return x;
	}
	static __device__ __forceinline__ void product(sum d[4], const unsigned a[4], operand x)
	{
		const unsigned b[2] = {x.x, x.y};
		mma_int8(d, a, b);
	}
	static __device__ __forceinline__ void store(const panel_product &p, int64_t row, int64_t output, sum total)
	{
		if (row >= p.rows || output >= p.n)
			return;
		const panel_header *header = (const panel_header *)(p.panels + output / PANEL_WIDTH * p.panel_bytes);
		const float unit = __fmul_rn(p.row_scale[row], header->scale[output % PANEL_WIDTH]);
		finish(p, row, output, __fmul_rn(unit, (float)total));
	}
};

/* The lane's weights of a step; zeros past K and past the last panel. */
template <class W>
__device__ __forceinline__ void load_weights(const panel_product &p, int64_t panel, int64_t step, unsigned a[4])
{
	const int lane = threadIdx.x % WARP;
	const int64_t word = step * STEP_WORDS + 2 * (lane % 4), words = (p.k + W::GROUP - 1) / W::GROUP;
	const unsigned *from = (const unsigned *)(p.panels + panel * p.panel_bytes + W::HEADER) + word * PANEL_WIDTH;
	const uint2 none = make_uint2(0, 0);
	const bool there = panel < p.panel_count;
	const uint2 one = there && word < words ? *(const uint2 *)(from + 2 * (lane / 4)) : none;
	const uint2 two = there && word + 1 < words ? *(const uint2 *)(from + PANEL_WIDTH + 2 * (lane / 4)) : none;
	a[0] = one.x;
	a[1] = one.y;
	a[2] = two.x;
	a[3] = two.y;
}

/* --- f32 ------------------------------------------------------------------------------------------ */

/* Add the products of four inputs in their order: sum[i] = Σ_k x[k] w[k][i]. */
__device__ __forceinline__ void add_four(float sum[4], float4 x, const float4 w[4])
{
	const float each[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
	for (int k = 0; k < 4; k++) {
		sum[0] = __fmaf_rn(each[k], w[k].x, sum[0]);
		sum[1] = __fmaf_rn(each[k], w[k].y, sum[1]);
		sum[2] = __fmaf_rn(each[k], w[k].z, sum[2]);
		sum[3] = __fmaf_rn(each[k], w[k].w, sum[3]);
	}
}

static inline int64_t panel_parts(int64_t count, int64_t size)
{
	return (count + size - 1) / size;
}

/* Each builds the same tree of sums; narrow for few rows, wide for many. `type` is the panels'. */
status cuda_panels_narrow(backend *b, const panel_product &p, dtype type);
status cuda_panels_wide(backend *b, const panel_product &p, dtype type);
/* Are the blocks of the wide kernels enough for the device? A block of theirs does the work of several narrow ones. */
bool cuda_panels_is_wide(const backend *b, const panel_product &p);

#endif
