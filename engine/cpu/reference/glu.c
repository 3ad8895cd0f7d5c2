#include "engine/cpu/reference/activation.h"
#include "engine/cpu/reference/reference.h"

/* x = a | b or, gate_first, b | a [rows, 2D] -> y [rows, D] = a ⊙ f(b) */
status reference_glu(backend *unused, const op_call *call)
{
	(void)unused;
	const glu_params *p = call->params;
	const int64_t rows = shape_rows(call->out[0].shape), d = shape_last(call->out[0].shape);
	float *y = call->out[0].data;
	for (int64_t r = 0; r < rows; r++) {
		const float *x = (const float *)call->in[0].data + r * 2 * d;
		const float *a = x + p->gate_first * d, *b = x + !p->gate_first * d;
		for (int64_t j = 0; j < d; j++)
			y[r * d + j] = (float)((double)a[j] * reference_activation_value(p->kind, (double)b[j]));
	}
	return STATUS_OK;
}

/* dy [rows, D] -> da and db in the order of x [rows, 2D]: da = dy ⊙ f(b), db = dy ⊙ a ⊙ f'(b);
 * frozen da = share dy ⊙ f(b), db = (1 - share) dy ⊙ a ⊙ (f(b) - f(0)) / b */
status reference_glu_grad(backend *unused, const op_call *call)
{
	(void)unused;
	const glu_params *p = call->params;
	const double to_a = p->frozen ? (double)p->share : 1, to_b = p->frozen ? 1 - (double)p->share : 1;
	const int64_t rows = shape_rows(call->in[0].shape), d = shape_last(call->in[0].shape) / 2;
	const int64_t at_a = p->gate_first * d, at_b = !p->gate_first * d;
	for (int64_t r = 0; r < rows; r++) {
		const float *x = (const float *)call->in[0].data + r * 2 * d,
		            *dy = (const float *)call->in[1].data + r * d;
		float *dx = (float *)call->out[0].data + r * 2 * d;
		for (int64_t j = 0; j < d; j++) {
			const double a = (double)x[at_a + j], b = (double)x[at_b + j], by = (double)dy[j];
			dx[at_a + j] = (float)(to_a * by * reference_activation_value(p->kind, b));
			dx[at_b + j] = (float)(to_b * by * a *
			                    (p->frozen ? reference_activation_secant(p->kind, b)
			                               : reference_activation_slope(p->kind, b)));
		}
	}
	return STATUS_OK;
}
