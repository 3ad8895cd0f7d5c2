/* gather, gather_grad: rows of a table by index, and their sum back into it. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

#include <inttypes.h>

value op_gather(graph *g, value table, value index, int64_t padding_row)
{
	return graph_apply_one(g, OP_gather, (value[]){table, index}, 2, &(gather_params){padding_row});
}

/* The table is a matrix view, so rows of hidden states [B, N, D] can be picked too. */
status op_gather_check(op_call *call, error *err)
{
	const bool packed = check_present(call, 0) && dtype_is_panel(call->in[0].type);
	if (!packed && !(check_present(call, 0) && call->in[0].type == DTYPE_I32))
		TRY(check_real(call, 0, "table", err));
	TRY(check_type(call, 1, "index", DTYPE_I32, err));
	shape table = call->in[0].shape, out = call->in[1].shape;
	if (table.rank < 2)
		return error_set(err, STATUS_INVALID, "table", "table has %d dimensions, needs rows and columns",
		                 table.rank);
	if (out.rank == TENSOR_MAX_RANK)
		return error_set(err, STATUS_INVALID, "index", "index has %d dimensions, at most %d are possible",
		                 out.rank, TENSOR_MAX_RANK - 1);
	out.dim[out.rank++] = shape_last(table);
	check_output(call, 0, packed ? DTYPE_F32 : call->in[0].type, out);
	return STATUS_OK;
}

static value gradient(graph *g, value index, value dy, value table, int64_t rows, int64_t padding_row)
{
	return graph_apply_one(g, OP_gather_grad, (value[]){index, dy, table}, 3,
	                       &(gather_grad_params){rows, padding_row});
}

status op_gather_backward(graph *g, const op_node *node)
{
	const gather_params *p = node->params;
	value table = node->in[0], dy = graph_output_gradient(g, node, 0);
	const value_info *info = graph_value(g, table);
	const value like = info->role == ROLE_TEMPORARY ? table : VALUE_NONE; /* its shape may change (plan_reshape) */
	if (graph_needs_gradient(g, table))
		graph_accumulate(g, table, gradient(g, node->in[1], dy, like, shape_rows(info->shape), p->padding_row));
	return STATUS_OK;
}

value op_gather_grad(graph *g, value index, value dy, int64_t rows, int64_t padding_row)
{
	return gradient(g, index, dy, VALUE_NONE, rows, padding_row);
}

status op_gather_grad_check(op_call *call, error *err)
{
	const gather_grad_params *p = call->params;
	TRY(check_type(call, 0, "index", DTYPE_I32, err));
	TRY(check_real(call, 1, "dy", err));
	shape dy = call->in[1].shape;
	if (shape_rows(dy) != shape_count(call->in[0].shape))
		return error_set(err, STATUS_INVALID, "dy", "dy has %" PRId64 " rows for %" PRId64 " indices",
		                 shape_rows(dy), shape_count(call->in[0].shape));
	if (p->rows < 0)
		return error_set(err, STATUS_INVALID, "rows", "rows is %" PRId64 ", must not be negative", p->rows);
	if (!check_present(call, 2)) {
		check_output(call, 0, DTYPE_F32, SHAPE2(p->rows, shape_last(dy)));
		return STATUS_OK;
	}
	TRY(check_real(call, 2, "table", err));
	if (shape_last(call->in[2].shape) != shape_last(dy))
		return error_set(err, STATUS_INVALID, "table", "table and dy must have rows of one length");
	check_output(call, 0, DTYPE_F32, call->in[2].shape);
	return STATUS_OK;
}
