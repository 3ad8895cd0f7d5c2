/* linear over panels: y [rows, N] = alpha (x [rows, K] Wᵀ + b), W packed as in engine/tensor/panel.h.
 *
 * A row's bits may not depend on the batch, so every output is one tree of sums for any number of rows. K is cut into
 * slices whose length depends on K alone; a slice is one chain over k; the slices are added in order. Two kernels of
 * each type build that tree, in linear_narrow.cu and linear_wide.cu, one more for a single row (linear_row.cu), and one
 * for many rows of bf16 by wgmma (linear_wgmma.cu).
 *
 * Narrow, for few rows (decode): a block has one panel, and its warps (f32: parts of warps) have a slice each. Every
 * byte of the weight is read once, straight into registers, which takes most of the time. The sums of the slices are
 * added in shared memory.
 *
 * Wide, for many rows (prompts, large batches): a block has 4 or 8 panels and 64 or 128 rows. It walks over K with x
 * and the panels in shared memory, several stages ahead, and closes a slice at its end.
 *
 * bf16 and int8 panels are 32-bit words w[word][16]; a word has two or four inputs of an output. A lane passes them to
 * a tensor core with the weights as the left side: 16 outputs by 8 rows of x by 8 words per step. A lane reads two
 * neighbouring outputs at once, so output 2i is row i of the product and output 2i + 1 row i + 8. It takes words 2q and
 * 2q + 1 of the inputs, not q and q + 4, on both sides, so that its share of x is contiguous too.
 *
 * A bf16 weight is multiplied with x = hi + lo, two bf16, in two products. Tensor cores are idle in decode anyway, and
 * the lost part of x, 2^-16, is small beside the weights' 2^-8. For int8, rows are first converted to bytes, v =
 * round(x / s): Σ v q is Σ u q - 128 Σ q.
 *
 * Bytes: narrow reads the weight (4, 2 or 1 bytes per element) once for up to 32 rows (f32: 16), and x once per panel,
 * from the caches. Wide reads the weight once for 64 or 128 rows and x once for 64 or 128 outputs. Converting x for
 * int8 reads 4 and writes 1 byte per element; the products then read 1 where the others read 4. */
#include "cuda/linear_panels.h"

#include "cuda/program.cuh"

enum { QUANTISE_THREADS = 128 };

/* --- int8: rows become bytes ----------------------------------------------------------------- */

/* Block: row blockIdx.x. */
static __global__ void __launch_bounds__(QUANTISE_THREADS) quantise_kernel(panel_product p)
{
	unsigned *space = shared_memory<unsigned>(), top = 0;
	const int64_t row = blockIdx.x;
	wait_for_previous();
	let_next_begin();
	for (int64_t k = 4 * (int64_t)threadIdx.x; k < p.k; k += 4 * QUANTISE_THREADS)
		top = largest(top, four_of_x(p, row, k));
	top = largest_of_lanes(top);
	if (threadIdx.x % WARP == 0)
		space[threadIdx.x / WARP] = top;
	__syncthreads();
	for (int i = 0; i < QUANTISE_THREADS / WARP; i++)
		top = max(top, space[i]);
	const float s = row_scale_of(top, p.step);
	for (int64_t at = threadIdx.x; at < 4 * p.steps; at += QUANTISE_THREADS)
		p.bytes[row * 4 * p.steps + at] =
		    make_uint2(four_bytes(four_of_x(p, row, 8 * at), s), four_bytes(four_of_x(p, row, 8 * at + 4), s));
	if (threadIdx.x == 0)
		p.row_scale[row] = s;
}

/* --- the call -------------------------------------------------------------------------------------- */

/* Inputs per step. */
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
	p.step = params->step;
	p.type = weight->type;
	p.steps = panel_parts(p.k, step_inputs(weight->type));
	p.slice = weight->type == DTYPE_PANEL_F32 ? panel_parts(panel_parts(p.k, F32_SLICES), 4) * 4 : panel_parts(p.steps, SLICES);
	p.packed = cuda_packs(DTYPE_F32, p.k);
	return p;
}

/* True if every block of a product should convert or normalise x itself, instead of a kernel before it. Reading x, at
 * about 64 bytes a clock per processor, must then take less time than a kernel. */
static bool makes_x(const backend *b, const panel_product &p, int64_t panels)
{
	enum { MOST_BYTES = 96 << 10 };
	return p.packed && p.rows <= (p.type == DTYPE_PANEL_F32 ? F32_MADE_ROWS : MADE_ROWS) &&
	       panel_parts(panels, cuda_of(b)->processors) * p.rows * p.k * (int64_t)sizeof(float) <= MOST_BYTES;
}

static bool needs_bytes(const backend *b, const panel_product &p)
{
	return cuda_panels_is_wide(b, p) || !makes_x(b, p, p.panel_count);
}

size_t cuda_linear_panels_scratch(const backend *b, const op_call *call)
{
	const panel_product p = product_of(call);
	if (call->in[1].type != DTYPE_PANEL_INT8 || !needs_bytes(b, p))
		return 0;
	return (size_t)p.rows * ((size_t)p.steps * 4 * sizeof(uint2) + sizeof(float));
}

/* Weights that `blocks` blocks prefetch. Those of the running product, the next and the one after it share the L2
 * cache, so no more than a third of it. */
static panel_ahead ahead_of(const backend *b, const op_call *call, int64_t blocks)
{
	panel_ahead a = {};
	int64_t room = cuda_of(b)->ahead ? cuda_of(b)->cache_bytes / 3 / 16 * 16 : 0;
	for (int i = 0; i < OP_MAX_AHEAD && call->ahead[i] && room > 0; i++) {
		const tensor *w = call->ahead[i];
		const int64_t all = panel_parts(w->shape.dim[0], PANEL_WIDTH) * panel_stride(w->type, w->shape.dim[1]);
		const int64_t bytes = all < room ? all : room;
		a.at[a.count++] = {(const unsigned char *)w->data, (unsigned)bytes,
		                   (unsigned)(panel_parts(panel_parts(bytes, blocks), 16) * 16)};
		room -= bytes;
	}
	return a;
}

/* around: the operations around the product; if it is wide, siblings only. */
static status product(backend *b, const op_call *call, const panel_product &whole, const panel_chain &around)
{
	const dtype type = call->in[1].type;
	panel_chain c = around;
	panel_product p = whole;
	if (p.rows == 0 || p.n == 0)
		return STATUS_OK;
	if (type == DTYPE_PANEL_INT8 && !c.norm.weight && needs_bytes(b, p)) {
		p.bytes = (uint2 *)call->scratch;
		p.row_scale = (float *)(p.bytes + p.rows * p.steps * 4);
		TRY(cuda_launch_early(b, quantise_kernel, cuda_extent(p.rows), QUANTISE_THREADS,
		                      QUANTISE_THREADS / WARP * sizeof(unsigned), p));
	}
	c.ahead = ahead_of(b, call, panel_blocks<1>(p, c.siblings));
	return cuda_panels_is_wide(b, p) ? cuda_panels_wide(b, p, c.siblings, type) : cuda_panels_narrow(b, p, c, type);
}

status cuda_linear_panels(backend *b, const op_call *call)
{
	return product(b, call, product_of(call), {});
}

/* --- with the operations around it ----------------------------------------------------------------------- */

static bool are_siblings(const op_call *a, const op_call *b)
{
	const linear_params *p = (const linear_params *)a->params, *q = (const linear_params *)b->params;
	return a->in[0].data == b->in[0].data && a->in[1].type == b->in[1].type && p->alpha == q->alpha &&
	       p->step == q->step;
}

/* Description of the chain; false if its calls must run one by one. */
static bool chain_of(const backend *b, const panel_chain_calls *calls, panel_product *p, panel_chain *c)
{
	int64_t panels = 0;
	int wide = 0;
	*c = {};
	for (int i = 0; i < calls->products; i++) {
		const panel_product one = product_of(calls->product[i]);
		if (one.rows == 0 || one.n == 0 || !are_siblings(calls->product[0], calls->product[i]))
			return false;
		wide += cuda_panels_is_wide(b, one);
		panels += one.panel_count;
		if (i == 0)
			*p = one;
		else
			c->siblings.at[c->siblings.count++] = {one.panels, one.n, one.panel_count, one.bias, one.y};
	}
	if (wide)
		return wide == calls->products && wide > 1 && !calls->norm && calls->end == END_NONE;
	if (calls->norm) {
		row_plan plan;
		if (calls->norm->out[1].data || calls->norm->out[2].data || !makes_x(b, *p, panels) ||
		    !layernorm_plan(&plan, b, &calls->norm->in[0]))
			return false;
		c->norm = row_norm_of(calls->norm, &plan);
		c->normalised = calls->keeps_norm ? (float *)calls->norm->out[0].data : nullptr;
		p->x = (const float *)calls->norm->in[0].data;
	}
	c->end = calls->end;
	c->base = calls->base;
	c->factor = calls->factor;
	if (calls->y)
		p->y = calls->y;
	return true;
}

bool cuda_panels_can_chain(const backend *b, const panel_chain_calls *calls)
{
	panel_product p;
	panel_chain c;
	return chain_of(b, calls, &p, &c);
}

status cuda_panels_run_chain(backend *b, const panel_chain_calls *calls)
{
	panel_product p;
	panel_chain c;
	return chain_of(b, calls, &p, &c) ? product(b, calls->product[0], p, c) : STATUS_UNSUPPORTED;
}

bool cuda_panels_phase(const backend *b, const panel_chain_calls *calls, program_phase *out, size_t *shared)
{
	panel_product p;
	panel_chain c;
	return chain_of(b, calls, &p, &c) && cuda_panels_phase_of(p, c, p.type, out, shared);
}
