/* matmul: gemm, except for packed weights, which are unpacked piece by piece. The operands of a piece stay in the
 * caches with it, and the weight is never copied as a whole. An element is one chain over the inner dimension,
 * independent of rows and threads. */
#include "engine/cpu/gemm.h"
#include "engine/cpu/kernels/panel_vector.h"
#include "engine/cpu/kernels/product.h"

/* A piece is DEPTH x COLUMNS of the weight, for ROWS rows. */
enum { ROWS = 128, DEPTH = 128, COLUMNS = 64, PANEL_COST = 10, LEAST_ROWS = 8 };

_Static_assert(DEPTH % PANEL_WIDTH == 0 && COLUMNS % LANES == 0, "a piece has whole panels and vectors");

typedef struct piece {
	float weight[DEPTH * COLUMNS], sum[ROWS * COLUMNS];
} piece;

/* Copy LANES inputs from input k on of a panel's outputs to rows of COLUMNS; zeros or copies fill up after the last. */
TILE_INLINE void unpack_square(dtype type, const unsigned char *panel, int64_t k, int64_t inputs, float *to)
{
	for (int v = 0; v < PANEL_VECTORS; v++) {
		reals w[LANES];
		for (int i = 0; i < LANES; i++)
			w[i] = panel_vector(type, panel, k + (i < inputs ? i : 0), v);
		panel_transpose(w);
		for (int j = 0; j < LANES; j++)
			memcpy(to + (v * LANES + j) * COLUMNS, &w[j], sizeof w[j]);
	}
}

/* The inputs k … k + inputs - 1 of `count` panels. */
TILE_INLINE void unpack(dtype type, const unsigned char *panel, size_t stride, int64_t count, int64_t k, int64_t inputs,
                        float *to)
{
	for (int64_t p = 0; p < count; p++, panel += stride, to += PANEL_WIDTH * COLUMNS) {
		int64_t i = 0;
		for (; i + LANES <= inputs; i += LANES)
			unpack_square(type, panel, k + i, LANES, to + i);
		if (i < inputs)
			unpack_square(type, panel, k + i, inputs - i, to + i);
	}
}

static void unpack_piece(const tensor *weight, int64_t n, int64_t depth, int64_t k, int64_t inputs, float *to)
{
	const size_t stride = panel_stride(weight->type, weight->shape.dim[1]);
	const unsigned char *panel = (const unsigned char *)weight->data + (size_t)(n / PANEL_WIDTH) * stride;
	const int64_t count = kernel_parts(depth, PANEL_WIDTH);
	if (weight->type == DTYPE_PANEL_F32)
		unpack(DTYPE_PANEL_F32, panel, stride, count, k, inputs, to);
	else if (weight->type == DTYPE_PANEL_BF16)
		unpack(DTYPE_PANEL_BF16, panel, stride, count, k, inputs, to);
	else
		unpack(DTYPE_PANEL_INT8, panel, stride, count, k, inputs, to);
}

/* Rows `row` … and columns k … of C. */
static void matmul_multiply(const op_call *call, int64_t row, int64_t rows, int64_t k, int64_t columns, piece *s)
{
	const matmul_params *p = call->params;
	const tensor *weight = &call->in[1];
	const int64_t n = weight->shape.dim[0], width = weight->shape.dim[1];
	const float *a = (const float *)call->in[0].data + row * n;
	float *c = (float *)call->out[0].data + row * width + k;
	for (int64_t i = 0; i == 0 || i < n; i += DEPTH) {
		const int64_t depth = kernel_min(DEPTH, n - i);
		unpack_piece(weight, i, depth, k, columns, s->weight);
		product(rows, product_round(columns), depth, (product_matrix){a + i, n, 1}, s->weight, COLUMNS, s->sum,
		        COLUMNS, i > 0);
	}
	for (int64_t r = 0; r < rows; r++) {
#pragma omp simd
		for (int64_t j = 0; j < columns; j++)
			c[r * width + j] = p->alpha * s->sum[r * COLUMNS + j];
	}
}

size_t KERNEL(matmul_scratch)(const backend *b, const op_call *call)
{
	return dtype_is_panel(call->in[1].type) ? (size_t)((const cpu *)b)->threads * sizeof(piece) : 0;
}

static status multiply_panels(const backend *b, const op_call *call)
{
	const int64_t rows = shape_rows(call->in[0].shape), width = shape_last(call->in[1].shape);
	const int64_t weights = shape_count(call->in[1].shape), blocks = kernel_parts(rows, ROWS);
	const int threads = kernel_fixed_threads(b, weights / PANEL_COST * (rows < LEAST_ROWS ? LEAST_ROWS : rows));
	int64_t columns = COLUMNS;
	while (columns > PANEL_WIDTH && blocks * kernel_parts(width, columns) < threads)
		columns /= 2;
	const int64_t across = kernel_parts(width, columns);
	piece *pieces = call->scratch;
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int t = 0; t < threads; t++)
		for (int64_t job = t; job < blocks * across; job += threads) {
			const int64_t row = job / across * ROWS, k = job % across * columns;
			matmul_multiply(call, row, kernel_min(ROWS, rows - row), k, kernel_min(columns, width - k),
			                &pieces[t]);
		}
	return STATUS_OK;
}

status KERNEL(matmul)(backend *b, const op_call *call)
{
	const matmul_params *p = call->params;
	const tensor *a = &call->in[0], *w = &call->in[1];
	if (dtype_is_panel(w->type))
		return multiply_panels(b, call);
	int64_t m = p->trans_a ? shape_last(a->shape) : shape_rows(a->shape);
	int64_t k = p->trans_a ? shape_rows(a->shape) : shape_last(a->shape);
	int64_t n = p->trans_b ? shape_rows(w->shape) : shape_last(w->shape);
	return gemm(((const cpu *)b)->threads, p->trans_a, p->trans_b, m, n, k, p->alpha, a->data, w->data, 0,
	            call->out[0].data);
}
