#include "engine/cpu/reference/reference.h"

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
