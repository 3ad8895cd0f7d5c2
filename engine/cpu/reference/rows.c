#include <string.h>

#include "engine/cpu/reference/reference.h"

/* Channel c of row t of the prefix of sequence i: [M, C], [B, M, C] or [heads, M, C / heads]. */
static float prefix_at(const op_call *call, int64_t i, int64_t t, int64_t c)
{
	const int64_t heads = ((const join_rows_params *)call->params)->heads;
	const shape s = call->in[0].shape;
	const float *prefix = call->in[0].data;
	const int64_t rows = s.dim[s.rank - 2], width = shape_last(s);
	if (heads > 0)
		return prefix[(c / width * rows + t) * width + c % width];
	return prefix[((s.rank == 3 ? i * rows : 0) + t) * width + c];
}

/* prefix, x [B, N, C] -> y [B, M + N, C] */
status reference_join_rows(backend *unused, const op_call *call)
{
	(void)unused;
	const shape s = call->out[0].shape;
	const int64_t n = call->in[1].shape.dim[1], rows = s.dim[1] - n, width = s.dim[2];
	const float *x = call->in[1].data;
	float *y = call->out[0].data;
	for (int64_t i = 0; i < s.dim[0]; i++)
		for (int64_t t = 0; t < s.dim[1]; t++)
			for (int64_t c = 0; c < width; c++, y++) {
				const float from =
				    t < rows ? prefix_at(call, i, t, c) : x[(i * n + t - rows) * width + c];
				memcpy(y, &from, sizeof from);
			}
	return STATUS_OK;
}

/* dy, y [B, M + N, C], which is not read -> dx [B, N, C] its last N rows; dprefix its first M, summed over B unless
 * there are those of each sequence */
status reference_join_rows_grad(backend *unused, const op_call *call)
{
	(void)unused;
	const join_rows_params *p = call->params;
	const shape s = call->in[1].shape;
	const float *dy = call->in[0].data;
	float *dx = call->out[0].data, *dprefix = call->out[1].data;
	const int64_t n = s.dim[1] - p->rows, channels = s.dim[2], width = shape_last(call->out[1].shape);
	for (int64_t i = 0; i < s.dim[0] * n * channels && dx; i++) {
		const int64_t row = i / channels;
		dx[i] = dy[(row / n * s.dim[1] + p->rows + row % n) * channels + i % channels];
	}
	for (int64_t i = 0; i < shape_count(call->out[1].shape) && dprefix; i++) {
		const int64_t t = i / width % p->rows, one = i / width / p->rows; /* one: a sequence, or a head */
		const int64_t c = (p->each ? 0 : one * width) + i % width;
		double sum = 0;
		for (int64_t k = p->each ? one : 0; k < (p->each ? one + 1 : s.dim[0]); k++)
			sum += (double)dy[(k * s.dim[1] + t) * channels + c];
		dprefix[i] = (float)sum;
	}
	return STATUS_OK;
}

/* x [B, N, C] -> y [B, count, C], rows first … first + count - 1 */
status reference_slice_rows(backend *unused, const op_call *call)
{
	(void)unused;
	const int64_t first = ((const slice_rows_params *)call->params)->first;
	const shape x = call->in[0].shape, y = call->out[0].shape;
	const float *from = call->in[0].data;
	const size_t bytes = (size_t)(y.dim[1] * y.dim[2]) * sizeof *from;
	for (int64_t i = 0; i < x.dim[0] && bytes > 0; i++)
		memcpy((float *)call->out[0].data + i * y.dim[1] * y.dim[2], from + (i * x.dim[1] + first) * x.dim[2],
		       bytes);
	return STATUS_OK;
}

/* dy [B, count, C], x [B, N, C], which is not read -> dx [B, N, C], zeros but for those rows */
status reference_slice_rows_grad(backend *unused, const op_call *call)
{
	(void)unused;
	const int64_t first = ((const slice_rows_params *)call->params)->first;
	const shape s = call->out[0].shape;
	const float *dy = call->in[0].data;
	float *dx = call->out[0].data;
	const int64_t count = s.dim[0] > 0 ? shape_rows(call->in[0].shape) / s.dim[0] : 0;
	for (int64_t i = 0; i < s.dim[0]; i++)
		for (int64_t t = 0; t < s.dim[1]; t++)
			for (int64_t c = 0; c < s.dim[2]; c++) {
				const bool taken = t >= first && t < first + count;
				*dx++ = taken ? dy[(i * count + t - first) * s.dim[2] + c] : 0;
			}
	return STATUS_OK;
}

/* mask [B, N] -> y [B, before + N] */
status reference_pad_mask(backend *unused, const op_call *call)
{
	(void)unused;
	const pad_mask_params *p = call->params;
	const shape s = call->out[0].shape;
	const int32_t *mask = call->in[0].data;
	int32_t *y = call->out[0].data;
	for (int64_t i = 0; i < s.dim[0]; i++)
		for (int64_t t = 0; t < s.dim[1]; t++)
			y[i * s.dim[1] + t] = t < p->before ? p->value : *mask++;
	return STATUS_OK;
}

/* x [rows, C], mask [rows] -> y [rows, C], 0 where the mask is */
status reference_mask_rows(backend *unused, const op_call *call)
{
	(void)unused;
	const float *x = call->in[0].data;
	const int32_t *mask = call->in[1].data;
	float *y = call->out[0].data;
	const int64_t width = shape_last(call->in[0].shape);
	for (int64_t i = 0; i < shape_count(call->in[0].shape); i++)
		y[i] = mask[i / width] ? x[i] : 0;
	return STATUS_OK;
}
