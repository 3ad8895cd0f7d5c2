/* join_rows, join_rows_grad, slice_rows, slice_rows_grad, pad_mask, mask_rows. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

#include <inttypes.h>

/* Argument i is f32, bf16 or i32 [batch, length, channels]. */
static status check_sequence(const op_call *call, int i, const char *name, error *err)
{
	if (!(check_present(call, i) && call->in[i].type == DTYPE_I32))
		TRY(check_real(call, i, name, err));
	char text[96];
	if (call->in[i].shape.rank == 3)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, name, "%s is %s, must be [batch, length, channels]", name,
	                 shape_text(call->in[i].shape, text, sizeof text));
}

/* --- join_rows --------------------------------------------------------------------- */

value op_join_rows(graph *g, value prefix, value x, join_rows_params params)
{
	return graph_apply_one(g, OP_join_rows, (value[]){prefix, x}, 2, &params);
}

static status wrong_prefix(const op_call *call, error *err)
{
	char prefix[96], x[96];
	return error_set(err, STATUS_INVALID, "prefix", "prefix %s does not go before x %s",
	                 shape_text(call->in[0].shape, prefix, sizeof prefix),
	                 shape_text(call->in[1].shape, x, sizeof x));
}

status op_join_rows_check(op_call *call, error *err)
{
	const join_rows_params *p = call->params;
	TRY(check_sequence(call, 1, "x", err));
	if (!check_present(call, 0))
		return error_set(err, STATUS_INVALID, "prefix", "prefix is missing");
	const shape x = call->in[1].shape, prefix = call->in[0].shape;
	const bool each = p->heads == 0 && prefix.rank == 3;
	TRY(check_type(call, 0, "prefix", each || call->in[1].type == DTYPE_I32 ? call->in[1].type : DTYPE_F32, err));
	const int64_t rows = prefix.rank >= 2 ? prefix.dim[prefix.rank - 2] : 0;
	if (p->heads < 0 || (p->heads > 0 && x.dim[2] % p->heads != 0))
		return error_set(err, STATUS_INVALID, "heads", "%" PRId64 " heads do not divide %" PRId64 " channels",
		                 p->heads, x.dim[2]);
	const shape expected = p->heads > 0 ? SHAPE3(p->heads, rows, x.dim[2] / p->heads)
	                       : each       ? SHAPE3(x.dim[0], rows, x.dim[2])
	                                    : SHAPE2(rows, x.dim[2]);
	if (!shape_equal(prefix, expected))
		return wrong_prefix(call, err);
	check_output(call, 0, call->in[1].type, SHAPE3(x.dim[0], rows + x.dim[1], x.dim[2]));
	return STATUS_OK;
}

status op_join_rows_backward(graph *g, const op_node *node)
{
	const join_rows_params *p = node->params;
	const shape prefix = graph_value(g, node->in[0])->shape;
	const join_rows_params params = {p->heads, prefix.dim[prefix.rank - 2], p->heads == 0 && prefix.rank == 3};
	value grads[2], in[] = {graph_output_gradient(g, node, 0), node->out[0]};
	TRY(graph_apply(g, OP_join_rows_grad, in, 2, &params, grads));
	graph_accumulate(g, node->in[1], grads[0]);
	graph_accumulate(g, node->in[0], grads[1]);
	return STATUS_OK;
}

status op_join_rows_grad_check(op_call *call, error *err)
{
	const join_rows_params *p = call->params;
	TRY(check_real(call, 0, "dy", err));
	TRY(check_sequence(call, 1, "y", err));
	TRY(check_like(call, 1, "y", 0, "dy", err));
	const shape y = call->in[1].shape;
	if (p->rows < 0 || p->rows > y.dim[1])
		return error_set(err, STATUS_INVALID, "rows", "%" PRId64 " rows are no beginning of %" PRId64, p->rows,
		                 y.dim[1]);
	if (p->heads < 0 || (p->heads > 0 && y.dim[2] % p->heads != 0))
		return error_set(err, STATUS_INVALID, "heads", "%" PRId64 " heads do not divide %" PRId64 " channels",
		                 p->heads, y.dim[2]);
	check_output(call, 0, call->in[0].type, SHAPE3(y.dim[0], y.dim[1] - p->rows, y.dim[2]));
	if (p->each)
		check_output(call, 1, call->in[0].type, SHAPE3(y.dim[0], p->rows, y.dim[2]));
	else if (p->heads > 0)
		check_output(call, 1, DTYPE_F32, SHAPE3(p->heads, p->rows, y.dim[2] / p->heads));
	else
		check_output(call, 1, DTYPE_F32, SHAPE2(p->rows, y.dim[2]));
	return STATUS_OK;
}

/* --- slice_rows ---------------------------------------------------------------------- */

value op_slice_rows(graph *g, value x, int64_t first, int64_t count)
{
	return graph_apply_one(g, OP_slice_rows, &x, 1, &(slice_rows_params){first, count});
}

/* The rows of a slice of x. */
static status check_slice(const slice_rows_params *p, shape x, int64_t *count, error *err)
{
	*count = p->count < 0 ? x.dim[1] - p->first + p->count + 1 : p->count;
	if (p->first < 0 || *count < 0 || p->first > x.dim[1] || *count > x.dim[1] - p->first)
		return error_set(err, STATUS_INVALID, "first",
		                 "%" PRId64 " rows from row %" PRId64 " on are not in %" PRId64, p->count, p->first,
		                 x.dim[1]);
	return STATUS_OK;
}

status op_slice_rows_check(op_call *call, error *err)
{
	int64_t count;
	TRY(check_sequence(call, 0, "x", err));
	const shape x = call->in[0].shape;
	TRY(check_slice(call->params, x, &count, err));
	check_output(call, 0, call->in[0].type, SHAPE3(x.dim[0], count, x.dim[2]));
	return STATUS_OK;
}

status op_slice_rows_backward(graph *g, const op_node *node)
{
	value dx, in[] = {graph_output_gradient(g, node, 0), node->in[0]};
	TRY(graph_apply(g, OP_slice_rows_grad, in, 2, node->params, &dx));
	graph_accumulate(g, node->in[0], dx);
	return STATUS_OK;
}

status op_slice_rows_grad_check(op_call *call, error *err)
{
	int64_t count;
	TRY(check_real(call, 0, "dy", err));
	TRY(check_sequence(call, 1, "x", err));
	const shape x = call->in[1].shape, dy = call->in[0].shape;
	TRY(check_slice(call->params, x, &count, err));
	if (shape_rows(dy) != x.dim[0] * count || shape_last(dy) != x.dim[2])
		return error_set(err, STATUS_INVALID, "dy", "dy must have the rows that were taken of x");
	check_output(call, 0, call->in[0].type, x);
	return STATUS_OK;
}

/* --- masks ----------------------------------------------------------------------------- */

value op_pad_mask(graph *g, value mask, int64_t before, int32_t filled)
{
	return graph_apply_one(g, OP_pad_mask, &mask, 1, &(pad_mask_params){before, filled});
}

status op_pad_mask_check(op_call *call, error *err)
{
	const pad_mask_params *p = call->params;
	TRY(check_type(call, 0, "mask", DTYPE_I32, err));
	const shape mask = call->in[0].shape;
	char text[96];
	if (mask.rank != 2)
		return error_set(err, STATUS_INVALID, "mask", "mask is %s, must be [batch, length]",
		                 shape_text(mask, text, sizeof text));
	if (p->before < 0 || p->before > INT32_MAX)
		return error_set(err, STATUS_INVALID, "before", "before is %" PRId64 ", must not be negative",
		                 p->before);
	check_output(call, 0, DTYPE_I32, SHAPE2(mask.dim[0], p->before + mask.dim[1]));
	return STATUS_OK;
}

value op_mask_rows(graph *g, value x, value mask)
{
	return graph_apply_one(g, OP_mask_rows, (value[]){x, mask}, 2, NULL);
}

status op_mask_rows_check(op_call *call, error *err)
{
	TRY(check_real(call, 0, "x", err));
	TRY(check_count(call, 1, "mask", DTYPE_I32, shape_rows(call->in[0].shape), "one for each row", err));
	check_output(call, 0, call->in[0].type, call->in[0].shape);
	check_by_rows(call, 3, 1);
	return STATUS_OK;
}

status op_mask_rows_backward(graph *g, const op_node *node)
{
	graph_accumulate(g, node->in[0], op_mask_rows(g, graph_output_gradient(g, node, 0), node->in[1]));
	return STATUS_OK;
}
