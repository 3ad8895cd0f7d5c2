/* rotary. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

#include <inttypes.h>
#include <math.h>

value op_rotary(graph *g, value x, value positions, rotary_params params)
{
	return graph_apply_one(g, OP_rotary, (value[]){x, positions}, 2, &params);
}

static status check_params(const rotary_params *p, int64_t channels, error *err)
{
	if (p->heads < 1 || channels % p->heads != 0)
		return error_set(err, STATUS_INVALID, "heads", "%" PRId64 " heads do not divide %" PRId64 " channels",
		                 p->heads, channels);
	if (p->width < 0 || p->width % 2 != 0 || p->width > channels / p->heads)
		return error_set(err, STATUS_INVALID, "width",
		                 "width is %" PRId64 ", must be even and at most the %" PRId64 " channels of a head",
		                 p->width, channels / p->heads);
	if (p->segment < 0 || p->segment > INT32_MAX || p->memory < 0 || p->memory > INT32_MAX)
		return error_set(err, STATUS_INVALID, "segment", "segment and memory must be from 0 to %d", INT32_MAX);
	if (!(p->base > 0 && isfinite(p->base)))
		return error_set(err, STATUS_INVALID, "base", "base is %g, must be above 0", (double)p->base);
	if (!(p->xpos_base >= 0 && isfinite(p->xpos_base) && isfinite(p->xpos_center)))
		return error_set(err, STATUS_INVALID, "xpos_base",
		                 "xpos_base and xpos_center must be finite, and xpos_base not negative");
	return STATUS_OK;
}

status op_rotary_check(op_call *call, error *err)
{
	TRY(check_real(call, 0, "x", err));
	const shape x = call->in[0].shape;
	if (x.rank < 2)
		return error_set(err, STATUS_INVALID, "x", "x has %d dimensions, needs rows and channels", x.rank);
	TRY(check_params(call->params, shape_last(x), err));
	check_output(call, 0, call->in[0].type, x);
	if (check_present(call, 2))
		TRY(check_like(call, 2, "like", 0, "x", err));
	if (check_present(call, 2) && call->in[2].shape.rank < 2)
		return error_set(err, STATUS_INVALID, "like", "like has no rows");
	if (!check_present(call, 1))
		return STATUS_OK;
	check_by_rows(call, 3, 1);
	return check_count(call, 1, "positions", DTYPE_I32, shape_rows(x), "one for each row", err);
}

status op_rotary_backward(graph *g, const op_node *node)
{
	rotary_params params = *(const rotary_params *)node->params;
	value dx, in[] = {graph_output_gradient(g, node, 0), node->in[1], node->out[0]};
	params.transposed = !params.transposed;
	TRY(graph_apply(g, OP_rotary, in, 3, &params, &dx));
	graph_accumulate(g, node->in[0], dx);
	return STATUS_OK;
}
