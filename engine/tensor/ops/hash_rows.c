/* hash_rows. */
#include "engine/tensor/ops/hash_rows.h"

#include <inttypes.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

value op_hash_rows(graph *g, value index, hash_rows_params params)
{
	return graph_apply_one(g, OP_hash_rows, &index, 1, &params);
}

status op_hash_rows_check(op_call *call, error *err)
{
	const hash_rows_params *p = call->params;
	TRY(check_type(call, 0, "index", DTYPE_I32, err));
	if (p->round < 0 || p->round >= HASH_ROWS_ROUNDS)
		return error_set(err, STATUS_INVALID, "round", "round is %" PRId64 ", must be from 0 to %d", p->round,
		                 HASH_ROWS_ROUNDS - 1);
	check_output(call, 0, DTYPE_I32, call->in[0].shape);
	return STATUS_OK;
}
