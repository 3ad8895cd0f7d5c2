#include "engine/cpu/reference/reference.h"

#include <string.h>

/* x [rows, C], w [C / group] -> y[r, c] = x[r, c] · w[c / group] */
status reference_scale_columns(backend *unused, const op_call *call)
{
	(void)unused;
	const int64_t group = ((const scale_columns_params *)call->params)->group,
	              width = shape_last(call->in[0].shape);
	const float *x = call->in[0].data, *w = call->in[1].data;
	float *y = call->out[0].data;
	for (int64_t i = 0; i < shape_count(call->in[0].shape); i++)
		y[i] = x[i] * w[i % width / group];
	return STATUS_OK;
}

/* x, dy [rows, C] -> dw[k] = Σ_rows Σ_{c / group = k} dy · x */
status reference_scale_columns_grad(backend *unused, const op_call *call)
{
	(void)unused;
	const int64_t group = ((const scale_columns_params *)call->params)->group;
	const int64_t rows = shape_rows(call->in[0].shape), width = shape_last(call->in[0].shape);
	const float *x = call->in[0].data, *dy = call->in[1].data;
	float *dw = call->out[0].data;
	for (int64_t k = 0; k < width / group; k++) {
		double sum = 0;
		for (int64_t r = 0; r < rows; r++)
			for (int64_t c = k * group; c < (k + 1) * group; c++)
				sum += (double)dy[r * width + c] * (double)x[r * width + c];
		dw[k] = (float)sum;
	}
	return STATUS_OK;
}

/* x, other [rows, C], w [M, C] -> y = x + w_row ⊙ (other - x) */
status reference_mix_columns(backend *unused, const op_call *call)
{
	(void)unused;
	const int64_t width = shape_last(call->in[0].shape);
	const float *x = call->in[0].data, *other = call->in[1].data;
	const float *w = (const float *)call->in[2].data + ((const mix_columns_params *)call->params)->row * width;
	float *y = call->out[0].data;
	for (int64_t i = 0; i < shape_count(call->in[0].shape); i++)
		y[i] = (float)((double)x[i] + (double)w[i % width] * ((double)other[i] - (double)x[i]));
	return STATUS_OK;
}

/* x, other [rows, C], w [M, C], dy [rows, C] -> dx = (1 - w_row) ⊙ dy, dother = w_row ⊙ dy,
 * dw = Σ_rows dy ⊙ (other - x) in the row, 0 in the others */
status reference_mix_columns_grad(backend *unused, const op_call *call)
{
	(void)unused;
	const int64_t rows = shape_rows(call->in[0].shape), width = shape_last(call->in[0].shape);
	const int64_t first = ((const mix_columns_params *)call->params)->row * width;
	const float *x = call->in[0].data, *other = call->in[1].data, *dy = call->in[3].data;
	const float *w = (const float *)call->in[2].data + first;
	float *dx = call->out[0].data, *dother = call->out[1].data, *dw = call->out[2].data;
	if (dw)
		memset(dw, 0, (size_t)shape_count(call->in[2].shape) * sizeof *dw);
	for (int64_t c = 0; c < width; c++) {
		double sum = 0;
		for (int64_t r = 0; r < rows; r++) {
			const int64_t i = r * width + c;
			const double by = (double)dy[i];
			sum += by * ((double)other[i] - (double)x[i]);
			if (dother)
				dother[i] = (float)((double)w[c] * by);
			if (dx)
				dx[i] = (float)((1 - (double)w[c]) * by);
		}
		if (dw)
			dw[first + c] = (float)sum;
	}
	return STATUS_OK;
}
