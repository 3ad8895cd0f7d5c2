/* matmul: all of it is gemm. */
#include "engine/cpu/gemm.h"
#include "engine/cpu/kernels/kernels.h"

status KERNEL(matmul)(backend *b, const op_call *call)
{
	const matmul_params *p = call->params;
	const tensor *a = &call->in[0], *w = &call->in[1];
	int64_t m = p->trans_a ? shape_last(a->shape) : shape_rows(a->shape);
	int64_t k = p->trans_a ? shape_rows(a->shape) : shape_last(a->shape);
	int64_t n = p->trans_b ? shape_rows(w->shape) : shape_last(w->shape);
	return gemm(((const cpu *)b)->threads, p->trans_a, p->trans_b, m, n, k, p->alpha, a->data, w->data, 0,
	            call->out[0].data);
}
