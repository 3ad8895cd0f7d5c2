/* add, mul, gate, scale, axpby, scale_gradient, scale_by, tanh, secant_grad, fill: one output element per input
 * element. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

/* --- add, mul ---------------------------------------------------------------- */

static status check_binary(op_call *call, error *err)
{
	TRY(check_real(call, 0, "a", err));
	TRY(check_like(call, 1, "b", 0, "a", err));
	check_output(call, 0, call->in[0].type, call->in[0].shape);
	check_by_rows(call, 3, 1);
	return STATUS_OK;
}

value op_add(graph *g, value a, value b)
{
	return graph_apply_one(g, OP_add, (value[]){a, b}, 2, NULL);
}

status op_add_check(op_call *call, error *err)
{
	return check_binary(call, err);
}

status op_add_backward(graph *g, const op_node *node)
{
	value dy = graph_output_gradient(g, node, 0);
	graph_accumulate(g, node->in[0], dy);
	graph_accumulate(g, node->in[1], dy);
	return STATUS_OK;
}

/* The gradient of b ⊙ c; in a frozen network b has a share of it and c the rest. */
static void multiply_back(graph *g, value b, value c, value dy)
{
	const graph_rule rule = graph_gradient_rule(g);
	const bool equal = !rule.frozen || rule.share == 1 - rule.share;
	const value to_b = rule.frozen ? op_scale(g, dy, rule.share) : dy;
	const value to_c = equal ? to_b : op_scale(g, dy, 1 - rule.share);
	if (graph_needs_gradient(g, b))
		graph_accumulate(g, b, op_mul(g, to_b, c));
	if (graph_needs_gradient(g, c))
		graph_accumulate(g, c, op_mul(g, to_c, b));
}

value op_mul(graph *g, value a, value b)
{
	return graph_apply_one(g, OP_mul, (value[]){a, b}, 2, NULL);
}

status op_mul_check(op_call *call, error *err)
{
	return check_binary(call, err);
}

status op_mul_backward(graph *g, const op_node *node)
{
	multiply_back(g, node->in[0], node->in[1], graph_output_gradient(g, node, 0));
	return STATUS_OK;
}

/* --- scale_by ---------------------------------------------------------------- */

value op_scale_by(graph *g, value x, value s)
{
	return graph_apply_one(g, OP_scale_by, (value[]){x, s}, 2, NULL);
}

status op_scale_by_check(op_call *call, error *err)
{
	TRY(check_real(call, 0, "x", err));
	TRY(check_shape(call, 1, "s", DTYPE_F32, SHAPE0(), "a scalar", err));
	check_output(call, 0, call->in[0].type, call->in[0].shape);
	check_by_rows(call, 1, 1);
	return STATUS_OK;
}

/* --- gate -------------------------------------------------------------------- */

value op_gate(graph *g, value a, value b, value c)
{
	return graph_apply_one(g, OP_gate, (value[]){a, b, c}, 3, NULL);
}

status op_gate_check(op_call *call, error *err)
{
	TRY(check_binary(call, err));
	check_by_rows(call, 7, 1);
	return check_like(call, 2, "c", 0, "a", err);
}

status op_gate_backward(graph *g, const op_node *node)
{
	value dy = graph_output_gradient(g, node, 0);
	graph_accumulate(g, node->in[0], dy);
	multiply_back(g, node->in[1], node->in[2], dy);
	return STATUS_OK;
}

/* --- scale ---------------------------------------------------------------------- */

value op_scale(graph *g, value x, float factor)
{
	return graph_apply_one(g, OP_scale, &x, 1, &(scale_params){factor});
}

status op_scale_check(op_call *call, error *err)
{
	TRY(check_real(call, 0, "x", err));
	check_output(call, 0, call->in[0].type, call->in[0].shape);
	check_by_rows(call, 1, 1);
	return STATUS_OK;
}

status op_scale_backward(graph *g, const op_node *node)
{
	const scale_params *p = node->params;
	graph_accumulate(g, node->in[0], op_scale(g, graph_output_gradient(g, node, 0), p->factor));
	return STATUS_OK;
}

/* --- axpby ---------------------------------------------------------------------- */

value op_axpby(graph *g, value x, value z, float a, float b)
{
	return graph_apply_one(g, OP_axpby, (value[]){x, z}, 2, &(axpby_params){a, b});
}

status op_axpby_check(op_call *call, error *err)
{
	TRY(check_real(call, 0, "x", err));
	TRY(check_like(call, 1, "z", 0, "x", err));
	check_output(call, 0, call->in[0].type, call->in[0].shape);
	check_by_rows(call, 3, 1);
	return STATUS_OK;
}

/* --- scale_gradient ---------------------------------------------------------------- */

value op_scale_gradient(graph *g, value x, float factor)
{
	return graph_apply_one(g, OP_scale_gradient, &x, 1, &(scale_params){factor});
}

status op_scale_gradient_check(op_call *call, error *err)
{
	return op_scale_check(call, err);
}

status op_scale_gradient_backward(graph *g, const op_node *node)
{
	const float factor = ((const scale_params *)node->params)->factor;
	const value dy = graph_output_gradient(g, node, 0);
	graph_accumulate(g, node->in[0], graph_gradient_rule(g).frozen ? dy : op_scale(g, dy, factor));
	return STATUS_OK;
}

/* --- tanh ----------------------------------------------------------------------- */

value op_tanh(graph *g, value x)
{
	return graph_apply_one(g, OP_tanh, &x, 1, NULL);
}

status op_tanh_check(op_call *call, error *err)
{
	TRY(check_real(call, 0, "x", err));
	check_output(call, 0, call->in[0].type, call->in[0].shape);
	check_by_rows(call, 1, 1);
	return STATUS_OK;
}

/* dx = dy (1 - y²) */
status op_tanh_backward(graph *g, const op_node *node)
{
	value x = node->in[0], y = node->out[0], dy = graph_output_gradient(g, node, 0);
	if (graph_gradient_rule(g).frozen)
		graph_accumulate(g, x, op_secant_grad(g, x, y, dy, 1));
	else
		graph_accumulate(g, x, op_gate(g, dy, op_scale(g, op_mul(g, dy, y), -1), y));
	return STATUS_OK;
}

/* --- secant_grad ---------------------------------------------------------------- */

value op_secant_grad(graph *g, value x, value y, value dy, float at_zero)
{
	return graph_apply_one(g, OP_secant_grad, (value[]){x, y, dy}, 3, &(secant_params){at_zero});
}

status op_secant_grad_check(op_call *call, error *err)
{
	TRY(check_type(call, 0, "x", DTYPE_F32, err));
	TRY(check_like(call, 1, "y", 0, "x", err));
	TRY(check_like(call, 2, "dy", 0, "x", err));
	check_output(call, 0, DTYPE_F32, call->in[0].shape);
	check_by_rows(call, 7, 1);
	return STATUS_OK;
}

/* --- fill ----------------------------------------------------------------------- */

value op_fill(graph *g, shape s, float x)
{
	return graph_apply_one(g, OP_fill, NULL, 0, &(fill_params){.shape = s, .value = x});
}

value op_fill_integer(graph *g, shape s, int32_t x)
{
	return graph_apply_one(g, OP_fill, NULL, 0, &(fill_params){.shape = s, .integer = true, .whole = x});
}

status op_fill_check(op_call *call, error *err)
{
	const fill_params *p = call->params;
	if (shape_check(p->shape) != STATUS_OK)
		return error_set(err, STATUS_INVALID, "shape", "the shape is not valid");
	check_output(call, 0, p->integer ? DTYPE_I32 : DTYPE_F32, p->shape);
	return STATUS_OK;
}
