/* join_rows, join_rows_grad, slice_rows, slice_rows_grad, pad_mask, mask_rows: copies of rows, at the speed of memory.
 * Joined and sliced rows may be 32-bit integers, since they are only copied. */
#include "engine/cpu/kernels/kernels.h"

#include <string.h>

static size_t row_bytes(const op_call *call)
{
	return (size_t)shape_last(call->out[0].shape) * sizeof(float);
}

static status by_rows(const backend *b, const op_call *call, kernel_range fn)
{
	const shape s = call->out[0].shape;
	return shape_count(s) > 0 ? kernel_for(b, call, shape_rows(s), shape_count(s), fn) : STATUS_OK;
}

static void rows_join(const op_call *call, int64_t first, int64_t last)
{
	const int64_t heads = ((const join_rows_params *)call->params)->heads;
	const shape s = call->out[0].shape, prefix = call->in[0].shape;
	const int64_t rows = prefix.dim[prefix.rank - 2], n = s.dim[1] - rows, width = s.dim[2];
	const int64_t pieces = heads > 0 ? heads : 1, piece = width / pieces;
	for (int64_t r = first; r < last; r++) {
		const int64_t i = r / s.dim[1], t = r % s.dim[1];
		float *y = (float *)call->out[0].data + r * width;
		if (t >= rows) {
			memcpy(y, (const float *)call->in[1].data + (i * n + t - rows) * width, row_bytes(call));
			continue;
		}
		const float *from =
		    (const float *)call->in[0].data + (heads == 0 && prefix.rank == 3 ? i * rows * width : 0);
		for (int64_t h = 0; h < pieces; h++)
			memcpy(y + h * piece, from + (h * rows + t) * piece, (size_t)piece * sizeof *y);
	}
}

status KERNEL(join_rows)(backend *b, const op_call *call)
{
	return by_rows(b, call, rows_join);
}

/* Rows `from` on of each sequence of dy [B, total, C], as many as output o has. */
static void rows_take(const op_call *call, int o, int64_t from, int64_t first, int64_t last)
{
	const int64_t n = call->out[o].shape.dim[1], total = call->in[1].shape.dim[1], width = call->in[1].shape.dim[2];
	for (int64_t r = first; r < last; r++)
		memcpy((float *)call->out[o].data + r * width,
		       (const float *)call->in[0].data + (r / n * total + from + r % n) * width,
		       (size_t)width * sizeof(float));
}

static void take_rest(const op_call *call, int64_t first, int64_t last)
{
	rows_take(call, 0, ((const join_rows_params *)call->params)->rows, first, last);
}

static void take_prefix(const op_call *call, int64_t first, int64_t last)
{
	rows_take(call, 1, 0, first, last);
}

/* Piece k / rows of row k % rows of the prefix; sequences are added in order. */
static void sum_prefix(const op_call *call, int64_t first, int64_t last)
{
	const join_rows_params *p = call->params;
	const shape s = call->in[1].shape;
	const int64_t piece = shape_last(call->out[1].shape);
	for (int64_t k = first; k < last; k++) {
		float *sum = (float *)call->out[1].data + k * piece;
		const float *from = (const float *)call->in[0].data + k % p->rows * s.dim[2] + k / p->rows * piece;
		memset(sum, 0, (size_t)piece * sizeof *sum);
		for (int64_t i = 0; i < s.dim[0]; i++, from += s.dim[1] * s.dim[2]) {
#pragma omp simd
			for (int64_t c = 0; c < piece; c++)
				sum[c] += from[c];
		}
	}
}

status KERNEL(join_rows_grad)(backend *b, const op_call *call)
{
	const join_rows_params *p = call->params;
	const shape rest = call->out[0].shape, prefix = call->out[1].shape;
	if (call->out[0].data && shape_count(rest) > 0)
		TRY(kernel_for(b, call, shape_rows(rest), shape_count(rest), take_rest));
	if (!call->out[1].data || shape_count(prefix) == 0)
		return STATUS_OK;
	const int64_t work = shape_count(prefix) * (p->each ? 1 : rest.dim[0]);
	return kernel_for(b, call, shape_rows(prefix), work, p->each ? take_prefix : sum_prefix);
}

static void slice(const op_call *call, int64_t first, int64_t last)
{
	const slice_rows_params *p = call->params;
	const shape x = call->in[0].shape, y = call->out[0].shape;
	for (int64_t r = first; r < last; r++)
		memcpy((float *)call->out[0].data + r * y.dim[2],
		       (const float *)call->in[0].data + (r / y.dim[1] * x.dim[1] + p->first + r % y.dim[1]) * x.dim[2],
		       row_bytes(call));
}

status KERNEL(slice_rows)(backend *b, const op_call *call)
{
	return by_rows(b, call, slice);
}

static void slice_back(const op_call *call, int64_t first, int64_t last)
{
	const slice_rows_params *p = call->params;
	const shape s = call->out[0].shape;
	const int64_t count = shape_rows(call->in[0].shape) / s.dim[0];
	for (int64_t r = first; r < last; r++) {
		const int64_t i = r / s.dim[1], t = r % s.dim[1] - p->first;
		float *dx = (float *)call->out[0].data + r * s.dim[2];
		if (t >= 0 && t < count)
			memcpy(dx, (const float *)call->in[0].data + (i * count + t) * s.dim[2], row_bytes(call));
		else
			memset(dx, 0, row_bytes(call));
	}
}

status KERNEL(slice_rows_grad)(backend *b, const op_call *call)
{
	return by_rows(b, call, slice_back);
}

static void pad(const op_call *call, int64_t first, int64_t last)
{
	const pad_mask_params *p = call->params;
	const int64_t n = call->in[0].shape.dim[1], room = call->out[0].shape.dim[1];
	for (int64_t r = first; r < last; r++) {
		int32_t *y = (int32_t *)call->out[0].data + r * room;
		for (int64_t t = 0; t < p->before; t++)
			y[t] = p->value;
		if (n > 0)
			memcpy(y + p->before, (const int32_t *)call->in[0].data + r * n, (size_t)n * sizeof *y);
	}
}

status KERNEL(pad_mask)(backend *b, const op_call *call)
{
	return by_rows(b, call, pad);
}

static void mask(const op_call *call, int64_t first, int64_t last)
{
	const int64_t width = shape_last(call->out[0].shape);
	const int32_t *present = call->in[1].data;
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
	for (int64_t r = first; r < last; r++) {
		if (!present[r])
			memset(y + r * width, 0, row_bytes(call));
		else if (x != y)
			memcpy(y + r * width, x + r * width, row_bytes(call));
	}
}

status KERNEL(mask_rows)(backend *b, const op_call *call)
{
	return by_rows(b, call, mask);
}
