/* hide_keys. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

#include <inttypes.h>

value op_hide_keys(graph *g, value rng, value mask, hide_keys_params params)
{
	return graph_apply_one(g, OP_hide_keys, (value[]){rng, mask}, 2, &params);
}

status op_hide_keys_check(op_call *call, error *err)
{
	const hide_keys_params *p = call->params;
	TRY(check_shape(call, 0, "rng", DTYPE_I32, SHAPE1(4), "seed low, seed high, step, 0", err));
	if (!(p->p >= 0 && p->p < 1))
		return error_set(err, STATUS_INVALID, "p", "p is %g, must be at least 0 and below 1", p->p);
	if (p->batch < 0 || p->length < 0 || p->length > INT32_MAX || p->first < 0 || p->beyond < 0)
		return error_set(err, STATUS_INVALID, "length", "%" PRId64 " rows of %" PRId64 " keys are not possible",
		                 p->batch, p->length);
	if (check_present(call, 1))
		TRY(check_shape(call, 1, "mask", DTYPE_I32, SHAPE2(p->batch, p->length), "one for each key", err));
	check_output(call, 0, DTYPE_I32, SHAPE2(p->batch, p->length));
	return STATUS_OK;
}
