/* lora: z = y + B (A x), with matrices that each row chooses. */
#include <inttypes.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

value op_lora(graph *g, value y, value x, value entry, value rank, value strip, value bank, lora_params params)
{
	return graph_apply_one(g, OP_lora, (value[]){y, x, entry, rank, strip, bank}, 6, &params);
}

/* Argument i is a matrix of rows of at least this many numbers. rows: their number; -1: any. */
static status check_table(const op_call *call, int i, const char *name, dtype type, int64_t rows, int64_t least,
                          error *err)
{
	TRY(check_type(call, i, name, type, err));
	const shape s = call->in[i].shape;
	if (s.rank != 2 || (rows >= 0 && s.dim[0] != rows) || s.dim[1] < least)
		return error_set(err, STATUS_INVALID, name, "%s needs %srows of at least %" PRId64 " numbers", name,
		                 rows < 0 ? "" : "as many rows as rank, ", least);
	return STATUS_OK;
}

status op_lora_check(op_call *call, error *err)
{
	const lora_params *p = call->params;
	TRY(check_type(call, 0, "y", DTYPE_F32, err));
	TRY(check_type(call, 1, "x", DTYPE_F32, err));
	const shape y = call->in[0].shape, x = call->in[1].shape;
	const int64_t rows = shape_rows(y);
	if (y.rank < 1 || shape_rows(x) != rows)
		return error_set(err, STATUS_INVALID, "x", "x must have as many rows as y: %" PRId64, rows);
	if (p->part < 0 || p->offset < 0)
		return error_set(err, STATUS_INVALID, "offset", "part and offset must not be negative");
	TRY(check_count(call, 2, "entry", DTYPE_I32, rows, "one for each row of y", err));
	TRY(check_table(call, 3, "rank", DTYPE_I32, -1, p->part + 1, err));
	TRY(check_table(call, 4, "strip", DTYPE_I32, call->in[3].shape.dim[0], LORA_MAX_RANK, err));
	TRY(check_table(call, 5, "bank", DTYPE_F32, -1, p->offset + shape_last(x) + shape_last(y), err));
	check_output(call, 0, DTYPE_F32, y);
	check_by_rows(call, 7, 1);
	return STATUS_OK;
}
