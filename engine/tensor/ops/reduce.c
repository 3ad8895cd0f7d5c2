/* dot_rows, sum_rows, sum_squares. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

value op_dot_rows(graph *g, value a, value b, float factor)
{
	return graph_apply_one(g, OP_dot_rows, (value[]){a, b}, 2, &(scale_params){factor});
}

status op_dot_rows_check(op_call *call, error *err)
{
	TRY(check_type(call, 0, "a", DTYPE_F32, err));
	const shape a = call->in[0].shape;
	if (check_present(call, 1) && call->in[1].shape.rank == 1)
		TRY(check_shape(call, 1, "b", DTYPE_F32, SHAPE1(shape_last(a)), "a's last dimension", err));
	else
		TRY(check_like(call, 1, "b", 0, "a", err));
	check_output(call, 0, DTYPE_F32, SHAPE1(shape_rows(a)));
	return STATUS_OK;
}

value op_sum_rows(graph *g, value x, float factor)
{
	return graph_apply_one(g, OP_sum_rows, &x, 1, &(scale_params){factor});
}

status op_sum_rows_check(op_call *call, error *err)
{
	TRY(check_real(call, 0, "x", err));
	check_output(call, 0, DTYPE_F32, SHAPE1(shape_last(call->in[0].shape)));
	return STATUS_OK;
}

value op_sum_squares(graph *g, value x)
{
	return graph_apply_one(g, OP_sum_squares, &x, 1, NULL);
}

status op_sum_squares_check(op_call *call, error *err)
{
	TRY(check_type(call, 0, "x", DTYPE_F32, err));
	check_output(call, 0, DTYPE_F32, SHAPE0());
	return STATUS_OK;
}
