/* Weights and vectors as they are read from 8-bit codes. */
#include "engine/tensor/ops/quantize.h"

#include "engine/cpu/reference/reference.h"

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

/* Of any number of them: part i of level k has QUANTIZE_PART^k elements from i times as many on. */
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
		const float step =
		    p->mode == QUANTIZE_FIXED ? QUANTIZE_FIXED_STEP : quantize_step(squares(from, width), width);
		if (step_out && p->mode != QUANTIZE_FIXED)
			step_out[i] = step;
		for (int64_t d = 0; d < width && y; d++)
			y[i * width + d] = quantize_value(from[d], step, p->bits);
	}
	return STATUS_OK;
}
