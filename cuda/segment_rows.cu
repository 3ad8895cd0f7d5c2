/* segment_rows: one thread per token; segment_begin: one per front row. Bytes: 8 for each. */
#include "cuda/device.cuh"
#include "cuda/kernels.h"

extern "C" {
#include "engine/tensor/ops/segment_rows.h"
}

enum { THREADS = 128 };

static __global__ void __launch_bounds__(THREADS)
    segment_rows_kernel(uint32_t segment, uint32_t front, const int32_t *position, int64_t count, int32_t *row)
{
	for (int64_t i = grid_first(); i < count; i += grid_stride())
		row[i] = segment_row(position[i], segment, front);
}

status cuda_segment_rows(backend *b, const op_call *call)
{
	const segment_rows_params *p = (const segment_rows_params *)call->params;
	const int64_t count = shape_count(call->out[0].shape);
	return cuda_launch(b, segment_rows_kernel, dim3(cuda_blocks(b, count, THREADS)), THREADS, 0,
	                   (uint32_t)p->segment, (uint32_t)p->front, (const int32_t *)call->in[0].data, count,
	                   (int32_t *)call->out[0].data);
}

static __global__ void __launch_bounds__(THREADS)
    segment_begin_kernel(uint32_t segment, uint32_t front, const int32_t *position, const int32_t *length, int64_t all,
                         int32_t *first, int32_t *count, int32_t *rows, int32_t *which)
{
	for (int64_t i = grid_first(); i < all; i += grid_stride()) {
		const int64_t b = i / front;
		const int32_t n = (int32_t)(i - b * front);
		const segment_front f = segment_front_of(position[b], length[b], segment, front);
		if (rows)
			rows[i] = f.first + n;
		if (which)
			which[i] = f.count ? n : -1;
		if (first && n == 0)
			first[b] = f.first;
		if (count && n == 0)
			count[b] = f.count;
	}
}

status cuda_segment_begin(backend *b, const op_call *call)
{
	const segment_rows_params *p = (const segment_rows_params *)call->params;
	const int64_t all = shape_count(call->out[2].shape);
	return cuda_launch(b, segment_begin_kernel, dim3(cuda_blocks(b, all, THREADS)), THREADS, 0,
	                   (uint32_t)p->segment, (uint32_t)p->front, (const int32_t *)call->in[0].data,
	                   (const int32_t *)call->in[1].data, all, (int32_t *)call->out[0].data,
	                   (int32_t *)call->out[1].data, (int32_t *)call->out[2].data, (int32_t *)call->out[3].data);
}
