/* linear_ends.cuh - what the kernels of linear over panels for few rows share: where a block's x comes from, and what they
 * do with an output once its sum is there. */
#ifndef CUDA_LINEAR_ENDS_CUH
#define CUDA_LINEAR_ENDS_CUH

#include "cuda/gelu.cuh"
#include "cuda/linear_panels.cuh"

/* Source of a block's x: memory in the form that products take (floats, or bytes for int8), or computed here. */
enum x_source {
	X_READY,
	X_ODD,   /* floats in rows that are not whole packs of 16 bytes */
	X_BYTES, /* int8: bytes of floats */
	X_NORM   /* layernorm of floats; int8: then bytes */
};

/* An output of a row, and what it needs beside its sum, which is asked for long before that is there. */
struct closing {
	bool there;
	int64_t at; /* in y */
	int row;    /* for the block */
	float bias, scale, base, factor;
};

/* Output v of the block's rows · 16; what comes with the weights. */
template <bool BYTES>
static __device__ __forceinline__ closing closing_of(const panel_product &p, int64_t panel, int64_t first, int rows,
                                                     int v)
{
	const int64_t output = panel * PANEL_WIDTH + v % PANEL_WIDTH;
	closing o = {};
	o.row = v / PANEL_WIDTH;
	o.there = o.row < rows && output < p.n;
	o.at = (first + o.row) * p.n + output;
	if (o.there && p.bias)
		o.bias = p.bias[output];
	if (o.there && BYTES)
		o.scale = ((const panel_header *)(p.panels + panel * p.panel_bytes))->scale[v % PANEL_WIDTH];
	return o;
}

/* Data that accompanies x. */
static __device__ __forceinline__ void read_operands(const panel_chain &c, closing &o)
{
	if (o.there && c.base)
		o.base = c.base[o.at];
	if (o.there && c.factor)
		o.factor = c.factor[o.at];
}

/* As gelu, gate and add compute it (gelu.cu, elementwise.cuh). */
static __device__ __forceinline__ void close(const panel_product &p, const panel_chain &c, const closing &o, float sum)
{
	float y = with_bias(p, sum, o.bias);
	if (c.end == END_GELU)
		y = gelu_of<false>(y);
	if (c.end == END_GELU_TANH)
		y = gelu_of<true>(y);
	if (c.end == END_GATE)
		y = __fmaf_rn(y, o.factor, o.base);
	if (c.end == END_ADD)
		y = __fadd_rn(y, o.base);
	p.y[o.at] = y;
}

#endif
