#include "engine/cpu/reference/reference.h"
#include "engine/tensor/panel.h"

/* B, where it is packed. */
size_t reference_matmul_scratch(const backend *b, const op_call *call)
{
	(void)b;
	return dtype_is_panel(call->in[1].type) ? (size_t)shape_count(call->in[1].shape) * sizeof(float) : 0;
}

/* C [M, N] = alpha · op(A) [M, K] · op(B) [K, N]; op transposes what is stored [K, M], [N, K]. B
 * may be panels of [K, N]. */
status reference_matmul(backend *unused, const op_call *call)
{
	(void)unused;
	const matmul_params *p = call->params;
	const tensor *stored = &call->in[1];
	const float *a = call->in[0].data, *b = stored->data;
	float *c = call->out[0].data, *whole = call->scratch;
	int64_t m = shape_rows(call->out[0].shape), n = shape_last(call->out[0].shape);
	int64_t k = p->trans_a ? shape_rows(call->in[0].shape) : shape_last(call->in[0].shape);
	for (int64_t l = 0; dtype_is_panel(stored->type) && l < k; l++)
		panel_row(stored->type, stored->data, n, l, whole + l * n);
	if (dtype_is_panel(stored->type))
		b = whole;
	for (int64_t i = 0; i < m; i++) {
		for (int64_t j = 0; j < n; j++) {
			double sum = 0;
			for (int64_t l = 0; l < k; l++)
				sum += (double)a[p->trans_a ? l * m + i : i * k + l] *
				       (double)b[p->trans_b ? j * k + l : l * n + j];
			c[i * n + j] = (float)((double)p->alpha * sum);
		}
	}
	return STATUS_OK;
}
