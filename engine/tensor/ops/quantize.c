/* quantize. */
#include "engine/tensor/ops/quantize.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

#include <inttypes.h>

/* The order of additions of engine/tensor/ops/quantize.h: n ≤ QUANTIZE_PART numbers. */
static double part_squares(const float *x, int64_t n)
{
	double lane[QUANTIZE_LANES] = {0};
	for (int64_t i = 0; i < n; i++)
		lane[i % QUANTIZE_LANES] += (double)x[i] * (double)x[i];
	for (int64_t half = QUANTIZE_LANES / 2; half > 0; half /= 2)
		for (int64_t l = 0; l < half; l++)
			lane[l] += lane[l + half];
	return lane[0];
}

/* Sum of squares of any number of elements: part i of level k has QUANTIZE_PART^k elements from element i ·
 * QUANTIZE_PART^k on. */
static double squares(const float *x, int64_t n)
{
	int64_t size = QUANTIZE_PART;
	double lane[QUANTIZE_LANES] = {0};
	if (n <= QUANTIZE_PART)
		return part_squares(x, n);
	while (n > size * QUANTIZE_PART)
		size *= QUANTIZE_PART;
	for (int64_t i = 0; i * size < n; i++)
		lane[i % QUANTIZE_LANES] += squares(x + i * size, n - i * size < size ? n - i * size : size);
	for (int64_t half = QUANTIZE_LANES / 2; half > 0; half /= 2)
		for (int64_t l = 0; l < half; l++)
			lane[l] += lane[l + half];
	return lane[0];
}

float quantize_tensor_step(const float *x, int64_t n)
{
	return quantize_step(squares(x, n), n);
}

quantize_values op_quantize_with_step(graph *g, value x, quantize_params params)
{
	value out[2];
	graph_apply(g, OP_quantize, &x, 1, &params, out);
	return (quantize_values){out[0], out[1]};
}

value op_quantize(graph *g, value x, quantize_params params)
{
	return op_quantize_with_step(g, x, params).y;
}

status op_quantize_check(op_call *call, error *err)
{
	const quantize_params *p = call->params;
	TRY(check_type(call, 0, "x", DTYPE_F32, err));
	const shape x = call->in[0].shape;
	if (p->mode != QUANTIZE_TENSOR && p->mode != QUANTIZE_ROWS && p->mode != QUANTIZE_FIXED)
		return error_set(err, STATUS_INVALID, "mode", "mode is %d, which is none", (int)p->mode);
	if (p->bits != 8 && (p->mode != QUANTIZE_TENSOR || (p->bits != 4 && p->bits != 2)))
		return error_set(err, STATUS_INVALID, "bits", "bits is %" PRId64 ", must be 8%s", p->bits,
		                 p->mode == QUANTIZE_TENSOR ? ", 4 or 2" : "");
	if (p->mode == QUANTIZE_ROWS && shape_last(x) > (int64_t)QUANTIZE_PART * QUANTIZE_PART)
		return error_set(err, STATUS_INVALID, "x", "a row has %" PRId64 " elements, may have %d", shape_last(x),
		                 QUANTIZE_PART * QUANTIZE_PART);
	check_output(call, 0, DTYPE_F32, x);
	const int64_t steps[] = {[QUANTIZE_TENSOR] = 1, [QUANTIZE_ROWS] = shape_rows(x), [QUANTIZE_FIXED] = 0};
	check_output(call, 1, DTYPE_F32, SHAPE1(steps[p->mode]));
	if (p->mode != QUANTIZE_TENSOR)
		check_by_rows(call, 1, p->mode == QUANTIZE_ROWS ? 3 : 1);
	return STATUS_OK;
}

status op_quantize_backward(graph *g, const op_node *node)
{
	const value x = node->in[0], dy = graph_output_gradient(g, node, 0);
	graph_accumulate(g, x, graph_gradient_rule(g).frozen ? op_secant_grad(g, x, node->out[0], dy, 0) : dy);
	return STATUS_OK;
}
