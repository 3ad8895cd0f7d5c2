/* gather: threads own columns, not rows. Each thread walks all indices in order for its own columns, so sums are always
 * taken in index order, and no two threads write to the same address. */
#include "engine/cpu/kernels/kernels.h"

#include <string.h>

#include "engine/tensor/panel.h"

enum {
	COLUMNS = 64,  /* columns of one part: four cache lines of a row */
	PANEL_COST = 8 /* an element from a panel: a line of its own */
};

static void gather_places(const op_call *call, int64_t first, int64_t last)
{
	const tensor *table = &call->in[0];
	const int32_t *index = call->in[1].data;
	float *y = call->out[0].data;
	int64_t rows = shape_rows(table->shape), d = shape_last(table->shape);
	for (int64_t i = first; i < last; i++) {
		if (index[i] < 0 || index[i] >= rows)
			memset(y + i * d, 0, (size_t)d * sizeof *y);
		else if (dtype_is_panel(table->type))
			panel_row(table->type, table->data, d, index[i], y + i * d);
		else
			memcpy(y + i * d, (const float *)table->data + index[i] * d, (size_t)d * sizeof *y);
	}
}

status KERNEL(gather)(backend *b, const op_call *call)
{
	int64_t places = shape_count(call->in[1].shape), cost = dtype_is_panel(call->in[0].type) ? PANEL_COST : 1;
	return kernel_for(b, call, places, places * shape_last(call->in[0].shape) * cost, gather_places);
}

status KERNEL(gather_grad)(backend *b, const op_call *call)
{
	const gather_grad_params *p = call->params;
	const int64_t rows = shape_rows(call->out[0].shape);
	const int32_t *index = call->in[0].data;
	const float *dy = call->in[1].data;
	float *dtable = call->out[0].data;
	int64_t places = shape_count(call->in[0].shape), d = shape_last(call->in[1].shape);
	int64_t parts = kernel_parts(d, COLUMNS);
	const int threads = kernel_threads(b, (rows + places) * d);
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t part = 0; part < parts; part++) {
		int64_t first = part * COLUMNS, count = kernel_min(COLUMNS, d - first);
		for (int64_t r = 0; r < rows; r++)
			memset(dtable + r * d + first, 0, (size_t)count * sizeof *dtable);
		for (int64_t i = 0; i < places; i++) {
			if (index[i] < 0 || index[i] >= rows || index[i] == p->padding_row)
				continue;
			float *to = dtable + index[i] * d + first;
			const float *from = dy + i * d + first;
#pragma omp simd
			for (int64_t j = 0; j < count; j++)
				to[j] += from[j];
		}
	}
	return STATUS_OK;
}
