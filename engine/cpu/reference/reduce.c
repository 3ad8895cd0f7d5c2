#include "engine/cpu/reference/reference.h"

/* a [rows, D], b [rows, D] or [D] -> y [rows]: y[row] = factor · Σ_j a[row, j] b[row, j] */
status reference_dot_rows(backend *unused, const op_call *call)
{
	(void)unused;
	const scale_params *p = call->params;
	const float *a = call->in[0].data, *b = call->in[1].data;
	float *y = call->out[0].data;
	int64_t rows = shape_rows(call->in[0].shape), width = shape_last(call->in[0].shape);
	int64_t stride = call->in[1].shape.rank == 1 ? 0 : width;
	for (int64_t r = 0; r < rows; r++) {
		double sum = 0;
		for (int64_t j = 0; j < width; j++)
			sum += (double)a[r * width + j] * (double)b[r * stride + j];
		y[r] = (float)((double)p->factor * sum);
	}
	return STATUS_OK;
}

/* x [rows, D] -> y [D]: y[j] = factor · Σ_rows x[row, j] */
status reference_sum_rows(backend *b, const op_call *call)
{
	(void)b;
	const scale_params *p = call->params;
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
	int64_t rows = shape_rows(call->in[0].shape), width = shape_last(call->in[0].shape);
	for (int64_t j = 0; j < width; j++) {
		double sum = 0;
		for (int64_t r = 0; r < rows; r++)
			sum += (double)x[r * width + j];
		y[j] = (float)((double)p->factor * sum);
	}
	return STATUS_OK;
}

/* x […] -> y []: y = Σ x² */
status reference_sum_squares(backend *b, const op_call *call)
{
	(void)b;
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
	double sum = 0;
	for (int64_t i = 0; i < shape_count(call->in[0].shape); i++)
		sum += (double)x[i] * (double)x[i];
	y[0] = (float)sum;
	return STATUS_OK;
}
