/* gru, gru_grad: a row at a time, the three parts of a and b in one loop. */
#include "engine/cpu/kernels/activation.h"
#include "engine/cpu/kernels/kernels.h"

enum { COST = 3 * ACTIVATION_COST };

static inline float sigmoid(float x)
{
	return activation_value(ACTIVATION_SIGMOID, x);
}

static void values(const op_call *call, int64_t first, int64_t last)
{
	const int64_t d = shape_last(call->in[2].shape);
	for (int64_t i = first; i < last; i++) {
		const float *a = (const float *)call->in[0].data + i * 3 * d,
		            *b = (const float *)call->in[1].data + i * 3 * d;
		const float *h = (const float *)call->in[2].data + i * d;
		float *y = (float *)call->out[0].data + i * d;
#pragma omp simd
		for (int64_t j = 0; j < d; j++) {
			const float r = sigmoid(a[j] + b[j]), z = sigmoid(a[d + j] + b[d + j]);
			y[j] = (1.0f - z) * math_tanh(a[2 * d + j] + r * b[2 * d + j]) + z * h[j];
		}
	}
}

status KERNEL(gru)(backend *b, const op_call *call)
{
	const shape h = call->in[2].shape;
	return kernel_for(b, call, shape_rows(h), shape_count(h) * COST, values);
}

static void gradients(const op_call *call, int64_t first, int64_t last)
{
	const bool frozen = ((const gru_params *)call->params)->frozen;
	const int64_t d = shape_last(call->in[2].shape);
	float *das = call->out[0].data, *dbs = call->out[1].data, *dhs = call->out[2].data;
	for (int64_t i = first; i < last; i++) {
		const float *a = (const float *)call->in[0].data + i * 3 * d,
		            *b = (const float *)call->in[1].data + i * 3 * d;
		const float *h = (const float *)call->in[2].data + i * d, *dy = (const float *)call->in[3].data + i * d;
		float *da = das ? das + i * 3 * d : NULL, *db = dbs ? dbs + i * 3 * d : NULL,
		      *dh = dhs ? dhs + i * d : NULL;
		for (int64_t j = 0; j < d; j++) {
			const logistic r = logistic_of(a[j] + b[j], math_exp(-fabsf(a[j] + b[j])));
			const logistic z = logistic_of(a[d + j] + b[d + j], math_exp(-fabsf(a[d + j] + b[d + j])));
			const float argument = a[2 * d + j] + r.value * b[2 * d + j], n = math_tanh(argument);
			const float secant = argument == 0.0f ? 1.0f : n / argument;
			const float dn = dy[j] * (1.0f - z.value) * (frozen ? secant : 1.0f - n * n);
			const float dr = frozen ? 0.0f : dn * b[2 * d + j] * r.slope;
			const float dz = frozen ? 0.0f : dy[j] * (h[j] - n) * z.slope;
			if (da)
				da[j] = dr, da[d + j] = dz, da[2 * d + j] = dn;
			if (db)
				db[j] = dr, db[d + j] = dz, db[2 * d + j] = dn * r.value;
			if (dh)
				dh[j] = dy[j] * z.value;
		}
	}
}

status KERNEL(gru_grad)(backend *b, const op_call *call)
{
	const shape h = call->in[2].shape;
	return kernel_for(b, call, shape_rows(h), shape_count(h) * COST, gradients);
}
