#include <math.h>

#include "engine/cpu/reference/reference.h"

/* gain of channel d: of each, of all, or 1 where there is none */
static double gain_at(const op_call *call, int64_t d)
{
	const float *gain = call->n_in > 1 ? call->in[1].data : NULL;
	return !gain ? 1 : (double)gain[shape_count(call->in[1].shape) == 1 ? 0 : d];
}

/* x [rows, D], gain? [D] or [1] -> y [rows, D], inverse [rows, groups]; of each part of D / groups channels:
 *   inverse = 1 / max(√(Σ_d x² + eps), floor),  y = gain ⊙ x · scale · inverse */
status reference_normalize(backend *b, const op_call *call)
{
	(void)b;
	const normalize_params *p = call->params;
	const float *x = call->in[0].data;
	float *y = call->out[0].data, *inverse_out = call->out[1].data;
	const int64_t width = shape_last(call->in[0].shape) / p->groups;
	const int64_t parts = shape_rows(call->in[0].shape) * p->groups;
	for (int64_t i = 0; i < parts; i++, x += width) {
		const int64_t first = i % p->groups * width; /* channel of the part's first number */
		double squares = 0;
		for (int64_t d = 0; d < width; d++)
			squares += (double)x[d] * (double)x[d];
		const double inverse = 1 / fmax(sqrt(squares + (double)p->eps), (double)p->floor);
		for (int64_t d = 0; d < width && y; d++)
			y[i * width + d] =
			    (float)(gain_at(call, first + d) * (double)x[d] * (double)p->scale * inverse);
		if (inverse_out)
			inverse_out[i] = (float)inverse;
	}
	return STATUS_OK;
}

/* Part i: y' = gain ⊙ dy, x̂ = x · inverse,
 *   dx = scale · inverse (y' - x̂ (x̂·y')), without the last term where the norm is a constant */
static void part_grad(const op_call *call, int64_t i, int64_t width)
{
	const normalize_params *p = call->params;
	const float *x = (const float *)call->in[0].data + i * width, *dy = (const float *)call->in[3].data + i * width;
	const float inverse = ((const float *)call->in[2].data)[i];
	float *dx = (float *)call->out[0].data + i * width;
	const int64_t first = i % p->groups * width;
	const bool constant = p->frozen || inverse >= 1 / p->floor;
	double along = 0;
	for (int64_t d = 0; d < width && !constant; d++)
		along += gain_at(call, first + d) * (double)dy[d] * (double)x[d] * (double)inverse;
	for (int64_t d = 0; d < width; d++)
		dx[d] = (float)((double)p->scale * (double)inverse *
		                (gain_at(call, first + d) * (double)dy[d] - (double)x[d] * (double)inverse * along));
}

/* x [rows, D], gain? [D] or [1], inverse [rows, groups], dy [rows, D]
 *   -> dx [rows, D], dgain of gain's shape = Σ_rows dy ⊙ x̂ · scale, over the channels too where gain is one */
status reference_normalize_grad(backend *b, const op_call *call)
{
	(void)b;
	const normalize_params *p = call->params;
	const float *x = call->in[0].data, *inverse = call->in[2].data, *dy = call->in[3].data;
	const float *dx = call->out[0].data;
	float *dgain = call->out[1].data;
	const int64_t rows = shape_rows(call->in[0].shape), d = shape_last(call->in[0].shape), width = d / p->groups;
	for (int64_t i = 0; i < rows * p->groups && dx; i++)
		part_grad(call, i, width);
	const int64_t gains = dgain ? shape_count(call->out[1].shape) : 0;
	for (int64_t k = 0; k < gains; k++) {
		double sum = 0;
		for (int64_t r = 0; r < rows; r++)
			for (int64_t j = gains == 1 ? 0 : k; j < (gains == 1 ? d : k + 1); j++)
				sum += (double)dy[r * d + j] * (double)x[r * d + j] *
				       (double)inverse[r * p->groups + j / width];
		dgain[k] = (float)((double)p->scale * sum);
	}
	return STATUS_OK;
}
