/* dropout: its mask is a function of (seed, stream, step, element), so nothing is
 * saved for the backward, which is the same op on dy. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

value op_dropout(graph *g, value x, value rng, float p, uint32_t stream)
{
	return graph_apply_one(g, OP_dropout, (value[]){x, rng}, 2, &(dropout_params){p, stream});
}

status op_dropout_check(op_call *call, error *err)
{
	const dropout_params *p = call->params;
	TRY(check_real(call, 0, "x", err));
	TRY(check_shape(call, 1, "rng", DTYPE_I32, SHAPE1(4), "seed low, seed high, step, 0", err));
	if (!(p->p >= 0 && p->p < 1))
		return error_set(err, STATUS_INVALID, "p", "p is %g, must be at least 0 and below 1", (double)p->p);
	check_output(call, 0, call->in[0].type, call->in[0].shape);
	return STATUS_OK;
}

status op_dropout_backward(graph *g, const op_node *node)
{
	const dropout_params *p = node->params;
	graph_accumulate(g, node->in[0],
	                 op_dropout(g, graph_output_gradient(g, node, 0), node->in[1], p->p, p->stream));
	return STATUS_OK;
}
