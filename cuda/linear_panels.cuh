/* linear_panels.cuh - helpers for the kernels of linear over panels: the call's arguments, the operations around a
 * product, and a lane's operands for a tensor core. linear_panels.cu explains the division of work. */
#ifndef CUDA_LINEAR_PANELS_CUH
#define CUDA_LINEAR_PANELS_CUH

#include <type_traits>

#include "cuda/layernorm.cuh"
#include "cuda/linear_panels.h"

extern "C" {
#include "engine/tensor/panel.h"
}

/* More products with the same x, K, type and alpha, side by side in the grid. */
struct panel_sibling {
	const unsigned char *panels;
	int64_t n, panel_count;
	const float *bias;
	float *y;
};
enum { MOST_SIBLINGS = 2 };
struct panel_siblings {
	int count;
	panel_sibling at[MOST_SIBLINGS];
};

/* Packed weights that the blocks of a product prefetch, each its share of each tensor. Bytes are multiples of 16. */
struct panel_ahead {
	int count;
	struct {
		const unsigned char *from;
		unsigned bytes, share;
	} at[OP_MAX_AHEAD];
};

enum panel_end { END_NONE, END_GELU, END_GELU_TANH, END_GATE, END_ADD };

/* Operations around a product that one kernel runs. x is layernorm of p.x; there may be siblings; y becomes gelu(y),
 * base + y ⊙ factor or base + y. */
struct panel_chain {
	row_norm norm;     /* weight NULL: no layernorm */
	float *normalised; /* address of layernorm's result; NULL: not stored */
	panel_siblings siblings;
	panel_end end;
	const float *base, *factor;
	panel_ahead ahead;
};

/* Prefetch this block's share of the weights of a later product. All threads of a block call it. */
__device__ __forceinline__ void bring_ahead(const panel_ahead &a, unsigned block)
{
	for (int i = 0; i < a.count; i++) {
		const int64_t first = (int64_t)block * a.at[i].share;
		prefetch_bytes(a.at[i].from + first, min((int64_t)a.at[i].share, a.at[i].bytes - first), threadIdx.x,
		               blockDim.x);
	}
}

enum {
	STEP_WORDS = 8, /* words along K in one product */
	SLICES = 8,     /* slices of K, for bf16 and int8 */
	ROWS = 8,       /* rows in one product */
	MADE_ROWS = 2 * ROWS, /* most rows that a narrow block normalises or converts to bytes itself */
	F32_MADE_ROWS = 4,
	F32_SLICES = 32
};
enum { L2_CLOCK = 24, L1_CLOCK = 64 /* bytes per clock of a multiprocessor */ };

/* Arguments of the call. */
struct panel_product {
	int64_t rows, n, k;
	const unsigned char *panels;
	int64_t panel_bytes, panel_count;
	const float *x;
	uint2 *bytes;     /* int8: x as bytes [rows, 4 · steps], zeros past K */
	float *row_scale; /* int8 only */
	const float *bias;
	float *y;
	float alpha, step;
	dtype type;           /* the panels' */
	int64_t steps, slice; /* steps over K; per slice (f32: inputs) */
	bool packed;          /* rows of x are 16-byte aligned */
};

/* A sum over bytes, times the scales of the row of x and of the output's weights. */
__device__ __forceinline__ float with_scales(int sum, float row_scale, float weight_scale)
{
	return __fmul_rn(__fmul_rn(row_scale, weight_scale), (float)sum);
}
/* alpha (sum + bias) */
__device__ __forceinline__ float with_bias(const panel_product &p, float sum, float bias)
{
	return __fmul_rn(p.alpha, p.bias ? __fadd_rn(sum, bias) : sum);
}

/* A sum over bytes times the two scales; floats have none. */
__device__ __forceinline__ float real_sum(const panel_product &p, int64_t row, int64_t output, int sum)
{
	const panel_header *header = (const panel_header *)(p.panels + output / PANEL_WIDTH * p.panel_bytes);
	return with_scales(sum, p.row_scale[row], header->scale[output % PANEL_WIDTH]);
}
__device__ __forceinline__ float real_sum(const panel_product &, int64_t, int64_t, float sum)
{
	return sum;
}
/* Finish an output from its sum. */
__device__ __forceinline__ float finished(const panel_product &p, int64_t output, float sum)
{
	return with_bias(p, sum, p.bias ? p.bias[output] : 0.0f);
}
__device__ __forceinline__ void finish(const panel_product &p, int64_t row, int64_t output, float sum)
{
	if (row < p.rows && output < p.n)
		p.y[row * p.n + output] = finished(p, output, sum);
}

/* Store COUNT neighbouring outputs of a row, 2 or 4, if they exist; the first is a multiple of COUNT. */
template <int COUNT>
static __device__ __forceinline__ void store_outputs(const panel_product &p, int64_t row, int64_t output,
                                                     const float y[COUNT])
{
	typedef typename std::conditional<COUNT == 4, float4, float2>::type together;
	if (row >= p.rows)
		return;
	float *to = p.y + row * p.n + output;
	if (p.n % COUNT == 0 && output < p.n) {
		union {
			float one[COUNT];
			together all;
		} v;
#pragma unroll
		for (int e = 0; e < COUNT; e++)
			v.one[e] = y[e];
		*(together *)to = v.all;
		return;
	}
#pragma unroll
	for (int e = 0; e < COUNT; e++)
		if (output + e < p.n)
			to[e] = y[e];
}

/* x[k … k + 3] of a row, zeros past its end. */
__device__ __forceinline__ float4 four_of(const panel_product &p, const float *row, int64_t k)
{
	const float *x = row + k;
	if (k >= p.k)
		return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
	if (p.packed)
		return *(const float4 *)x;
	return make_float4(x[0], k + 1 < p.k ? x[1] : 0.0f, k + 2 < p.k ? x[2] : 0.0f, k + 3 < p.k ? x[3] : 0.0f);
}
/* x[row][k … k + 3], zeros outside. */
__device__ __forceinline__ float4 four_of_x(const panel_product &p, int64_t row, int64_t k)
{
	return row < p.rows ? four_of(p, p.x + row * p.k, k) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

/* --- int8: rows become bytes -------------------------------------------------------------- */

/* The largest |x| so far, compared by bits, where inf and NaN are the largest. */
__device__ __forceinline__ unsigned largest(unsigned top, float4 x)
{
	top = max(max(top, __float_as_uint(fabsf(x.x))), __float_as_uint(fabsf(x.y)));
	return max(max(top, __float_as_uint(fabsf(x.z))), __float_as_uint(fabsf(x.w)));
}
__device__ __forceinline__ unsigned largest_of_lanes(unsigned top)
{
#pragma unroll
	for (int flip = WARP / 2; flip > 0; flip /= 2)
		top = max(top, __shfl_xor_sync(ALL_LANES, top, flip));
	return top;
}

/* s = max |x| / 127, at least the smallest normal float, or `step` if that is not 0. NaN if a value of the row is not
 * finite. */
__device__ __forceinline__ float row_scale_of(unsigned top, float step)
{
	return top >= 0x7f800000u ? NAN : step > 0 ? step : fmaxf(__fdiv_rn(__uint_as_float(top), PANEL_INT8_MAX), FLT_MIN);
}

/* v = round(x / s), four of them; zeros if s is NaN. */
__device__ __forceinline__ unsigned four_bytes(float4 x, float s)
{
	if (isnan(s))
		return 0;
	const int v[4] = {__float2int_rn(__fdiv_rn(x.x, s)), __float2int_rn(__fdiv_rn(x.y, s)),
	                  __float2int_rn(__fdiv_rn(x.z, s)), __float2int_rn(__fdiv_rn(x.w, s))};
	return (v[0] & 0xff) | (v[1] & 0xff) << 8 | (v[2] & 0xff) << 16 | (unsigned)v[3] << 24;
}

/* --- words: bf16 and int8 ----------------------------------------------------------------- */

/* Two floats as bf16, and the remainders. */
__device__ __forceinline__ void split(float a, float b, unsigned &high, unsigned &low)
{
	high = two_bf16(a, b);
	low = two_bf16(a - __uint_as_float(high << 16), b - __uint_as_float(high & 0xffff0000u));
}

/* Differences between types. EXACT: the order of sums does not matter. `raw`: a lane's share of a row of x in a step;
 * `operand`: the same in the form that products take. */
struct bf16_words {
	typedef float4 raw;
	typedef uint4 operand;
	typedef float sum;
	enum { GROUP = PANEL_PAIR, HEADER = 0, TERMS = 2, EXACT = false };
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
	/* A step adds TERMS products, in this order; a lane's two words of x in each: */
	static __device__ __forceinline__ uint2 words(operand x, int term)
	{
		return term ? make_uint2(x.x, x.y) : make_uint2(x.z, x.w);
	}
	static __device__ __forceinline__ void term(sum d[4], const unsigned a[4], operand x, int i)
	{
		const uint2 w = words(x, i);
		const unsigned b[2] = {w.x, w.y};
		mma_bf16(d, a, b);
	}
	template <int n>
	static __device__ __forceinline__ void group_term(sum (&d)[n], const unsigned a[4], wgmma_view x, bool add)
	{
		wgmma_bf16(d, a, x, add);
	}
	static __device__ __forceinline__ float real(sum total, float, float)
	{
		return total;
	}
	static __device__ __forceinline__ void product(sum d[4], const unsigned a[4], operand x)
	{
		term(d, a, x, 0);
		term(d, a, x, 1);
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
	enum { GROUP = PANEL_GROUP, HEADER = sizeof(panel_header), TERMS = 1, EXACT = true };
	static __device__ __forceinline__ raw load(const panel_product &p, int64_t row, int64_t at)
	{
		return row < p.rows && at < 4 * p.steps ? p.bytes[row * 4 * p.steps + at] : make_uint2(0, 0);
	}
	static __device__ __forceinline__ operand make(raw x)
	{
		return x;
	}
	static __device__ __forceinline__ uint2 words(operand x, int)
	{
		return x;
	}
	static __device__ __forceinline__ void term(sum d[4], const unsigned a[4], operand x, int)
	{
		const unsigned b[2] = {x.x, x.y};
		mma_int8(d, a, b);
	}
	template <int n>
	static __device__ __forceinline__ void group_term(sum (&d)[n], const unsigned a[4], wgmma_view x, bool add)
	{
		wgmma_int8(d, a, x, add);
	}
	static __device__ __forceinline__ float real(sum total, float row_scale, float weight_scale)
	{
		return with_scales(total, row_scale, weight_scale);
	}
	static __device__ __forceinline__ void product(sum d[4], const unsigned a[4], operand x)
	{
		term(d, a, x, 0);
	}
	static __device__ __forceinline__ void store(const panel_product &p, int64_t row, int64_t output, sum total)
	{
		if (row < p.rows && output < p.n)
			finish(p, row, output, real_sum(p, row, output, total));
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
	const bool exists = panel < p.panel_count;
	const uint2 one = exists && word < words ? *(const uint2 *)(from + 2 * (lane / 4)) : none;
	const uint2 two = exists && word + 1 < words ? *(const uint2 *)(from + PANEL_WIDTH + 2 * (lane / 4)) : none;
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

static inline __device__ __host__ int64_t panel_parts(int64_t count, int64_t size)
{
	return (count + size - 1) / size;
}

/* Number of blocks of EACH panels for a product and its siblings. No block has panels of two products. */
template <int EACH> static inline int64_t panel_blocks(const panel_product &p, const panel_siblings &siblings)
{
	int64_t blocks = panel_parts(p.panel_count, EACH);
	for (int i = 0; i < siblings.count; i++)
		blocks += panel_parts(siblings.at[i].panel_count, EACH);
	return blocks;
}
/* Return the product that a block belongs to, and set `panel` to the block's first panel in it. */
template <int EACH>
__device__ __forceinline__ panel_product panel_product_of(const panel_product &first, const panel_siblings &siblings,
                                                          unsigned block, int64_t &panel)
{
	panel_product p = first;
	panel = (int64_t)block * EACH;
#pragma unroll
	for (int i = 0; i < MOST_SIBLINGS; i++) {
		const panel_sibling &s = siblings.at[i];
		if (i >= siblings.count || panel < p.panel_count)
			break;
		panel -= panel_parts(p.panel_count, EACH) * EACH;
		p.panels = s.panels;
		p.panel_count = s.panel_count;
		p.n = s.n;
		p.bias = s.bias;
		p.y = s.y;
	}
	return p;
}

/* Run a product. All forms build the same tree of sums; narrow is for few rows, wide for many. `type` is the panels'.
 * Siblings are the only part of a chain that wide knows. If narrow converts x to bytes itself, p.bytes is NULL. */
status cuda_panels_narrow(backend *b, const panel_product &p, const panel_chain &c, dtype type);
/* For one row, if cuda_panels_is_row accepts it (linear_row.cu). */
bool cuda_panels_is_row(const panel_product &p, const panel_chain &c, dtype type);
status cuda_panels_row(backend *b, const panel_product &p, const panel_chain &c, dtype type);
status cuda_panels_wide(backend *b, const panel_product &p, const panel_siblings &siblings, dtype type);
/* Wide by wgmma (linear_wgmma.cu): true if it may run, its least clocks, the launch. */
bool cuda_panels_may_wgmma(const backend *b, const panel_product &p);
int64_t cuda_panels_wgmma_clocks(const backend *b, const panel_product &p, const panel_siblings &siblings);
status cuda_panels_wgmma(backend *b, const panel_product &p, const panel_siblings &siblings);
/* True if the wide kernels have enough blocks for the device. One of them does the work of several narrow ones. */
bool cuda_panels_is_wide(const backend *b, const panel_product &p);

/* --- chains: fuse_serving.cu finds them, linear_panels.cu runs them ------------------------------------ */

/* Calls that one narrow kernel may run: an optional layernorm, products with the same x, and `end` on y if there is
 * only one product. */
struct panel_chain_calls {
	const op_call *norm; /* NULL: none */
	bool keeps_norm;     /* other calls read its result too */
	int products;
	const op_call *product[3];
	panel_end end;
	const float *base, *factor;
	float *y; /* result of the end */
};
/* True if one kernel may run these calls. Wide products take siblings only; a layernorm that is cheaper as a kernel of
 * its own is refused. */
bool cuda_panels_can_chain(const backend *b, const panel_chain_calls *calls);
status cuda_panels_run_chain(backend *b, const panel_chain_calls *calls);

#endif
