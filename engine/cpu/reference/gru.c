#include <math.h>

#include "engine/cpu/reference/reference.h"

/* Channel j of a row of D: a, b [3D] = r | z | n parts, and h. */
typedef struct cell {
	double r, z, n, argument, bn, h; /* argument: of n's tanh */
} cell;

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

static cell cell_at(const op_call *call, int64_t row, int64_t j)
{
	const int64_t d = shape_last(call->in[2].shape);
	const float *a = (const float *)call->in[0].data + row * 3 * d,
	            *b = (const float *)call->in[1].data + row * 3 * d;
	cell c = {.bn = (double)b[2 * d + j], .h = (double)((const float *)call->in[2].data)[row * d + j]};
	c.r = sigmoid((double)a[j] + (double)b[j]);
	c.z = sigmoid((double)a[d + j] + (double)b[d + j]);
	c.argument = (double)a[2 * d + j] + c.r * c.bn;
	c.n = tanh(c.argument);
	return c;
}

/* a, b [rows, 3D], h [rows, D] -> y = (1 - z) n + z h */
status reference_gru(backend *unused, const op_call *call)
{
	(void)unused;
	const int64_t d = shape_last(call->in[2].shape);
	float *y = call->out[0].data;
	for (int64_t i = 0; i < shape_count(call->in[2].shape); i++) {
		const cell c = cell_at(call, i / d, i % d);
		y[i] = (float)((1 - c.z) * c.n + c.z * c.h);
	}
	return STATUS_OK;
}

/* dy [rows, D] -> da, db [rows, 3D], dh [rows, D]; frozen with r, z and n / argument constant */
status reference_gru_grad(backend *unused, const op_call *call)
{
	(void)unused;
	const bool frozen = ((const gru_params *)call->params)->frozen;
	const int64_t d = shape_last(call->in[2].shape);
	float *da = call->out[0].data, *db = call->out[1].data, *dh = call->out[2].data;
	for (int64_t i = 0; i < shape_count(call->in[2].shape); i++) {
		const cell c = cell_at(call, i / d, i % d);
		const double dy = (double)((const float *)call->in[3].data)[i];
		const double secant = c.argument == 0 ? 1 : c.n / c.argument;
		const double dn = dy * (1 - c.z) * (frozen ? secant : 1 - c.n * c.n);
		const double dr = frozen ? 0 : dn * c.bn * c.r * (1 - c.r),
		             dz = frozen ? 0 : dy * (c.h - c.n) * c.z * (1 - c.z);
		const int64_t at = i / d * 3 * d + i % d;
		if (da)
			da[at] = (float)dr, da[at + d] = (float)dz, da[at + 2 * d] = (float)dn;
		if (db)
			db[at] = (float)dr, db[at + d] = (float)dz, db[at + 2 * d] = (float)(dn * c.r);
		if (dh)
			dh[i] = (float)(dy * c.z);
	}
	return STATUS_OK;
}
