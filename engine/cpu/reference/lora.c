#include "engine/cpu/reference/reference.h"

/* The sums A x. */
size_t reference_lora_scratch(const backend *b, const op_call *call)
{
	(void)b;
	(void)call;
	return LORA_MAX_RANK * sizeof(double);
}

/* Return row i of A and, after it, of Bᵀ of entry e; NULL: its strip does not exist. */
static const float *lora_strip(const op_call *call, int64_t e, int64_t i)
{
	const shape strips = call->in[4].shape, bank = call->in[5].shape;
	const int64_t s = ((const int32_t *)call->in[4].data)[e * strips.dim[1] + i];
	const lora_params *p = call->params;
	return s < 0 || s >= bank.dim[0] ? NULL : (const float *)call->in[5].data + s * bank.dim[1] + p->offset;
}

/* y [R, N], x [R, K], entry [R], rank [E, P], strip [E, 64], bank [S, F] -> z [R, N] = y + B (A x). A is [rank, K], Bᵀ
 * [rank, N]. */
status reference_lora(backend *b, const op_call *call)
{
	(void)b;
	const lora_params *p = call->params;
	const int64_t n = shape_last(call->in[0].shape), k = shape_last(call->in[1].shape);
	const int64_t entries = call->in[3].shape.dim[0], parts = call->in[3].shape.dim[1];
	const int32_t *entry = call->in[2].data, *ranks = call->in[3].data;
	double *sums = call->scratch;
	for (int64_t r = 0; r < shape_rows(call->in[0].shape); r++) {
		const float *y = (const float *)call->in[0].data + r * n, *x = (const float *)call->in[1].data + r * k;
		float *z = (float *)call->out[0].data + r * n;
		const int64_t e = entry[r];
		int64_t rank = e < 0 || e >= entries ? 0 : ranks[e * parts + p->part];
		rank = rank < 0 || rank > LORA_MAX_RANK ? 0 : rank;
		for (int64_t j = 0; j < rank; j++) {
			const float *a = lora_strip(call, e, j);
			sums[j] = 0;
			for (int64_t i = 0; a && i < k; i++)
				sums[j] += (double)a[i] * (double)x[i];
		}
		for (int64_t i = 0; i < n; i++) {
			double sum = (double)y[i];
			for (int64_t j = 0; j < rank; j++) {
				const float *a = lora_strip(call, e, j);
				sum += a ? (double)a[k + i] * sums[j] : 0;
			}
			z[i] = (float)sum;
		}
	}
	return STATUS_OK;
}
