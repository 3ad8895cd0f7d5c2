/* attention_scores, attention_apply, attention_apply_transposed, mix_heads, mix_heads_grad: products of many small
 * matrices (matrix_product), cut into blocks of rows and tiles of columns that threads take in turn.
 *
 * A tile of B is packed first: transposed if its columns are not contiguous, and multiplied by `factor`. An element of
 * C is one chain over terms and depth in order, independent of the cut and the threads. */
#include "engine/tensor/ops/attention_matrix.h"

#include <string.h>

#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/product.h"

enum { ROWS = 256, COLUMNS = 64, DEPTH = 128, PRODUCT_SPEED = 8 /* multiply-adds in the time of an addition */ };

/* Scratch of a thread. */
typedef struct desk {
	float b[DEPTH * COLUMNS];
	float c[ROWS * COLUMNS]; /* for a tile without whole vectors of columns */
} desk;

/* to [depth, COLUMNS] = factor · B, zeros to whole vectors; from: its first element. */
static void pack(const matrix_product *p, const float *from, int64_t depth, int64_t columns, float *to)
{
	const int64_t whole = product_round(columns);
	if (p->b_column == 1) {
		for (int64_t d = 0; d < depth; d++) {
#pragma omp simd
			for (int64_t c = 0; c < columns; c++)
				to[d * COLUMNS + c] = p->factor * from[d * p->b_row + c];
		}
	} else {
		for (int64_t c = 0; c < columns; c++)
			for (int64_t d = 0; d < depth; d++)
				to[d * COLUMNS + c] = p->factor * from[c * p->b_column + d];
	}
	for (int64_t d = 0; d < depth && columns < whole; d++)
		for (int64_t c = columns; c < whole; c++)
			to[d * COLUMNS + c] = 0.0f;
}

/* One tile of C. */
typedef struct place {
	int64_t batch, head, row, rows, column, columns;
} place;

static void multiply_tile(const matrix_product *p, place at, const float *a, const float *b, float *c, desk *w)
{
	const int64_t depth = matrix_product_depth(p, at.head), whole = product_round(at.columns);
	float *to = c + at.batch * p->c_batch + at.head * p->c_head + at.row * p->c_row + at.column;
	float *sum = whole == at.columns ? to : w->c;
	const int64_t sum_row = whole == at.columns ? p->c_row : COLUMNS;
	bool started = false;
	a += at.batch * p->a_batch + at.head * p->a_head + at.row * p->a_row;
	b += at.batch * p->b_batch + at.head / p->b_share * p->b_head + at.column * p->b_column;
	for (int64_t s = 0; s < p->terms; s++) {
		for (int64_t d = 0; d < depth || !started; d += DEPTH) {
			const int64_t count = kernel_min(DEPTH, depth - d);
			pack(p, b + s * p->b_term + d * p->b_row, count, at.columns, w->b);
			product(at.rows, whole, count,
			        (product_matrix){a + s * p->a_term + d * p->a_step, p->a_row, p->a_step}, w->b, COLUMNS,
			        sum, sum_row, started);
			started = true;
		}
	}
	for (int64_t r = 0; sum == w->c && r < at.rows; r++)
		memcpy(to + r * p->c_row, w->c + r * COLUMNS, (size_t)at.columns * sizeof *to);
}

static void attention_matrix_multiply(const backend *owner, const matrix_product *p, const float *a, const float *b,
                                      float *c, desk *desks)
{
	const int64_t down = kernel_parts(p->rows, ROWS), across = kernel_parts(p->columns, COLUMNS);
	const int64_t tiles = p->batches * p->heads * down * across;
	const int64_t work = p->rows * p->columns * (p->depth * p->terms + PRODUCT_SPEED) / PRODUCT_SPEED;
	const int threads = kernel_threads(owner, p->batches * p->heads * work);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
	for (int thread = 0; thread < threads; thread++) {
		for (int64_t tile = thread; tile < tiles; tile += threads) {
			const int64_t row = tile / across % down * ROWS, column = tile % across * COLUMNS;
			const int64_t head = tile / across / down;
			const place at = {.batch = head / p->heads,
			                  .head = head % p->heads,
			                  .row = row,
			                  .rows = kernel_min(ROWS, p->rows - row),
			                  .column = column,
			                  .columns = kernel_min(COLUMNS, p->columns - column)};
			multiply_tile(p, at, a, b, c, desks + thread);
		}
	}
}

static size_t desk_bytes(const backend *b)
{
	return (size_t)((const cpu *)b)->threads * sizeof(desk);
}

size_t KERNEL(attention_scores_scratch)(const backend *b, const op_call *call)
{
	(void)call;
	return desk_bytes(b);
}

status KERNEL(attention_scores)(backend *b, const op_call *call)
{
	const matrix_product p = attention_scores_product(call);
	attention_matrix_multiply(b, &p, call->in[0].data, call->in[1].data, call->out[0].data, call->scratch);
	return STATUS_OK;
}

size_t KERNEL(attention_apply_scratch)(const backend *b, const op_call *call)
{
	(void)call;
	return desk_bytes(b);
}

status KERNEL(attention_apply)(backend *b, const op_call *call)
{
	const matrix_product p = attention_apply_product(call);
	attention_matrix_multiply(b, &p, call->in[0].data, call->in[1].data, call->out[0].data, call->scratch);
	return STATUS_OK;
}

size_t KERNEL(attention_apply_transposed_scratch)(const backend *b, const op_call *call)
{
	(void)call;
	return desk_bytes(b);
}

status KERNEL(attention_apply_transposed)(backend *b, const op_call *call)
{
	const matrix_product p = attention_apply_transposed_product(call);
	attention_matrix_multiply(b, &p, call->in[0].data, call->in[1].data, call->out[0].data, call->scratch);
	return STATUS_OK;
}

size_t KERNEL(mix_heads_scratch)(const backend *b, const op_call *call)
{
	(void)call;
	return desk_bytes(b);
}

status KERNEL(mix_heads)(backend *b, const op_call *call)
{
	const matrix_product p = mix_heads_product(call);
	attention_matrix_multiply(b, &p, call->in[1].data, call->in[0].data, call->out[0].data, call->scratch);
	return STATUS_OK;
}

/* The parts' sums follow the desks. */
size_t KERNEL(mix_heads_grad_scratch)(const backend *b, const op_call *call)
{
	const matrix_product p = mix_heads_grad_product(call);
	return desk_bytes(b) + (size_t)(p.batches * p.c_batch) * sizeof(float);
}

status KERNEL(mix_heads_grad)(backend *b, const op_call *call)
{
	const matrix_product p = mix_heads_grad_product(call);
	float *parts = (float *)((desk *)call->scratch + ((const cpu *)b)->threads);
	attention_matrix_multiply(b, &p, call->in[1].data, call->in[0].data, parts, call->scratch);
	kernel_sum_parts(call->out[0].data, parts, p.batches * p.heads, p.rows * p.columns, 1.0f);
	return STATUS_OK;
}
