/* t5_buckets, distances, alibi: tables of some thousand numbers, one thread each. Logarithms and powers are computed in
 * double and rounded once, so that they equal the CPU's. Bytes: the table once. */
#include "cuda/device.cuh"
#include "cuda/kernels.h"

extern "C" {
#include "engine/tensor/ops/position_bias.h"
}

enum { THREADS = 128 };

static __global__ void __launch_bounds__(THREADS) t5_buckets_kernel(t5_buckets_params p, t5_side s, int32_t *to)
{
	for (int64_t i = grid_first(); i < p.count; i += grid_stride()) {
		const int64_t d = p.first + i, distance = d >= 0 ? d : p.bidirectional ? -d : 0;
		const float ratio = __fdiv_rn((float)distance, (float)s.exact);
		const float log_ratio = ratio >= 1.0f ? (float)log((double)ratio) : 0.0f;
		to[i] = (int32_t)(t5_bucket(s, distance, log_ratio) + (p.bidirectional && d < 0 ? s.side : 0));
	}
}

status cuda_t5_buckets(backend *b, const op_call *call)
{
	const t5_buckets_params *p = (const t5_buckets_params *)call->params;
	const int64_t side = p->bidirectional ? p->buckets / 2 : p->buckets, exact = side / 2;
	const t5_side s = {side, exact, (float)log((double)p->max_distance / (double)exact)};
	return cuda_launch(b, t5_buckets_kernel, dim3(cuda_blocks(b, p->count, THREADS)), THREADS, 0, *p, s,
	                   (int32_t *)call->out[0].data);
}

static __global__ void __launch_bounds__(THREADS) distances_kernel(distances_params p, float *to)
{
	for (int64_t i = grid_first(); i < p.count; i += grid_stride()) {
		const double d = (double)(p.first + i), size = p.logarithmic ? log(fabs(d) + 1.0) : fabs(d);
		to[i] = (float)(d < 0.0 && !p.absolute ? -size : size);
	}
}

status cuda_distances(backend *b, const op_call *call)
{
	const distances_params *p = (const distances_params *)call->params;
	return cuda_launch(b, distances_kernel, dim3(cuda_blocks(b, p->count, THREADS)), THREADS, 0, *p,
	                   (float *)call->out[0].data);
}

static __global__ void __launch_bounds__(THREADS) alibi_kernel(alibi_params p, const float *log_slopes, float *to)
{
	for (int64_t e = grid_first(); e < p.count * p.heads; e += grid_stride()) {
		const int64_t head = e % p.heads, d = p.first + e / p.heads;
		float slope = 0.0f;
		if (head < p.alibi_heads)
			slope = (float)(log_slopes ? exp((double)log_slopes[head])
			                           : exp2(alibi_exponent(p.alibi_heads, head)));
		to[e] = -slope * (float)(d < 0 ? -d : d);
	}
}

status cuda_alibi(backend *b, const op_call *call)
{
	const alibi_params *p = (const alibi_params *)call->params;
	return cuda_launch(b, alibi_kernel, dim3(cuda_blocks(b, p->count * p->heads, THREADS)), THREADS, 0, *p,
	                   (const float *)cuda_optional(call, 0), (float *)call->out[0].data);
}
