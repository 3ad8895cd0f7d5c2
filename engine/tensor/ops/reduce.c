/* sum_rows, sum_squares. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

value op_sum_rows(graph *g, value x, float factor)
{
	value out;
	graph_apply(g, OP_sum_rows, &x, 1, &(scale_params){factor}, &out);
	return out;
}

status op_sum_rows_check(op_call *call, error *err)
{
	TRY(check_real(call, 0, "x", err));
	check_output(call, 0, DTYPE_F32, SHAPE1(shape_last(call->in[0].shape)));
	return STATUS_OK;
}

value op_sum_squares(graph *g, value x)
{
	value out;
	graph_apply(g, OP_sum_squares, &x, 1, NULL, &out);
	return out;
}

status op_sum_squares_check(op_call *call, error *err)
{
	TRY(check_type(call, 0, "x", DTYPE_F32, err));
	check_output(call, 0, DTYPE_F32, SHAPE0());
	return STATUS_OK;
}
