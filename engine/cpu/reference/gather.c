#include "engine/cpu/reference/reference.h"
#include "engine/tensor/panel.h"

/* table [R, D] f32 or panels, index [n] -> y [n, D]: y[i, :] = table[index[i], :], 0 outside 0…R-1. */
status reference_gather(backend *b, const op_call *call)
{
	(void)b;
	const tensor *table = &call->in[0];
	const int32_t *index = call->in[1].data;
	float *y = call->out[0].data;
	int64_t rows = shape_rows(table->shape), n = shape_count(call->in[1].shape), width = shape_last(table->shape);
	for (int64_t i = 0; i < n; i++) {
		if (index[i] >= 0 && index[i] < rows && dtype_is_panel(table->type)) {
			panel_row(table->type, table->data, width, index[i], y + i * width);
			continue;
		}
		for (int64_t d = 0; d < width; d++)
			y[i * width + d] =
			    index[i] >= 0 && index[i] < rows ? ((const float *)table->data)[index[i] * width + d] : 0;
	}
	return STATUS_OK;
}

size_t reference_gather_grad_scratch(const backend *b, const op_call *call)
{
	(void)b;
	return (size_t)shape_count(call->out[0].shape) * sizeof(double);
}

/* index [n], dy [n, D] -> dtable [R, D]: dtable[r, :] = Σ_{i: index[i] = r} dy[i, :], but 0
 * for r = padding_row. */
status reference_gather_grad(backend *b, const op_call *call)
{
	(void)b;
	const gather_grad_params *p = call->params;
	const int64_t rows = shape_rows(call->out[0].shape);
	const int32_t *index = call->in[0].data;
	const float *dy = call->in[1].data;
	float *dtable = call->out[0].data;
	double *sum = call->scratch;
	int64_t n = shape_count(call->in[0].shape), width = shape_last(call->in[1].shape);
	for (int64_t e = 0; e < rows * width; e++)
		sum[e] = 0;
	for (int64_t i = 0; i < n; i++) {
		if (index[i] < 0 || index[i] >= rows || index[i] == p->padding_row)
			continue;
		for (int64_t d = 0; d < width; d++)
			sum[index[i] * width + d] += (double)dy[i * width + d];
	}
	for (int64_t e = 0; e < rows * width; e++)
		dtable[e] = (float)sum[e];
	return STATUS_OK;
}
