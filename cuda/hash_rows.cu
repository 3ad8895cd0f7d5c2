/* hash_rows: one thread per index. Bytes: 8 for each. */
#include "cuda/device.cuh"
#include "cuda/kernels.h"

extern "C" {
#include "engine/tensor/ops/hash_rows.h"
}

enum { THREADS = 128 };

static __global__ void __launch_bounds__(THREADS)
    hash_rows_kernel(hash_rows_params p, const int32_t *index, int64_t count, int32_t *to)
{
	for (int64_t i = grid_first(); i < count; i += grid_stride())
		to[i] = index[i] < 0 ? -1 : hash_row(p.first + index[i], (int)p.round);
}

status cuda_hash_rows(backend *b, const op_call *call)
{
	const int64_t count = shape_count(call->out[0].shape);
	return cuda_launch(b, hash_rows_kernel, dim3(cuda_blocks(b, count, THREADS)), THREADS, 0,
	                   *(const hash_rows_params *)call->params, (const int32_t *)call->in[0].data, count,
	                   (int32_t *)call->out[0].data);
}
