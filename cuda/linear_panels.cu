/* linear over panels: y [rows, N] = alpha (x [rows, K] Wᵀ + b), W packed as in engine/tensor/panel.h.
 *
 * A row's bits may not depend on the batch, so every output is one tree of sums, whatever the rows: K is cut into
 * slices whose length depends on K alone; a slice is one chain over k; the slices are added in their order. Two kernels
 * of each type build that tree, in linear_narrow.cu and linear_wide.cu.
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

#include "cuda/linear_panels.cuh"

enum { QUANTISE_THREADS = 128 };

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

/* --- the call -------------------------------------------------------------------------------------- */

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
	p.panel_count = panel_parts(p.n, PANEL_WIDTH);
	p.x = (const float *)call->in[0].data;
	p.bias = (const float *)cuda_optional(call, 2);
	p.y = (float *)call->out[0].data;
	p.alpha = params->alpha;
	p.steps = panel_parts(p.k, step_inputs(weight->type));
	p.slice = weight->type == DTYPE_PANEL_F32 ? panel_parts(panel_parts(p.k, F32_SLICES), 4) * 4 : panel_parts(p.steps, SLICES);
	p.packed = cuda_packs(DTYPE_F32, p.k);
	return p;
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
	const dtype type = call->in[1].type;
	panel_product p = product_of(call);
	if (p.rows == 0 || p.n == 0)
		return STATUS_OK;
	if (type == DTYPE_PANEL_INT8) {
		p.bytes = (uint2 *)call->scratch;
		p.row_scale = (float *)(p.bytes + p.rows * p.steps * 4);
		TRY(cuda_launch(b, quantise_kernel, (unsigned)p.rows, QUANTISE_THREADS,
		                QUANTISE_THREADS / WARP * sizeof(unsigned), p));
	}
	return cuda_panels_is_wide(b, p) ? cuda_panels_wide(b, p, type) : cuda_panels_narrow(b, p, type);
}
