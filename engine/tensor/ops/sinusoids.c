/* sinusoids. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

#include <inttypes.h>

value op_sinusoids(graph *g, value positions, sinusoids_params params)
{
	return graph_apply_one(g, OP_sinusoids, &positions, 1, &params);
}

status op_sinusoids_check(op_call *call, error *err)
{
	const sinusoids_params *p = call->params;
	const tensor *positions = &call->in[0];
	if (positions->type != DTYPE_I32 || positions->shape.rank >= TENSOR_MAX_RANK)
		return error_set(err, STATUS_INVALID, "positions", "positions must be int32 with at most %d dimensions",
		                 TENSOR_MAX_RANK - 1);
	if (p->width < 2 || p->width % 2 != 0)
		return error_set(err, STATUS_INVALID, "width", "width is %" PRId64 ", must be even and at least 2",
		                 p->width);
	if (p->form > SINUSOIDS_POW)
		return error_set(err, STATUS_INVALID, "form", "there is no form %d", (int)p->form);
	shape s = positions->shape;
	s.dim[s.rank++] = p->width;
	check_output(call, 0, DTYPE_F32, s);
	check_by_rows(call, 1, 1);
	return STATUS_OK;
}
