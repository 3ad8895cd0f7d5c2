/* attention_matrix.h - shared by the kernels of attention with its matrix in memory. It has the keys that a query can
 * see, the order of scores, and one form for the products of these ops. */
#ifndef ENGINE_TENSOR_OPS_ATTENTION_MATRIX_H
#define ENGINE_TENSOR_OPS_ATTENTION_MATRIX_H

#include "engine/base/device_function.h"
#include "engine/tensor/op.h"

/* --- rows of weights ---------------------------------------------------------------------------------------- */

typedef struct key_range {
	int64_t first, end;
} key_range;

/* The keys of `keys` that are neither after a query at `position` (may be negative) nor out of its window. */
DEVICE_FUNCTION key_range keys_in_sight(int64_t position, int64_t keys, int64_t window, bool bidirectional)
{
	int64_t first = window > 0 && position >= window ? position - window + 1 : 0;
	int64_t end = bidirectional || position >= keys ? keys : position + 1;
	if (end < 0)
		end = 0;
	if (first > end)
		first = end;
	key_range r = {first, end};
	return r;
}

/* Map the bits of a float so that unsigned integers have the order of the floats; -0 is below 0. */
DEVICE_FUNCTION uint32_t float_order(uint32_t bits)
{
	return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

/* --- products ------------------------------------------------------------------------------------------------- */

/* For each batch b and head n, C [rows, columns] = factor Σ_{s<terms} A_s B_s. Element [r][d] of A_s is at a[b ·
 * a_batch + n · a_head + s · a_term + r · a_row + d · a_step]; [d][c] of B_s at b[b · b_batch + n / b_share · b_head +
 * s · b_term + d · b_row + c · b_column]; [r][c] of C at c[b · c_batch + n · c_head + r · c_row + c]. One of b_row and
 * b_column is 1, and one of a_row and a_step. */
typedef struct matrix_product {
	int64_t batches, heads, rows, columns, depth, terms;
	int64_t a_batch, a_head, a_term, a_row, a_step;
	int64_t b_batch, b_head, b_share, b_term, b_row, b_column;
	int64_t c_batch, c_head, c_row;
	/* If heads are parts of one sum, the depth of head n is min(depth, whole - n · depth); 0: they are not. */
	int64_t whole;
	float factor;
} matrix_product;

DEVICE_FUNCTION int64_t matrix_product_depth(const matrix_product *p, int64_t head)
{
	const int64_t rest = p->whole - head * p->depth;
	return p->whole && rest < p->depth ? rest : p->depth;
}

/* The products of attention_scores, attention_apply, attention_apply_transposed and mix_heads. */
matrix_product attention_scores_product(const op_call *call);
matrix_product attention_apply_product(const op_call *call);
matrix_product attention_apply_transposed_product(const op_call *call);
matrix_product mix_heads_product(const op_call *call);
/* mix_heads_grad in parts: C is [batches · heads] matrices [F, H], which sum to dp. */
matrix_product mix_heads_grad_product(const op_call *call);

#endif
