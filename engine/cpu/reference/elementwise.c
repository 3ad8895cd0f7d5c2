#include <math.h>

#include "engine/cpu/reference/reference.h"

/* y = a + b */
status reference_add(backend *unused, const op_call *call)
{
	(void)unused;
	const float *a = call->in[0].data, *b = call->in[1].data;
	float *y = call->out[0].data;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++)
		y[i] = a[i] + b[i];
	return STATUS_OK;
}

/* y = a ⊙ b */
status reference_mul(backend *unused, const op_call *call)
{
	(void)unused;
	const float *a = call->in[0].data, *b = call->in[1].data;
	float *y = call->out[0].data;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++)
		y[i] = a[i] * b[i];
	return STATUS_OK;
}

/* y = a + b ⊙ c */
status reference_gate(backend *unused, const op_call *call)
{
	(void)unused;
	const float *a = call->in[0].data, *b = call->in[1].data, *c = call->in[2].data;
	float *y = call->out[0].data;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++)
		y[i] = (float)((double)a[i] + (double)b[i] * (double)c[i]);
	return STATUS_OK;
}

/* y = factor · x */
status reference_scale(backend *unused, const op_call *call)
{
	(void)unused;
	const scale_params *p = call->params;
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++)
		y[i] = p->factor * x[i];
	return STATUS_OK;
}

/* y = a x + b z */
status reference_axpby(backend *unused, const op_call *call)
{
	(void)unused;
	const axpby_params *p = call->params;
	const float *x = call->in[0].data, *z = call->in[1].data;
	float *y = call->out[0].data;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++)
		y[i] = (float)((double)p->a * (double)x[i] + (double)p->b * (double)z[i]);
	return STATUS_OK;
}

/* y = x */
status reference_scale_gradient(backend *unused, const op_call *call)
{
	(void)unused;
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++)
		y[i] = x[i];
	return STATUS_OK;
}

/* y = s · x */
status reference_scale_by(backend *unused, const op_call *call)
{
	(void)unused;
	const float *x = call->in[0].data, *s = call->in[1].data;
	float *y = call->out[0].data;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++)
		y[i] = *s * x[i];
	return STATUS_OK;
}

/* y = tanh x */
status reference_tanh(backend *unused, const op_call *call)
{
	(void)unused;
	const float *x = call->in[0].data;
	float *y = call->out[0].data;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++)
		y[i] = (float)tanh((double)x[i]);
	return STATUS_OK;
}

/* dx = dy ⊙ y / x, dy · at_zero where x = 0 */
status reference_secant_grad(backend *unused, const op_call *call)
{
	(void)unused;
	const float at_zero = ((const secant_params *)call->params)->at_zero;
	const float *x = call->in[0].data, *y = call->in[1].data, *dy = call->in[2].data;
	float *dx = call->out[0].data;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++)
		dx[i] = x[i] == 0 ? dy[i] * at_zero : (float)((double)dy[i] * ((double)y[i] / (double)x[i]));
	return STATUS_OK;
}

/* y = value everywhere */
status reference_fill(backend *unused, const op_call *call)
{
	(void)unused;
	const fill_params *p = call->params;
	for (int64_t i = 0; i < shape_count(call->out[0].shape); i++)
		if (p->integer)
			((int32_t *)call->out[0].data)[i] = p->whole;
		else
			((float *)call->out[0].data)[i] = p->value;
	return STATUS_OK;
}
