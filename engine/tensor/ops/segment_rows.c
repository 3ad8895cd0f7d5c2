/* segment_rows and segment_begin. */
#include "engine/tensor/ops/segment_rows.h"

#include <inttypes.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

value op_segment_rows(graph *g, value position, segment_rows_params params)
{
	return graph_apply_one(g, OP_segment_rows, &position, 1, &params);
}

segment_begin_values op_segment_begin(graph *g, value position, value length, segment_rows_params params)
{
	value out[4];
	graph_apply(g, OP_segment_begin, (value[]){position, length}, 2, &params, out);
	return (segment_begin_values){out[0], out[1], out[2], out[3]};
}

static status check_params(const segment_rows_params *p, error *err)
{
	if (p->segment < 1 || p->segment > INT32_MAX)
		return error_set(err, STATUS_INVALID, "segment", "segment is %" PRId64 ", must be from 1 to %d",
		                 p->segment, INT32_MAX);
	if (p->front < 1 || p->front > INT32_MAX)
		return error_set(err, STATUS_INVALID, "front", "front is %" PRId64 ", must be from 1 to %d", p->front,
		                 INT32_MAX);
	return STATUS_OK;
}

status op_segment_rows_check(op_call *call, error *err)
{
	TRY(check_params(call->params, err));
	TRY(check_type(call, 0, "position", DTYPE_I32, err));
	check_output(call, 0, DTYPE_I32, call->in[0].shape);
	return STATUS_OK;
}

status op_segment_begin_check(op_call *call, error *err)
{
	const segment_rows_params *p = call->params;
	TRY(check_params(p, err));
	TRY(check_type(call, 0, "position", DTYPE_I32, err));
	if (call->in[0].shape.rank != 1)
		return error_set(err, STATUS_INVALID, "position", "position must have one dimension");
	const int64_t batch = call->in[0].shape.dim[0];
	TRY(check_shape(call, 1, "length", DTYPE_I32, SHAPE1(batch), "one for each position", err));
	check_output(call, 0, DTYPE_I32, SHAPE1(batch));
	check_output(call, 1, DTYPE_I32, SHAPE1(batch));
	check_output(call, 2, DTYPE_I32, SHAPE2(batch, p->front));
	check_output(call, 3, DTYPE_I32, SHAPE2(batch, p->front));
	return STATUS_OK;
}
