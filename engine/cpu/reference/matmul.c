#include "engine/cpu/reference/reference.h"

/* C [M, N] = alpha · op(A) [M, K] · op(B) [K, N]; op transposes what is stored [K, M], [N, K]. */
status reference_matmul(backend *unused, const op_call *call)
{
	(void)unused;
	const matmul_params *p = call->params;
	const float *a = call->in[0].data, *b = call->in[1].data;
	float *c = call->out[0].data;
	int64_t m = shape_rows(call->out[0].shape), n = shape_last(call->out[0].shape);
	int64_t k = p->trans_a ? shape_rows(call->in[0].shape) : shape_last(call->in[0].shape);
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
