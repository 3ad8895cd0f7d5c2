#include <math.h>

#include "engine/cpu/reference/reference.h"

/* The angle of pair i at a position. */
static double angle_of(const sinusoids_params *p, int64_t i, double position)
{
	const double power = 2 * (double)i / (double)p->width;
	if (p->form == SINUSOIDS_EXACT)
		return position * pow(10000, -power);
	const float step = (float)(-log(10000) / (double)p->width);
	const float w = p->form == SINUSOIDS_EXP ? (float)exp((double)(float)(2 * (double)i * (double)step))
	                                         : (float)pow(10000, -(double)(float)power);
	return (double)(float)(position * (double)w);
}

/* positions [rows] -> [rows, width]: sin, cos of each pair's angle */
status reference_sinusoids(backend *unused, const op_call *call)
{
	(void)unused;
	const sinusoids_params *p = call->params;
	const int32_t *positions = call->in[0].data;
	float *y = call->out[0].data;
	for (int64_t e = 0; e < shape_count(call->out[0].shape); e++) {
		const int64_t column = e % p->width;
		const double angle = angle_of(p, column / 2, (double)positions[e / p->width]);
		y[e] = (float)(column % 2 ? cos(angle) : sin(angle));
	}
	return STATUS_OK;
}
