/* accumulate, lerp, adamw, sgd, normalized_sgd, muon: the ops that update memory in place and have no output;
 * row_squares, muon_direction, write_range. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

#include <inttypes.h>

#include "engine/base/memory.h"

void op_accumulate(graph *g, value sum, value x, float factor)
{
	graph_apply(g, OP_accumulate, (value[]){sum, x}, 2, &(scale_params){factor}, NULL);
}

status op_accumulate_check(op_call *call, error *err)
{
	TRY(check_type(call, 0, "sum", DTYPE_F32, err));
	return check_like(call, 1, "x", 0, "sum", err);
}

void op_lerp(graph *g, value p, value x, value rate)
{
	graph_apply(g, OP_lerp, (value[]){p, x, rate}, 3, NULL, NULL);
}

status op_lerp_check(op_call *call, error *err)
{
	TRY(check_type(call, 0, "p", DTYPE_F32, err));
	TRY(check_like(call, 1, "x", 0, "p", err));
	return check_shape(call, 2, "rate", DTYPE_F32, SHAPE0(), "a scalar", err);
}

/* The optional bf16 copy of input 0. */
static status check_narrow(op_call *call, int i, error *err)
{
	if (!check_present(call, i))
		return STATUS_OK;
	return check_count(call, i, "narrow", DTYPE_BF16, shape_count(call->in[0].shape), "as many as p", err);
}

/* Check the bf16 copy and the optional factors of steps that follow it. */
static status check_narrow_and_factors(op_call *call, int i, error *err)
{
	const int64_t units = (shape_count(call->in[0].shape) + ROW_SPAN_UNIT - 1) / ROW_SPAN_UNIT;
	TRY(check_narrow(call, i, err));
	return check_present(call, i + 1)
	           ? check_count(call, i + 1, "factors", DTYPE_F32, 2 * units, "two for 16 of p", err)
	           : STATUS_OK;
}

void op_adamw(graph *g, value p, value grad, value m, value v, value norm2, value hyper, value narrow, value factors,
              adamw_params params)
{
	graph_apply(g, OP_adamw, (value[]){p, grad, m, v, norm2, hyper, narrow, factors}, 8, &params, NULL);
}

status op_adamw_check(op_call *call, error *err)
{
	TRY(check_type(call, 0, "p", DTYPE_F32, err));
	TRY(check_like(call, 1, "g", 0, "p", err));
	TRY(check_like(call, 2, "m", 0, "p", err));
	TRY(check_like(call, 3, "v", 0, "p", err));
	TRY(check_shape(call, 4, "norm2", DTYPE_F32, SHAPE0(), "a scalar", err));
	TRY(check_shape(call, 5, "hyper", DTYPE_F32, SHAPE1(2), "learning rate, step", err));
	return check_narrow_and_factors(call, 6, err);
}

void op_sgd(graph *g, value p, value grad, value m, value norm2, value hyper, value narrow, value factors,
            sgd_params params)
{
	graph_apply(g, OP_sgd, (value[]){p, grad, m, norm2, hyper, narrow, factors}, 7, &params, NULL);
}

status op_sgd_check(op_call *call, error *err)
{
	TRY(check_type(call, 0, "p", DTYPE_F32, err));
	TRY(check_like(call, 1, "g", 0, "p", err));
	TRY(check_like(call, 2, "m", 0, "p", err));
	TRY(check_shape(call, 3, "norm2", DTYPE_F32, SHAPE0(), "a scalar", err));
	TRY(check_shape(call, 4, "hyper", DTYPE_F32, SHAPE1(2), "learning rate, step", err));
	return check_narrow_and_factors(call, 5, err);
}

/* --- by tensors and rows of an arena ----------------------------------------------------------- */

value op_row_squares(graph *g, value x, value spans, int64_t rows, value *tensors)
{
	value out[2];
	graph_apply(g, OP_row_squares, (value[]){x, spans}, 2, &(row_squares_params){rows}, out);
	*tensors = out[1];
	return out[0];
}

static status check_spans(const op_call *call, int i, int64_t rows, error *err)
{
	TRY(check_type(call, i, "spans", DTYPE_I32, err));
	const shape s = call->in[i].shape;
	if (shape_last(s) != ROW_SPAN_WORDS)
		return error_set(err, STATUS_INVALID, "spans", "spans must have %d words each", ROW_SPAN_WORDS);
	if (rows < shape_rows(s) || rows > INT32_MAX)
		return error_set(err, STATUS_INVALID, "spans", "spans of %lld tensors cannot have %lld rows",
		                 (long long)shape_rows(s), (long long)rows);
	return STATUS_OK;
}

status op_row_squares_check(op_call *call, error *err)
{
	const row_squares_params *p = call->params;
	TRY(check_type(call, 0, "x", DTYPE_F32, err));
	TRY(check_spans(call, 1, p->rows, err));
	check_output(call, 0, DTYPE_F32, SHAPE1(p->rows));
	check_output(call, 1, DTYPE_F32, SHAPE1(shape_rows(call->in[1].shape)));
	return STATUS_OK;
}

void op_normalized_sgd(graph *g, const normalized_sgd_inputs *in, normalized_sgd_params params)
{
	const value inputs[] = {in->p,     in->grad,  in->statistics, in->rows,   in->tensors,
	                        in->spans, in->norm2, in->hyper,      in->narrow, in->factors};
	graph_apply(g, OP_normalized_sgd, inputs, 10, &params, NULL);
}

status op_normalized_sgd_check(op_call *call, error *err)
{
	const normalized_sgd_params *p = call->params;
	TRY(check_type(call, 0, "p", DTYPE_F32, err));
	TRY(check_like(call, 1, "g", 0, "p", err));
	TRY(check_type(call, 2, "s", DTYPE_F32, err));
	const int64_t rows = shape_count(call->in[2].shape);
	TRY(check_count(call, 3, "rows", DTYPE_F32, rows, "as many as of s", err));
	TRY(check_spans(call, 5, rows, err));
	TRY(check_count(call, 4, "tensors", DTYPE_F32, shape_rows(call->in[5].shape), "as many as spans", err));
	TRY(check_shape(call, 6, "norm2", DTYPE_F32, SHAPE0(), "a scalar", err));
	TRY(check_shape(call, 7, "hyper", DTYPE_F32, SHAPE1(2), "learning rate, step", err));
	if (!(p->row_decay >= 0 && p->row_decay < 1))
		return error_set(err, STATUS_INVALID, "row_decay", "must be from 0 to below 1");
	return check_narrow_and_factors(call, 8, err);
}

/* --- muon ------------------------------------------------------------------------------------- */

value op_muon_direction(graph *g, value m, value grad, value norm2, muon_direction_params params)
{
	return graph_apply_one(g, OP_muon_direction, (value[]){m, grad, norm2}, 3, &params);
}

/* `count` numbers from `first` on, of n. */
static status check_range(int64_t first, int64_t count, int64_t n, error *err)
{
	if (first < 0 || first % ROW_SPAN_UNIT != 0 || first > n || count < 0 || count > n - first)
		return error_set(err, STATUS_INVALID, "first",
		                 "%" PRId64 " numbers cannot begin at %" PRId64 " of %" PRId64, count, first, n);
	return STATUS_OK;
}

status op_muon_direction_check(op_call *call, error *err)
{
	const muon_direction_params *p = call->params;
	int64_t count;
	TRY(check_type(call, 0, "m", DTYPE_F32, err));
	TRY(check_like(call, 1, "g", 0, "m", err));
	TRY(check_shape(call, 2, "norm2", DTYPE_F32, SHAPE0(), "a scalar", err));
	if (p->rows < 0 || p->columns < 0 || !memory_product(p->rows, p->columns, &count))
		return error_set(err, STATUS_INVALID, "rows", "no matrix is %" PRId64 " by %" PRId64, p->rows,
		                 p->columns);
	TRY(check_range(p->first, count, shape_count(call->in[0].shape), err));
	check_output(call, 0, DTYPE_F32, SHAPE2(p->rows, p->columns));
	return STATUS_OK;
}

value op_write_range(graph *g, value x, value part, int64_t first)
{
	return graph_apply_one(g, OP_write_range, (value[]){x, part}, 2, &(write_range_params){first});
}

status op_write_range_check(op_call *call, error *err)
{
	const write_range_params *p = call->params;
	TRY(check_type(call, 0, "x", DTYPE_F32, err));
	TRY(check_type(call, 1, "part", DTYPE_F32, err));
	const int64_t n = shape_count(call->in[0].shape);
	TRY(check_range(p->first, shape_count(call->in[1].shape), n, err));
	check_output(call, 0, DTYPE_F32, call->in[0].shape);
	return STATUS_OK;
}

void op_muon(graph *g, const muon_inputs *in, muon_params params)
{
	const value inputs[] = {in->p,     in->grad,  in->m,      in->v,      in->direction,
	                        in->norm2, in->hyper, in->scales, in->narrow, in->factors};
	graph_apply(g, OP_muon, inputs, 10, &params, NULL);
}

status op_muon_check(op_call *call, error *err)
{
	TRY(check_type(call, 0, "p", DTYPE_F32, err));
	TRY(check_like(call, 1, "g", 0, "p", err));
	TRY(check_like(call, 2, "m", 0, "p", err));
	TRY(check_like(call, 3, "v", 0, "p", err));
	TRY(check_like(call, 4, "d", 0, "p", err));
	TRY(check_shape(call, 5, "norm2", DTYPE_F32, SHAPE0(), "a scalar", err));
	TRY(check_shape(call, 6, "hyper", DTYPE_F32, SHAPE1(2), "learning rate, step", err));
	const int64_t units = (shape_count(call->in[0].shape) + ROW_SPAN_UNIT - 1) / ROW_SPAN_UNIT;
	TRY(check_count(call, 7, "scales", DTYPE_F32, units, "one for 16 of p", err));
	return check_narrow_and_factors(call, 8, err);
}
