/* segment_rows, segment_begin: a division for each token or sequence. */
#include "engine/tensor/ops/segment_rows.h"

#include "engine/cpu/kernels/kernels.h"

enum { DIVISION_COST = 4 };

static void number_rows(const op_call *call, int64_t first, int64_t last)
{
	const segment_rows_params *p = call->params;
	const int32_t *position = call->in[0].data;
	int32_t *row = call->out[0].data;
	for (int64_t i = first; i < last; i++)
		row[i] = segment_row(position[i], (uint32_t)p->segment, (uint32_t)p->front);
}

status KERNEL(segment_rows)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, DIVISION_COST, number_rows);
}

/* Start the segments of sequences first … last - 1. */
static void begin_segments(const op_call *call, int64_t first, int64_t last)
{
	const segment_rows_params *p = call->params;
	const int32_t *position = call->in[0].data, *length = call->in[1].data;
	int32_t *from = call->out[0].data, *count = call->out[1].data, *rows = call->out[2].data,
	        *which = call->out[3].data;
	for (int64_t b = first; b < last; b++) {
		const segment_front f =
		    segment_front_of(position[b], length[b], (uint32_t)p->segment, (uint32_t)p->front);
		if (from)
			from[b] = f.first;
		if (count)
			count[b] = f.count;
		for (int32_t i = 0; i < (int32_t)p->front && rows; i++)
			rows[b * p->front + i] = f.first + i;
		for (int32_t i = 0; i < (int32_t)p->front && which; i++)
			which[b * p->front + i] = f.count ? i : -1;
	}
}

status KERNEL(segment_begin)(backend *b, const op_call *call)
{
	const segment_rows_params *p = call->params;
	return kernel_elements(b, call, DIVISION_COST + p->front, begin_segments);
}
