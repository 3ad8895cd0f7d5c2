/* hash_rows: a few multiplications for each token, independent of each other. */
#include "engine/tensor/ops/hash_rows.h"

#include "engine/cpu/kernels/kernels.h"

enum { HASH_COST = 4 };

static void hash(const op_call *call, int64_t first, int64_t last)
{
	const hash_rows_params *p = call->params;
	const int32_t *index = call->in[0].data;
	int32_t *to = call->out[0].data;
	for (int64_t i = first; i < last; i++)
		to[i] = index[i] < 0 ? -1 : hash_row(p->first + index[i], (int)p->round);
}

status KERNEL(hash_rows)(backend *b, const op_call *call)
{
	return kernel_elements(b, call, HASH_COST, hash);
}
