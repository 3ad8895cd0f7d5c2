/* linear over panels for one row. A block has one panel, cut into slices for its warps as in
 * linear_narrow.cu, and the bits are the same. linear_row.cuh explains how. */
#include "cuda/linear_row.cuh"

/* A block's work: panel `block` of the product and its siblings, one slice per warp. */
template <class W, x_source SOURCE>
static __device__ __forceinline__ void row_panel(const panel_product &whole, const panel_chain &c, unsigned block)
{
	typedef typename W::sum sum;
	typedef typename W::operand operand;
	enum { PACKS = STEP_WORDS * (int)W::GROUP / 4 };
	const int lane = threadIdx.x % WARP, slice = threadIdx.x / WARP;
	int64_t panel;
	const panel_product p = panel_product_of<1>(whole, c.siblings, block, panel);
	const int length = (int)p.slice, steps = (int)p.steps, first = slice * length,
	          mine = min(steps - first, length);
	row_space<W> *s = shared_memory<row_space<W>>();
	operand *operands = shared_memory<operand>(sizeof *s);

	/* Weights of the first steps, as load_weights has them; the rest goes to the L2 cache. */
	const int word = first * STEP_WORDS + 2 * (lane % 4),
	          words = min(((int)p.k + (int)W::GROUP - 1) / (int)W::GROUP, (first + mine) * STEP_WORDS) - word;
	const unsigned char *panel_at = p.panels + panel * p.panel_bytes + W::HEADER;
	const unsigned char *weights = panel_at + (word * PANEL_WIDTH + 2 * (lane / 4)) * 4;
	unsigned a[HELD][4];
	auto bring = [&](unsigned to[4], int step) {
		const uint2 none = make_uint2(0, 0);
		const uint2 one = step * STEP_WORDS < words ? *(const uint2 *)(weights + step * STEP_BYTES) : none;
		const uint2 two = step * STEP_WORDS + 1 < words
		                      ? *(const uint2 *)(weights + step * STEP_BYTES + PANEL_WIDTH * 4)
		                      : none;
		to[0] = one.x;
		to[1] = one.y;
		to[2] = two.x;
		to[3] = two.y;
	};
#pragma unroll
	for (int i = 0; i < HELD; i++)
		bring(a[i], i);
	prefetch_bytes(
	    panel_at + (first + HELD) * STEP_BYTES,
	    min((int64_t)(mine - HELD) * STEP_BYTES, p.panel_bytes - W::HEADER - (first + HELD) * STEP_BYTES), lane,
	    WARP);
	bring_ahead(c.ahead, block);
	closing o = {};
	const float scale = open_row<W, SOURCE>(
	    p, c, panel, block, first * PACKS, (first + mine) * PACKS, s, operands,
	    [] {
		    wait_for_previous();
		    let_next_begin();
	    },
	    o);

	sum d[4] = {};
	const operand *from = operands + first * 4 + lane % 4;
	for (int step = 0; step < mine; step += HELD) {
		operand x[HELD];
#pragma unroll
		for (int i = 0; i < HELD; i++) {
			x[i] = {};
			if (lane < 4 && step + i < mine)
				x[i] = from[(step + i) * 4];
		}
#pragma unroll
		for (int i = 0; i < HELD; i++) {
			if (step + i >= mine)
				break;
			W::product(d, a[i], x[i]);
			if (step + i + HELD < mine)
				bring(a[i], step + i + HELD);
		}
	}
	close_row<W>(p, c, o, scale, d, s->sums);
}

template <class W, x_source SOURCE>
__global__ void __launch_bounds__(ROW_BLOCK, 2) row_kernel(panel_product whole, panel_chain c)
{
	row_panel<W, SOURCE>(whole, c, blockIdx.x);
}

template <class W, x_source SOURCE> static status row(backend *b, const panel_product &p, const panel_chain &c)
{
	return cuda_launch_early(b, row_kernel<W, SOURCE>, cuda_extent(panel_blocks<1>(p, c.siblings)), ROW_BLOCK,
	                         row_bytes<W>(p), p, c);
}

bool cuda_panels_is_row(const panel_product &p, const panel_chain &c, dtype type)
{
	const size_t operand = type == DTYPE_PANEL_BF16 ? sizeof(bf16_words::operand) : sizeof(int8_words::operand);
	return p.rows == 1 && p.packed && p.steps > 0 &&
	       (type == DTYPE_PANEL_BF16 || (type == DTYPE_PANEL_INT8 && !p.bytes)) &&
	       (!c.norm.weight || c.norm.group <= ROW_BLOCK) && (size_t)p.steps * 4 * operand <= MOST_OPERANDS;
}

status cuda_panels_row(backend *b, const panel_product &p, const panel_chain &c, dtype type)
{
	const bool norm = c.norm.weight;
	if (type == DTYPE_PANEL_BF16)
		return norm ? row<bf16_words, X_NORM>(b, p, c) : row<bf16_words, X_READY>(b, p, c);
	return norm ? row<int8_words, X_NORM>(b, p, c) : row<int8_words, X_BYTES>(b, p, c);
}
