/* The kernel of linear over panels for one row (linear_row.cuh). */
#include "cuda/linear_row.cuh"

template <class W, x_source SOURCE>
__global__ void __launch_bounds__(ROW_BLOCK, 2) row_kernel(panel_product whole, panel_chain c)
{
	row_panel<W, SOURCE>(whole, c, blockIdx.x, early_wait());
}

template <class W, x_source SOURCE> static status row(backend *b, const panel_product &p, const panel_chain &c)
{
	return cuda_launch_early(b, row_kernel<W, SOURCE>, cuda_extent(panel_blocks<1>(p, c.siblings)), ROW_BLOCK,
	                         row_bytes<W>(p), p, c);
}

bool cuda_panels_is_row(const panel_product &p, const panel_chain &c, dtype type)
{
	const size_t operand = type == DTYPE_PANEL_BF16 ? sizeof(bf16_words::operand) : sizeof(int8_words::operand);
	return p.rows == 1 && p.packed && p.steps > 0 && (type == DTYPE_PANEL_BF16 || (type == DTYPE_PANEL_INT8 && !p.bytes)) &&
	       (!c.norm.weight || c.norm.group <= ROW_BLOCK) && (size_t)p.steps * 4 * operand <= MOST_OPERANDS;
}

status cuda_panels_row(backend *b, const panel_product &p, const panel_chain &c, dtype type)
{
	const bool norm = c.norm.weight;
	if (type == DTYPE_PANEL_BF16)
		return norm ? row<bf16_words, X_NORM>(b, p, c) : row<bf16_words, X_READY>(b, p, c);
	return norm ? row<int8_words, X_NORM>(b, p, c) : row<int8_words, X_BYTES>(b, p, c);
}
