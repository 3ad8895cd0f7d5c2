/* matmul: C = alpha · op(A) op(B). */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

#include <inttypes.h>

static value matmul_apply(graph *g, value a, value b, matmul_params params)
{
	return graph_apply_one(g, OP_matmul, (value[]){a, b}, 2, &params);
}

value op_matmul(graph *g, value a, value b, bool trans_a, bool trans_b, float alpha)
{
	return matmul_apply(g, a, b, (matmul_params){trans_a, trans_b, false, alpha});
}

value op_matmul_wide(graph *g, value a, value b, bool trans_a, bool trans_b, float alpha)
{
	return matmul_apply(g, a, b, (matmul_params){trans_a, trans_b, true, alpha});
}

static status check_matrix(const op_call *call, int i, const char *name, error *err)
{
	if (call->in[i].shape.rank >= 2)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, name, "%s has %d dimensions, a matrix needs 2", name,
	                 call->in[i].shape.rank);
}

/* f32 or bf16 like a, or packed. */
static status check_b(const op_call *call, error *err)
{
	const matmul_params *p = call->params;
	const bool panels = check_present(call, 1) && dtype_is_panel(call->in[1].type);
	return panels && call->in[0].type == DTYPE_F32 && !p->trans_a && !p->trans_b
	           ? STATUS_OK
	           : check_type(call, 1, "b", call->in[0].type, err);
}

status op_matmul_check(op_call *call, error *err)
{
	const matmul_params *p = call->params;
	TRY(check_real(call, 0, "a", err));
	TRY(check_b(call, err));
	TRY(check_matrix(call, 0, "a", err));
	TRY(check_matrix(call, 1, "b", err));
	shape a = call->in[0].shape, b = call->in[1].shape;
	int64_t k = p->trans_a ? shape_rows(a) : shape_last(a);
	int64_t b_k = p->trans_b ? shape_last(b) : shape_rows(b);
	int64_t n = p->trans_b ? shape_rows(b) : shape_last(b);
	if (k != b_k) {
		char left[96], right[96];
		return error_set(err, STATUS_INVALID, "b",
		                 "a is %s%s and b is %s%s: the inner dimensions %" PRId64 " and %" PRId64 " differ",
		                 shape_text(a, left, sizeof left), p->trans_a ? " transposed" : "",
		                 shape_text(b, right, sizeof right), p->trans_b ? " transposed" : "", k, b_k);
	}
	shape c = p->trans_a ? SHAPE2(shape_last(a), n) : a;
	c.dim[c.rank - 1] = n;
	check_output(call, 0, p->wide ? DTYPE_F32 : call->in[0].type, c);
	if (!p->trans_a)
		check_by_rows(call, 1, 1);
	return STATUS_OK;
}

/* With G = dC, from d⟨G, αAB⟩:
 *   C = AB:    dA = G Bᵀ    dB = Aᵀ G        C = A Bᵀ:  dA = G B      dB = Gᵀ A
 *   C = AᵀB:   dA = B Gᵀ    dB = A G         C = AᵀBᵀ:  dA = Bᵀ Gᵀ    dB = Gᵀ Aᵀ
 * that is: a stored transposed swaps the factors of dA and transposes G there; the
 * same for b and dB. A gradient that is f32, a weight's, is not rounded on its way there. */
status op_matmul_backward(graph *g, const op_node *node)
{
	const matmul_params *p = node->params;
	value a = node->in[0], b = node->in[1], dc = graph_output_gradient(g, node, 0);
	const dtype type = graph_value(g, a)->type;
	if (graph_value(g, dc)->type != type) /* C was wide */
		dc = op_cast(g, dc, type);
	matmul_params da = {.trans_a = p->trans_a && p->trans_b,
	                    .trans_b = p->trans_a || !p->trans_b,
	                    .wide = graph_gradient_type(g, a) != type,
	                    .alpha = p->alpha};
	matmul_params db = {.trans_a = p->trans_b || !p->trans_a,
	                    .trans_b = p->trans_a && p->trans_b,
	                    .wide = graph_gradient_type(g, b) != type,
	                    .alpha = p->alpha};
	if (graph_needs_gradient(g, a))
		graph_accumulate(g, a, p->trans_a ? matmul_apply(g, b, dc, da) : matmul_apply(g, dc, b, da));
	if (graph_needs_gradient(g, b))
		graph_accumulate(g, b, p->trans_b ? matmul_apply(g, dc, a, db) : matmul_apply(g, a, dc, db));
	return STATUS_OK;
}
