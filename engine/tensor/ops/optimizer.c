/* accumulate, adamw, sgd: the ops that update memory in place and have no output. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

void op_accumulate(graph *g, value sum, value x, float factor)
{
	graph_apply(g, OP_accumulate, (value[]){sum, x}, 2, &(scale_params){factor}, NULL);
}

status op_accumulate_check(op_call *call, error *err)
{
	TRY(check_type(call, 0, "sum", DTYPE_F32, err));
	return check_like(call, 1, "x", 0, "sum", err);
}

/* The optional bf16 copy of input 0. */
static status check_narrow(op_call *call, int i, error *err)
{
	if (!check_present(call, i))
		return STATUS_OK;
	return check_count(call, i, "narrow", DTYPE_BF16, shape_count(call->in[0].shape), "as many as p", err);
}

void op_adamw(graph *g, value p, value grad, value m, value v, value norm2, value hyper, value narrow,
              adamw_params params)
{
	graph_apply(g, OP_adamw, (value[]){p, grad, m, v, norm2, hyper, narrow}, 7, &params, NULL);
}

status op_adamw_check(op_call *call, error *err)
{
	TRY(check_type(call, 0, "p", DTYPE_F32, err));
	TRY(check_like(call, 1, "g", 0, "p", err));
	TRY(check_like(call, 2, "m", 0, "p", err));
	TRY(check_like(call, 3, "v", 0, "p", err));
	TRY(check_shape(call, 4, "norm2", DTYPE_F32, SHAPE0(), "a scalar", err));
	TRY(check_shape(call, 5, "hyper", DTYPE_F32, SHAPE1(2), "learning rate, step", err));
	return check_narrow(call, 6, err);
}

void op_sgd(graph *g, value p, value grad, value m, value norm2, value hyper, value narrow, sgd_params params)
{
	graph_apply(g, OP_sgd, (value[]){p, grad, m, norm2, hyper, narrow}, 6, &params, NULL);
}

status op_sgd_check(op_call *call, error *err)
{
	TRY(check_type(call, 0, "p", DTYPE_F32, err));
	TRY(check_like(call, 1, "g", 0, "p", err));
	TRY(check_like(call, 2, "m", 0, "p", err));
	TRY(check_shape(call, 3, "norm2", DTYPE_F32, SHAPE0(), "a scalar", err));
	TRY(check_shape(call, 4, "hyper", DTYPE_F32, SHAPE1(2), "learning rate, step", err));
	return check_narrow(call, 5, err);
}
