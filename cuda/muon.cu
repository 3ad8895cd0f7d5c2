/* muon_direction, write_range, muon. The products between the first two are matmul's.
 *
 * muon_direction: a pass writes u and sums its squares in double, each block into its place of scratch. In the second
 * pass every block adds these sums in the same order, so that all use the same norm. 20 bytes per number. write_range:
 * 8 bytes per number of the part, and of all others where y is not x. muon: as adamw (optimizer.cu), and 4 for the
 * direction; a matrix leaves v alone. */
#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"

#include <math.h>

enum { THREADS = 256, WARPS = THREADS / WARP };

static __device__ __forceinline__ float clip_factor(float clip, float norm2)
{
	const float norm = sqrtf(norm2);
	return clip > 0.0f && norm > clip ? clip / (norm + 1e-6f) : 1.0f;
}

/* --- muon_direction ------------------------------------------------------------------------------ */

struct direction_arguments {
	const float *m, *g, *norm2;
	float *x, momentum, clip;
	double *parts; /* [blocks] */
	int64_t n;
};

/* Sum over the block, the same in each thread. space: WARPS doubles. */
static __device__ __forceinline__ double sum_of_block(double x, double *space)
{
	x = warp_sum(x);
	__syncthreads();
	if (threadIdx.x % WARP == 0)
		space[threadIdx.x / WARP] = x;
	__syncthreads();
	x = 0.0;
	for (int i = 0; i < WARPS; i++)
		x += space[i];
	return x;
}

template <int N> static __device__ __forceinline__ double nesterov(const direction_arguments &o, float clip, int64_t e)
{
	const numbers<N> g = load<N>(o.g + e);
	numbers<N> m = load<N>(o.m + e);
	double sum = 0.0;
#pragma unroll
	for (int i = 0; i < N; i++) {
		const float grad = clip * g.at[i];
		m.at[i] = grad + o.momentum * (o.momentum * m.at[i] + grad);
		sum += (double)m.at[i] * (double)m.at[i];
	}
	store(o.x + e, m);
	return sum;
}

static __global__ void __launch_bounds__(THREADS) muon_step_kernel(direction_arguments o)
{
	enum { N = 4 };
	const float clip = clip_factor(o.clip, *o.norm2);
	double sum = 0.0;
	for (int64_t i = grid_first() * N; i + N <= o.n; i += grid_stride() * N)
		sum += nesterov<N>(o, clip, i);
	const int64_t last = o.n / N * N + grid_first();
	if (last < o.n)
		sum += nesterov<1>(o, clip, last);
	sum = sum_of_block(sum, shared_memory<double>());
	if (threadIdx.x == 0)
		o.parts[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(THREADS) muon_unit_kernel(direction_arguments o)
{
	enum { N = 4 };
	double sum = 0.0;
	for (int i = threadIdx.x; i < (int)gridDim.x; i += THREADS)
		sum += o.parts[i];
	sum = sum_of_block(sum, shared_memory<double>());
	const float inverse = sum > 0.0 ? (float)(1.0 / sqrt(sum)) : 0.0f;
	for (int64_t i = grid_first() * N; i + N <= o.n; i += grid_stride() * N) {
		numbers<N> x = load<N>(o.x + i);
#pragma unroll
		for (int j = 0; j < N; j++)
			x.at[j] *= inverse;
		store(o.x + i, x);
	}
	const int64_t last = o.n / N * N + grid_first();
	if (last < o.n)
		o.x[last] *= inverse;
}

static unsigned direction_blocks(const backend *b, const op_call *call)
{
	return cuda_blocks(b, shape_count(call->out[0].shape), THREADS * 4);
}

size_t cuda_muon_direction_scratch(const backend *b, const op_call *call)
{
	return direction_blocks(b, call) * sizeof(double);
}

status cuda_muon_direction(backend *b, const op_call *call)
{
	const muon_direction_params *p = (const muon_direction_params *)call->params;
	const unsigned blocks = direction_blocks(b, call);
	direction_arguments o = {};
	o.m = (const float *)call->in[0].data + p->first;
	o.g = (const float *)call->in[1].data + p->first;
	o.norm2 = (const float *)call->in[2].data;
	o.x = (float *)call->out[0].data;
	o.momentum = p->momentum;
	o.clip = p->clip;
	o.parts = (double *)call->scratch;
	o.n = shape_count(call->out[0].shape);
	TRY(cuda_launch(b, muon_step_kernel, blocks, THREADS, WARPS * sizeof(double), o));
	return cuda_launch(b, muon_unit_kernel, blocks, THREADS, WARPS * sizeof(double), o);
}

/* --- write_range --------------------------------------------------------------------------------- */

struct range_copy {
	const float *x;
	template <int N> __device__ __forceinline__ numbers<N> at(int64_t e) const
	{
		return load<N>(x + e);
	}
};

status cuda_write_range(backend *b, const op_call *call)
{
	const int64_t first = ((const write_range_params *)call->params)->first;
	float *y = (float *)call->out[0].data;
	if (y != call->in[0].data)
		TRY(cuda_elementwise(b, y, range_copy{(const float *)call->in[0].data},
		                     shape_count(call->in[0].shape)));
	return cuda_elementwise(b, y + first, range_copy{(const float *)call->in[1].data},
	                        shape_count(call->in[1].shape));
}

/* --- muon ---------------------------------------------------------------------------------------- */

struct muon_arguments {
	float *p, *m, *v;
	const float *g, *d, *norm2, *hyper, *scales;
	const step_factors *factors;
	bf16 *narrow;
	muon_params h;
	double log_beta1, log_beta2;
	int64_t n;
};

/* Constants shared by all elements. */
struct muon_step {
	float clip, lr, rate, root;
	int skip;
};

/* Run by two threads, 0 and 1: a bias correction each. */
static __device__ void prepare_muon(const muon_arguments &o, muon_step *s)
{
	const bool second = threadIdx.x;
	const double correction = -expm1((double)o.hyper[1] * (second ? o.log_beta2 : o.log_beta1));
	if (second) {
		s->root = (float)(1.0 / sqrt(correction));
		return;
	}
	s->skip = !isfinite(*o.norm2);
	s->clip = clip_factor(o.h.adamw.clip, *o.norm2);
	s->lr = o.hyper[0];
	s->rate = (float)((double)o.hyper[0] / correction);
}

/* N neighbours of a unit. */
template <int N>
static __device__ __forceinline__ void update_muon(const muon_arguments &o, const muon_step &s, int64_t e)
{
	numbers<N> p = load<N>(o.p + e);
	if (!s.skip) {
		const step_factors f = o.factors ? o.factors[e / ROW_SPAN_UNIT] : step_factors{1.0f, 1.0f};
		const float lr = s.lr * f.rate, rate = s.rate * f.rate;
		const float shrink = 1.0f - lr * o.h.adamw.decay * f.decay;
		const float scale = o.scales[e / ROW_SPAN_UNIT];
		const numbers<N> g = load<N>(o.g + e);
		numbers<N> m = load<N>(o.m + e);
		if (scale > 0.0f) {
			const numbers<N> d = load<N>(o.d + e);
#pragma unroll
			for (int i = 0; i < N; i++) {
				m.at[i] = o.h.momentum * m.at[i] + s.clip * g.at[i];
				p.at[i] = p.at[i] * shrink - lr * scale * d.at[i];
			}
		} else {
			numbers<N> v = load<N>(o.v + e);
#pragma unroll
			for (int i = 0; i < N; i++) {
				const float grad = s.clip * g.at[i], beta1 = o.h.adamw.beta1, beta2 = o.h.adamw.beta2;
				m.at[i] = beta1 * m.at[i] + (1.0f - beta1) * grad;
				v.at[i] = beta2 * v.at[i] + (1.0f - beta2) * grad * grad;
				p.at[i] =
				    p.at[i] * shrink - rate * m.at[i] / (sqrtf(v.at[i]) * s.root + o.h.adamw.eps);
			}
			store(o.v + e, v);
		}
		store(o.m + e, m);
		store(o.p + e, p);
	}
	if (o.narrow)
		store(o.narrow + e, p);
}

static __global__ void __launch_bounds__(THREADS) muon_kernel(muon_arguments o)
{
	enum { N = 4 };
	muon_step *shared = shared_memory<muon_step>();
	if (threadIdx.x < 2)
		prepare_muon(o, shared);
	__syncthreads();
	const muon_step s = *shared;
	for (int64_t i = grid_first() * N; i + N <= o.n; i += grid_stride() * N)
		update_muon<N>(o, s, i);
	const int64_t last = o.n / N * N + grid_first();
	if (last < o.n)
		update_muon<1>(o, s, last);
}

status cuda_muon(backend *b, const op_call *call)
{
	muon_arguments o = {};
	o.p = (float *)call->in[0].data;
	o.g = (const float *)call->in[1].data;
	o.m = (float *)call->in[2].data;
	o.v = (float *)call->in[3].data;
	o.d = (const float *)call->in[4].data;
	o.norm2 = (const float *)call->in[5].data;
	o.hyper = (const float *)call->in[6].data;
	o.scales = (const float *)call->in[7].data;
	o.narrow = (bf16 *)cuda_optional(call, 8);
	o.factors = (const step_factors *)cuda_optional(call, 9);
	o.h = *(const muon_params *)call->params;
	o.log_beta1 = log((double)o.h.adamw.beta1);
	o.log_beta2 = log((double)o.h.adamw.beta2);
	o.n = shape_count(call->in[0].shape);
	return cuda_launch(b, muon_kernel, cuda_blocks(b, o.n, THREADS * 4), THREADS, sizeof(muon_step), o);
}
