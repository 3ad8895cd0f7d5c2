/* linear_ends.cuh - first and last steps of the panel products for few rows: where a block's x comes from, and what
 * turns a complete sum into an output. */
#ifndef CUDA_LINEAR_ENDS_CUH
#define CUDA_LINEAR_ENDS_CUH

#include "cuda/gelu.cuh"
#include "cuda/linear_panels.cuh"

/* Source of a block's x: memory in the form that products take (floats, or bytes for int8), or computed here. */
enum x_source {
	X_READY,
	X_ODD,   /* floats in rows that are not whole 16-byte packs */
	X_BYTES, /* int8: floats that are quantized to bytes */
	X_NORM   /* layernorm of floats; for int8, then quantized to bytes */
};

/* An output of a row and its other operands, which are loaded long before the sum is complete. */
struct closing {
	bool exists;
	int64_t at; /* index in y */
	int row;    /* row within the block */
	float bias, scale, base, factor;
};

/* Operands of output v of the block's rows · 16 that come with the weights. */
template <bool BYTES>
static __device__ __forceinline__ closing closing_of(const panel_product &p, int64_t panel, int64_t first, int rows,
                                                     int v)
{
	const int64_t output = panel * PANEL_WIDTH + v % PANEL_WIDTH;
	closing o = {};
	o.row = v / PANEL_WIDTH;
	o.exists = o.row < rows && output < p.n;
	o.at = (first + o.row) * p.n + output;
	if (o.exists && p.bias)
		o.bias = p.bias[output];
	if (o.exists && BYTES)
		o.scale = ((const panel_header *)(p.panels + panel * p.panel_bytes))->scale[v % PANEL_WIDTH];
	return o;
}

/* Load the operands that come with x. */
static __device__ __forceinline__ void read_operands(const panel_chain &c, closing &o)
{
	if (o.exists && c.base)
		o.base = c.base[o.at];
	if (o.exists && c.factor)
		o.factor = c.factor[o.at];
}

/* Same arithmetic as gelu, gate and add (gelu.cuh, elementwise.cuh). */
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
