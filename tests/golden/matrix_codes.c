#include "tests/golden/matrix_codes.h"

#include <math.h>

#include "engine/tensor/ops.h"

/* y [n] = codes · step. */
static status run(golden *g, const float *x, int64_t n, int64_t bits, float *y, float *step, error *err)
{
	plan *p;
	value made[2];
	const quantize_params params = {QUANTIZE_TENSOR, bits};
	graph *quantized = graph_new();
	if (!quantized)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	value in = graph_input(quantized, "x", DTYPE_F32, SHAPE1(n));
	graph_apply(quantized, OP_quantize, &in, 1, &params, made);
	graph_output(quantized, made[0], "y");
	graph_output(quantized, made[1], "step");
	TRY(golden_plan(g, quantized, NULL, &p, err));
	TRY(plan_write(p, in, x));
	TRY(plan_run(p));
	TRY(plan_read(p, made[0], y));
	return plan_read(p, made[1], step);
}

status matrix_codes(golden *g, const float *x, int64_t n, int64_t bits, float *codes, float *step, error *err)
{
	TRY(run(g, x, n, bits, codes, step, err));
	for (int64_t i = 0; i < n; i++)
		codes[i] = *step > 0 ? rintf(codes[i] / *step) : 0;
	return STATUS_OK;
}

status matrix_codes_read(golden *g, float *x, int64_t n, int64_t bits, error *err)
{
	float step;
	return run(g, x, n, bits, x, &step, err);
}
