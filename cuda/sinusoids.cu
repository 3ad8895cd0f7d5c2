/* sinusoids: one thread per pair of columns. Frequencies are computed in double, so that they equal the CPU's. Bytes:
 * the result once. */
#include "cuda/device.cuh"
#include "cuda/kernels.h"

extern "C" {
#include "engine/tensor/ops/rotary.h"
}

enum { THREADS = 128 };

static __device__ __forceinline__ double angle_of(const sinusoids_params &p, double step, int64_t i, double position)
{
	const double twice = 2.0 * (double)i;
	if (p.form == SINUSOIDS_EXACT)
		return position * exp(twice * step);
	const float w = p.form == SINUSOIDS_EXP ? (float)exp((double)(float)(twice * (double)(float)step))
	                                        : (float)pow(10000.0, -(double)(float)(twice / (double)p.width));
	return (double)(float)(position * (double)w);
}

/* step: -ln 10000 / width */
static __global__ void __launch_bounds__(THREADS)
    sinusoids_kernel(sinusoids_params p, double step, const int32_t *positions, float *y, int64_t pairs)
{
	const int64_t half = p.width / 2;
	for (int64_t e = grid_first(); e < pairs; e += grid_stride())
		rotary_turn(angle_of(p, step, e % half, (double)positions[e / half]), y + 2 * e + 1, y + 2 * e);
}

status cuda_sinusoids(backend *b, const op_call *call)
{
	const sinusoids_params *p = (const sinusoids_params *)call->params;
	const int64_t pairs = shape_count(call->out[0].shape) / 2;
	return cuda_launch(b, sinusoids_kernel, dim3(cuda_blocks(b, pairs, THREADS)), THREADS, 0, *p,
	                   -log(10000.0) / (double)p->width, (const int32_t *)call->in[0].data,
	                   (float *)call->out[0].data, pairs);
}
