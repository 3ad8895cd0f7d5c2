/* Numbers of rows where segments have rows in front. */
#include "engine/tensor/ops/segment_rows.h"

#include "engine/cpu/reference/reference.h"

/* position [n] -> [n] */
status reference_segment_rows(backend *unused, const op_call *call)
{
	(void)unused;
	const segment_rows_params *p = call->params;
	const int32_t *position = call->in[0].data;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++)
		((int32_t *)call->out[0].data)[i] = segment_row(position[i], (uint32_t)p->segment, (uint32_t)p->front);
	return STATUS_OK;
}

static void segment_rows_put(const op_call *call, int out, int64_t i, int32_t x)
{
	if (call->out[out].data)
		((int32_t *)call->out[out].data)[i] = x;
}

/* position, length [B] -> first, count [B], rows, which [B, front] */
status reference_segment_begin(backend *unused, const op_call *call)
{
	(void)unused;
	const segment_rows_params *p = call->params;
	const int32_t *position = call->in[0].data, *length = call->in[1].data;
	for (int64_t b = 0; b < shape_count(call->out[0].shape); b++) {
		const segment_front f =
		    segment_front_of(position[b], length[b], (uint32_t)p->segment, (uint32_t)p->front);
		segment_rows_put(call, 0, b, f.first);
		segment_rows_put(call, 1, b, f.count);
		for (int32_t i = 0; i < (int32_t)p->front; i++) {
			segment_rows_put(call, 2, b * p->front + i, f.first + i);
			segment_rows_put(call, 3, b * p->front + i, f.count ? i : -1);
		}
	}
	return STATUS_OK;
}
