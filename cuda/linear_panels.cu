/* linear over panels: y [rows, N] = alpha (x [rows, K] Wᵀ + b), W packed as in engine/tensor/panel.h.
 *
 * A row's bits may not depend on the batch, so every output is one tree of sums, whatever the rows: K is cut into
 * slices whose length depends on K alone; a slice is one chain over k; the slices are added in their order. Two kernels
 * of each type build that tree.
 *
 * Narrow, for few rows (decode): a block has one panel, its slices side by side on warps (f32: on parts of warps).
 * Every byte of the weight is read once, straight into registers, and that is what the time goes to; the sums of the
 * slices meet in shared memory.
 *
 * Wide, for many rows (prompts, large batches): a block has 4 panels and 64 rows. It walks over K with x (f32: and the
 * panels) in shared memory, one stage ahead, and closes a slice when it comes to its end.
 *
 * bf16 and int8 panels are 32-bit words w[word][16], a word two or four inputs of an output. That is what a lane gives
 * to a tensor core, with the weights as the left side: 16 outputs by 8 rows of x by 8 words a step. A lane reads two
 * neighbouring outputs at once, so output 2i is row i of the product and output 2i + 1 row i + 8; and of the inputs it
 * takes words 2q and 2q + 1, not q and q + 4, on both sides, so that its share of x is neighbouring too. A bf16 weight
 * meets x = hi + lo, two bf16, in two products: tensor cores idle in decode anyway, and what that loses of x, 2^-16, is
 * little beside the 2^-8 of the weights. For int8 rows become bytes first, v = round(x / s): Σ v q is Σ u q - 128 Σ q.
 *
 * Bytes: narrow reads the weight (4, 2 or 1 bytes an element) once for up to 32 rows (f32: 16), and x once per panel,
 * from the caches; wide reads the weight once for 64 rows and x once for 64 outputs. Making bytes
 * of x for int8 reads 4 and writes 1 an element; the products then read 1 where the others read 4. */
#include "cuda/linear_panels.h"

#include <float.h>

#include "cuda/device.cuh"
#include "cuda/ptx.cuh"

extern "C" {
#include "engine/tensor/panel.h"
}

enum {
	STEP_WORDS = 8, /* of K in one product */
	SLICES = 8,     /* of bf16 and int8, a warp each */
	NARROW_THREADS = SLICES * WARP,
	ROWS = 8,                         /* of one product */
	WIDE_ROWS = 64,                   /* of a block */
	WIDE_PANELS = 4,                  /* and its panels */
	WIDE_HALF = WIDE_ROWS / 2 / ROWS, /* products side by side of a warp */
	WIDE_THREADS = 8 * WARP,
	STAGE = 4,               /* steps */
	STAGE_WIDTH = 4 * STAGE, /* operands of a row */
	STAGE_STRIDE = 20,       /* no two lanes of a product in one bank */
	F32_SLICES = 32,
	F32_NARROW_THREADS = F32_SLICES * 4,
	F32_WIDE_THREADS = 128,
	F32_STAGE = 16, /* inputs */
	F32_STAGE_STRIDE = 20,
	F32_WIDE_HELD = 8, /* rows of a thread */
	QUANTISE_THREADS = 128
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

static __device__ __forceinline__ void finish(const panel_product &p, int64_t row, int64_t output, float sum)
{
	if (row < p.rows && output < p.n)
		p.y[row * p.n + output] = __fmul_rn(p.alpha, p.bias ? __fadd_rn(sum, p.bias[output]) : sum);
}

/* x[row][k … k + 3], zeros outside. */
static __device__ __forceinline__ float4 four_of_x(const panel_product &p, int64_t row, int64_t k)
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
static __device__ __forceinline__ void split(float a, float b, unsigned &high, unsigned &low)
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
static __device__ __forceinline__ void load_weights(const panel_product &p, int64_t panel, int64_t step, unsigned a[4])
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

/* Block: panel blockIdx.x, rows from blockIdx.y · T · ROWS. */
template <class W, int T> __global__ void __launch_bounds__(NARROW_THREADS) narrow_kernel(panel_product p)
{
	typedef typename W::sum sum;
	enum { AT_ONCE = T > 2 ? 2 : 4 }; /* steps in flight */
	const int lane = threadIdx.x % WARP, slice = threadIdx.x / WARP;
	const int64_t panel = blockIdx.x, row = (int64_t)blockIdx.y * T * ROWS;
	const int64_t last = min((slice + 1) * p.slice, p.steps),
	              slices = p.slice ? (p.steps + p.slice - 1) / p.slice : 0;
	sum d[T][4] = {};
	for (int64_t step = slice * p.slice; step < last; step += AT_ONCE) {
		unsigned a[AT_ONCE][4] = {};
		typename W::raw x[AT_ONCE][T] = {};
#pragma unroll
		for (int i = 0; i < AT_ONCE; i++) {
			if (step + i >= last)
				continue;
			load_weights<W>(p, panel, step + i, a[i]);
#pragma unroll
			for (int t = 0; t < T; t++)
				x[i][t] = W::load(p, row + t * ROWS + lane / 4, (step + i) * 4 + lane % 4);
		}
#pragma unroll
		for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
			for (int t = 0; t < T; t++)
				if (step + i < last)
					W::product(d[t], a[i], W::make(x[i][t]));
	}
	sum *sums = shared_memory<sum>(); /* [slice][t][element][lane] */
#pragma unroll
	for (int t = 0; t < T; t++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			sums[((slice * T + t) * 4 + e) * WARP + lane] = d[t][e];
	__syncthreads();
	for (int v = threadIdx.x; v < T * ROWS * PANEL_WIDTH; v += NARROW_THREADS) {
		const int output = v % PANEL_WIDTH, r = v / PANEL_WIDTH % ROWS, t = v / PANEL_WIDTH / ROWS;
		const sum *from = sums + (t * 4 + output % 2 * 2 + r % 2) * WARP + output / 2 * 4 + r / 2;
		sum total = 0;
		for (int s = 0; s < slices; s++)
			total += from[s * T * 4 * WARP];
		W::store(p, row + t * ROWS + r, panel * PANEL_WIDTH + output, total);
	}
}

/* What a thread brings of a stage: operands `threadIdx.x % STAGE_WIDTH` of four rows. */
enum { BROUGHT = WIDE_ROWS * STAGE_WIDTH / WIDE_THREADS };

template <class W>
static __device__ __forceinline__ void load_stage(const panel_product &p, int64_t row, int64_t panel, int64_t step,
                                                  typename W::raw x[BROUGHT], unsigned a[STAGE][4])
{
#pragma unroll
	for (int i = 0; i < BROUGHT; i++)
		x[i] = W::load(p, row + threadIdx.x / STAGE_WIDTH + i * (WIDE_THREADS / STAGE_WIDTH),
		               step * 4 + threadIdx.x % STAGE_WIDTH);
#pragma unroll
	for (int i = 0; i < STAGE; i++)
		load_weights<W>(p, panel, step + i, a[i]);
}

/* Block: rows from blockIdx.x · WIDE_ROWS, panels from blockIdx.y · WIDE_PANELS; a warp one panel and half of the rows.
 */
template <class W> __global__ void __launch_bounds__(WIDE_THREADS) wide_kernel(panel_product p)
{
	typedef typename W::sum sum;
	typedef typename W::operand operand;
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	const int64_t row = (int64_t)blockIdx.x * WIDE_ROWS, panel = (int64_t)blockIdx.y * WIDE_PANELS + warp / 2;
	const int half = warp % 2 * WIDE_HALF * ROWS;
	operand *stages = shared_memory<operand>(); /* [2][WIDE_ROWS][STAGE_STRIDE] */
	typename W::raw next[BROUGHT];
	unsigned a[STAGE][4], after[STAGE][4];
	sum d[WIDE_HALF][4] = {}, total[WIDE_HALF][4] = {};
	int64_t left = p.slice; /* steps of the slice */
	load_stage<W>(p, row, panel, 0, next, after);
	for (int64_t step = 0; step < p.steps; step += STAGE) {
		operand *stage = stages + step / STAGE % 2 * WIDE_ROWS * STAGE_STRIDE;
#pragma unroll
		for (int i = 0; i < BROUGHT; i++)
			stage[(threadIdx.x / STAGE_WIDTH + i * (WIDE_THREADS / STAGE_WIDTH)) * STAGE_STRIDE +
			      threadIdx.x % STAGE_WIDTH] = W::make(next[i]);
#pragma unroll
		for (int i = 0; i < STAGE; i++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				a[i][e] = after[i][e];
		__syncthreads(); /* and nobody is in the stage before the last any more */
		load_stage<W>(p, row, panel, step + STAGE, next, after);
#pragma unroll
		for (int i = 0; i < STAGE; i++) {
			if (step + i >= p.steps)
				break;
#pragma unroll
			for (int t = 0; t < WIDE_HALF; t++)
				W::product(d[t], a[i],
				           stage[(half + t * ROWS + lane / 4) * STAGE_STRIDE + i * 4 + lane % 4]);
			if (--left > 0 && step + i + 1 < p.steps)
				continue;
			left = p.slice;
#pragma unroll
			for (int t = 0; t < WIDE_HALF; t++)
#pragma unroll
				for (int e = 0; e < 4; e++) {
					total[t][e] += d[t][e];
					d[t][e] = 0;
				}
		}
	}
	const int64_t output = panel * PANEL_WIDTH + 2 * (lane / 4);
#pragma unroll
	for (int t = 0; t < WIDE_HALF; t++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			W::store(p, row + half + t * ROWS + 2 * (lane % 4) + e % 2, output + e / 2, total[t][e]);
}

/* --- int8: rows become bytes ----------------------------------------------------------------- */

/* The largest |x| of a row by its bits, in which inf and NaN are the largest. */
static __device__ __forceinline__ unsigned largest(const panel_product &p, int64_t row, unsigned *space)
{
	unsigned top = 0;
	for (int64_t k = 4 * (int64_t)threadIdx.x; k < p.k; k += 4 * QUANTISE_THREADS) {
		const float4 x = four_of_x(p, row, k);
		top = max(max(top, __float_as_uint(fabsf(x.x))), __float_as_uint(fabsf(x.y)));
		top = max(max(top, __float_as_uint(fabsf(x.z))), __float_as_uint(fabsf(x.w)));
	}
#pragma unroll
	for (int flip = WARP / 2; flip > 0; flip /= 2)
		top = max(top, __shfl_xor_sync(ALL_LANES, top, flip));
	if (threadIdx.x % WARP == 0)
		space[threadIdx.x / WARP] = top;
	__syncthreads();
	for (int i = 0; i < QUANTISE_THREADS / WARP; i++)
		top = max(top, space[i]);
	return top;
}

/* v = round(x / s), four of them. */
static __device__ __forceinline__ unsigned four_bytes(float4 x, float s)
{
	const int v[4] = {__float2int_rn(__fdiv_rn(x.x, s)), __float2int_rn(__fdiv_rn(x.y, s)),
	                  __float2int_rn(__fdiv_rn(x.z, s)), __float2int_rn(__fdiv_rn(x.w, s))};
	return (v[0] & 0xff) | (v[1] & 0xff) << 8 | (v[2] & 0xff) << 16 | (unsigned)v[3] << 24;
}

/* Block: row blockIdx.x. s = max |x| / 127, not below the smallest normal float; NaN if a value is not finite. */
static __global__ void __launch_bounds__(QUANTISE_THREADS) quantise_kernel(panel_product p)
{
	const int64_t row = blockIdx.x;
	const unsigned top = largest(p, row, shared_memory<unsigned>());
	const bool finite = top < 0x7f800000u;
	const float s = fmaxf(__fdiv_rn(finite ? __uint_as_float(top) : 0.0f, PANEL_INT8_MAX), FLT_MIN);
	for (int64_t at = threadIdx.x; at < 4 * p.steps; at += QUANTISE_THREADS) {
		uint2 bytes = make_uint2(0, 0);
		if (finite) {
			bytes.x = four_bytes(four_of_x(p, row, 8 * at), s);
			bytes.y = four_bytes(four_of_x(p, row, 8 * at + 4), s);
		}
		p.bytes[row * 4 * p.steps + at] = bytes;
	}
	if (threadIdx.x == 0)
		p.row_scale[row] = finite ? s : NAN;
}

/* --- f32 ------------------------------------------------------------------------------------------ */

/* Add the products of four inputs in their order: sum[i] = Σ_k x[k] w[k][i]. */
static __device__ __forceinline__ void add_four(float sum[4], float4 x, const float4 w[4])
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

/* Block: panel blockIdx.x, R rows from blockIdx.y · R. Four lanes for a slice, four outputs each. */
template <int R> __global__ void __launch_bounds__(F32_NARROW_THREADS, R > 4 ? 3 : 4) f32_narrow_kernel(panel_product p)
{
	const int slice = threadIdx.x / 4, column = threadIdx.x % 4 * 4;
	const int64_t panel = blockIdx.x, row = (int64_t)blockIdx.y * R;
	const int64_t last = min((slice + 1) * p.slice, p.k), slices = p.slice ? (p.k + p.slice - 1) / p.slice : 0;
	const float *from = (const float *)(p.panels + panel * p.panel_bytes) + column;
	float sum[R][4] = {};
#pragma unroll(R > 4 ? 1 : 2)
	for (int64_t k = slice * p.slice; k < last; k += 4) {
		float4 w[4];
#pragma unroll
		for (int i = 0; i < 4; i++)
			w[i] = k + i < p.k ? *(const float4 *)(from + (k + i) * PANEL_WIDTH)
			                   : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
		for (int r = 0; r < R; r++)
			add_four(sum[r], four_of_x(p, row + r, k), w);
	}
	float *sums = shared_memory<float>(); /* [slice][r][PANEL_WIDTH] */
#pragma unroll
	for (int r = 0; r < R; r++)
		*(float4 *)(sums + (slice * R + r) * PANEL_WIDTH + column) =
		    make_float4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
	__syncthreads();
	for (int v = threadIdx.x; v < R * PANEL_WIDTH; v += F32_NARROW_THREADS) {
		float total = 0.0f;
#pragma unroll 8
		for (int s = 0; s < slices; s++)
			total += sums[s * R * PANEL_WIDTH + v];
		finish(p, row + v / PANEL_WIDTH, panel * PANEL_WIDTH + v % PANEL_WIDTH, total);
	}
}

/* A stage of f32: weights [inputs][4 panels × 16], then x [rows][stride]. */
enum {
	F32_OUTPUTS = WIDE_PANELS * PANEL_WIDTH,
	F32_STAGE_FLOATS = F32_STAGE * F32_OUTPUTS + WIDE_ROWS * F32_STAGE_STRIDE
};

static __device__ __forceinline__ void load_f32_stage(const panel_product &p, int64_t row, int64_t panel, int64_t k,
                                                      float *stage)
{
	float *x = stage + F32_STAGE * F32_OUTPUTS;
#pragma unroll
	for (int i = 0; i < F32_STAGE * F32_OUTPUTS / 4 / F32_WIDE_THREADS; i++) {
		const int at = threadIdx.x + i * F32_WIDE_THREADS, input = at / (F32_OUTPUTS / 4),
		          c = at % (F32_OUTPUTS / 4);
		const bool there = panel + c / 4 < p.panel_count && k + input < p.k;
		const unsigned char *from = p.panels + (panel + c / 4) * p.panel_bytes;
		copy_async(stage + input * F32_OUTPUTS + c * 4,
		           there ? (const float *)from + (k + input) * PANEL_WIDTH + c % 4 * 4
		                 : (const float *)p.panels,
		           there ? 16 : 0);
	}
#pragma unroll
	for (int i = 0; i < WIDE_ROWS * F32_STAGE / 4 / F32_WIDE_THREADS; i++) {
		const int at = threadIdx.x + i * F32_WIDE_THREADS, r = at / (F32_STAGE / 4),
		          c = at % (F32_STAGE / 4) * 4;
		if (p.packed) {
			const bool there = row + r < p.rows && k + c < p.k;
			copy_async(x + r * F32_STAGE_STRIDE + c, there ? p.x + (row + r) * p.k + k + c : p.x,
			           there ? 16 : 0);
		} else {
			*(float4 *)(x + r * F32_STAGE_STRIDE + c) = four_of_x(p, row + r, k + c);
		}
	}
	copy_commit();
}

/* Block: rows from blockIdx.x · WIDE_ROWS, panels from blockIdx.y · WIDE_PANELS; a thread four outputs of every eighth
 * row. */
static __global__ void __launch_bounds__(F32_WIDE_THREADS) f32_wide_kernel(panel_product p)
{
	const int column = threadIdx.x % (F32_OUTPUTS / 4) * 4, first = threadIdx.x / (F32_OUTPUTS / 4);
	const int64_t row = (int64_t)blockIdx.x * WIDE_ROWS, panel = (int64_t)blockIdx.y * WIDE_PANELS;
	float *stages = shared_memory<float>();
	float sum[F32_WIDE_HELD][4] = {}, total[F32_WIDE_HELD][4] = {};
	int64_t left = p.slice; /* inputs of the slice */
	load_f32_stage(p, row, panel, 0, stages);
	for (int64_t k = 0; k < p.k; k += F32_STAGE) {
		const float *w = stages + k / F32_STAGE % 2 * F32_STAGE_FLOATS, *x = w + F32_STAGE * F32_OUTPUTS;
		copy_wait<0>();
		__syncthreads(); /* and nobody is in the other stage any more */
		load_f32_stage(p, row, panel, k + F32_STAGE, stages + (k / F32_STAGE + 1) % 2 * F32_STAGE_FLOATS);
		for (int i = 0; i < F32_STAGE && k + i < p.k; i += 4) {
			float4 weight[4];
#pragma unroll
			for (int e = 0; e < 4; e++)
				weight[e] = *(const float4 *)(w + (i + e) * F32_OUTPUTS + column);
#pragma unroll
			for (int r = 0; r < F32_WIDE_HELD; r++)
				add_four(sum[r],
				         *(const float4 *)(x + (first + r * F32_WIDE_HELD) * F32_STAGE_STRIDE + i),
				         weight);
			left -= 4;
			if (left > 0 && k + i + 4 < p.k)
				continue;
			left = p.slice;
#pragma unroll
			for (int r = 0; r < F32_WIDE_HELD; r++)
#pragma unroll
				for (int e = 0; e < 4; e++) {
					total[r][e] += sum[r][e];
					sum[r][e] = 0.0f;
				}
		}
	}
	copy_wait<0>();
#pragma unroll
	for (int r = 0; r < F32_WIDE_HELD; r++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			finish(p, row + first + r * F32_WIDE_HELD, panel * PANEL_WIDTH + column + e, total[r][e]);
}

/* --- the call -------------------------------------------------------------------------------------- */

static int64_t parts(int64_t count, int64_t size)
{
	return (count + size - 1) / size;
}

/* Inputs of a step. */
static int64_t step_inputs(dtype type)
{
	return STEP_WORDS * (type == DTYPE_PANEL_INT8 ? PANEL_GROUP : PANEL_PAIR);
}

static panel_product product_of(const op_call *call)
{
	const linear_params *params = (const linear_params *)call->params;
	const tensor *weight = &call->in[1];
	panel_product p = {};
	p.rows = shape_rows(call->in[0].shape);
	p.n = weight->shape.dim[0];
	p.k = weight->shape.dim[1];
	p.panels = (const unsigned char *)weight->data;
	p.panel_bytes = (int64_t)panel_stride(weight->type, p.k);
	p.panel_count = parts(p.n, PANEL_WIDTH);
	p.x = (const float *)call->in[0].data;
	p.bias = (const float *)cuda_optional(call, 2);
	p.y = (float *)call->out[0].data;
	p.alpha = params->alpha;
	p.steps = parts(p.k, step_inputs(weight->type));
	p.slice = weight->type == DTYPE_PANEL_F32 ? parts(parts(p.k, F32_SLICES), 4) * 4 : parts(p.steps, SLICES);
	p.packed = cuda_packs(DTYPE_F32, p.k);
	return p;
}

/* Are the blocks of the wide kernels enough for the device? A block of theirs does the work of several narrow ones. */
static bool is_wide(const backend *b, const panel_product &p)
{
	enum { WORTH = 3 };
	return p.rows > 2 * ROWS &&
	       parts(p.rows, WIDE_ROWS) * parts(p.panel_count, WIDE_PANELS) * WORTH >= cuda_of(b)->processors;
}

static dim3 wide_grid(const panel_product &p)
{
	return dim3((unsigned)parts(p.rows, WIDE_ROWS), (unsigned)parts(p.panel_count, WIDE_PANELS));
}

static dim3 narrow_grid(const panel_product &p, int rows)
{
	return dim3((unsigned)p.panel_count, (unsigned)parts(p.rows, rows));
}

template <class W, int T> static status narrow(backend *b, const panel_product &p)
{
	return cuda_launch(b, narrow_kernel<W, T>, narrow_grid(p, T * ROWS), NARROW_THREADS,
	                   SLICES * T * 4 * WARP * sizeof(typename W::sum), p);
}

template <class W> static status words(backend *b, const panel_product &p)
{
	if (is_wide(b, p))
		return cuda_launch(b, wide_kernel<W>, wide_grid(p), WIDE_THREADS,
		                   2 * WIDE_ROWS * STAGE_STRIDE * sizeof(typename W::operand), p);
	return p.rows <= ROWS ? narrow<W, 1>(b, p) : p.rows <= 2 * ROWS ? narrow<W, 2>(b, p) : narrow<W, 4>(b, p);
}

template <int R> static status f32_narrow(backend *b, const panel_product &p)
{
	return cuda_launch(b, f32_narrow_kernel<R>, narrow_grid(p, R), F32_NARROW_THREADS,
	                   F32_SLICES * R * PANEL_WIDTH * sizeof(float), p);
}

static status f32(backend *b, const panel_product &p)
{
	if (is_wide(b, p))
		return cuda_launch(b, f32_wide_kernel, wide_grid(p), F32_WIDE_THREADS,
		                   2 * F32_STAGE_FLOATS * sizeof(float), p);
	return p.rows <= 1 ? f32_narrow<1>(b, p) : p.rows <= 4 ? f32_narrow<4>(b, p) : f32_narrow<16>(b, p);
}

size_t cuda_linear_panels_scratch(const backend *b, const op_call *call)
{
	(void)b;
	const panel_product p = product_of(call);
	if (call->in[1].type != DTYPE_PANEL_INT8)
		return 0;
	return (size_t)p.rows * ((size_t)p.steps * 4 * sizeof(uint2) + sizeof(float));
}

status cuda_linear_panels(backend *b, const op_call *call)
{
	panel_product p = product_of(call);
	if (p.rows == 0 || p.n == 0)
		return STATUS_OK;
	if (call->in[1].type == DTYPE_PANEL_F32)
		return f32(b, p);
	if (call->in[1].type == DTYPE_PANEL_BF16)
		return words<bf16_words>(b, p);
	p.bytes = (uint2 *)call->scratch;
	p.row_scale = (float *)(p.bytes + p.rows * p.steps * 4);
	TRY(cuda_launch(b, quantise_kernel, (unsigned)p.rows, QUANTISE_THREADS,
	                QUANTISE_THREADS / WARP * sizeof(unsigned), p));
	return words<int8_words>(b, p);
}
