/* Weights and vectors as they are read from 8-bit codes. */
#include "engine/tensor/ops/quantize.h"

#include "engine/cpu/reference/reference.h"

/* x [groups, width] -> y like it, step [groups]: y = q · step of each group */
status reference_quantize(backend *unused, const op_call *call)
{
	(void)unused;
	const quantize_params *p = call->params;
	const float *x = call->in[0].data;
	float *y = call->out[0].data, *step_out = call->out[1].data;
	const int64_t count = shape_count(call->in[0].shape);
	const int64_t groups = p->mode == QUANTIZE_ROWS ? shape_rows(call->in[0].shape) : 1;
	for (int64_t i = 0; i < groups; i++) {
		const int64_t width = count / groups;
		const float *from = x + i * width;
		const float step = p->mode == QUANTIZE_FIXED ? QUANTIZE_FIXED_STEP : quantize_tensor_step(from, width);
		if (step_out && p->mode != QUANTIZE_FIXED)
			step_out[i] = step;
		for (int64_t d = 0; d < width && y; d++)
			y[i * width + d] = quantize_value(from[d], step, p->bits);
	}
	return STATUS_OK;
}
