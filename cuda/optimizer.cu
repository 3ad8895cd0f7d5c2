/* adamw, sgd: clipping, moments, decay, step and the bf16 copy in one pass over the arenas.
 *
 * The norm is read from the device, so nothing waits for the host. What all elements share (the clip factor, and the
 * bias corrections, 1 - β^t = -expm1(t log β) in double) is computed by two threads of each block, one per moment, side
 * by side; every thread then takes four elements at a time. A norm that is not finite leaves p, m and v alone; the copy
 * is written all the same.
 *
 * Bytes per parameter, adamw: p, g, m, v read, p, m, v written, 28; with the bf16 copy 30. sgd: 20; with the copy 22.
 */
#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"

#include <math.h>

struct adamw_arguments {
	float *p, *m, *v;
	const float *g, *norm2, *hyper;
	bf16 *narrow;
	adamw_params h;
	double log_beta1, log_beta2;
	int64_t n;
};

/* What all elements share. */
struct adamw_step {
	float clip, shrink, step, root, eps;
	int skip;
};

/* By two threads, 0 and 1. The order of transformers is the same expression with other constants. */
static __device__ void prepare_step(const adamw_arguments &o, adamw_step *s)
{
	const bool second = threadIdx.x;
	const double correction = -expm1((double)o.hyper[1] * (second ? o.log_beta2 : o.log_beta1));
	if (second) {
		s->root = (float)(1.0 / sqrt(correction));
		s->eps = o.h.transformers ? o.h.eps * s->root : o.h.eps;
		return;
	}
	const float norm2 = *o.norm2, norm = sqrtf(norm2), lr = o.hyper[0];
	s->skip = !isfinite(norm2);
	s->clip = o.h.clip > 0.0f && norm > o.h.clip ? o.h.clip / (norm + 1e-6f) : 1.0f;
	s->shrink = 1.0f - lr * o.h.decay;
	s->step = (float)((double)lr / correction) * (o.h.transformers ? s->shrink : 1.0f);
}

template <int N> static __device__ __forceinline__ void update(const adamw_arguments &o, const adamw_step &s, int64_t e)
{
	numbers<N> p = load<N>(o.p + e);
	if (!s.skip) {
		const numbers<N> g = load<N>(o.g + e);
		numbers<N> m = load<N>(o.m + e), v = load<N>(o.v + e);
#pragma unroll
		for (int i = 0; i < N; i++) {
			const float grad = s.clip * g.at[i];
			m.at[i] = o.h.beta1 * m.at[i] + (1.0f - o.h.beta1) * grad;
			v.at[i] = o.h.beta2 * v.at[i] + (1.0f - o.h.beta2) * grad * grad;
			p.at[i] = p.at[i] * s.shrink - s.step * m.at[i] / (sqrtf(v.at[i]) * s.root + s.eps);
		}
		store(o.m + e, m);
		store(o.v + e, v);
		store(o.p + e, p);
	}
	if (o.narrow)
		store(o.narrow + e, p);
}

static __global__ void __launch_bounds__(ELEMENT_THREADS) adamw_kernel(adamw_arguments o)
{
	enum { N = 4 };
	adamw_step *shared = shared_memory<adamw_step>();
	if (threadIdx.x < 2)
		prepare_step(o, shared);
	__syncthreads();
	const adamw_step s = *shared;
	for (int64_t i = grid_first() * N; i + N <= o.n; i += grid_stride() * N)
		update<N>(o, s, i);
	const int64_t last = o.n / N * N + grid_first();
	if (last < o.n)
		update<1>(o, s, last);
}

status cuda_adamw(backend *b, const op_call *call)
{
	adamw_arguments o = {};
	o.p = (float *)call->in[0].data;
	o.g = (const float *)call->in[1].data;
	o.m = (float *)call->in[2].data;
	o.v = (float *)call->in[3].data;
	o.norm2 = (const float *)call->in[4].data;
	o.hyper = (const float *)call->in[5].data;
	o.narrow = (bf16 *)cuda_optional(call, 6);
	o.h = *(const adamw_params *)call->params;
	o.log_beta1 = log((double)o.h.beta1);
	o.log_beta2 = log((double)o.h.beta2);
	o.n = shape_count(call->in[0].shape);
	return cuda_launch(b, adamw_kernel, cuda_blocks(b, o.n, ELEMENT_THREADS * 4), ELEMENT_THREADS,
	                   sizeof(adamw_step), o);
}

struct sgd_arguments {
	float *p, *m;
	const float *g, *norm2, *hyper;
	bf16 *narrow;
	sgd_params h;
	int64_t n;
};

/* What all elements share. */
struct sgd_step {
	float factor, shrink, rate;
	bool skip;
};

static __device__ __forceinline__ sgd_step prepare_step(const sgd_arguments &o)
{
	const float norm2 = *o.norm2, norm = sqrtf(norm2), rate = *o.hyper;
	const float clip = o.h.clip > 0.0f && norm > o.h.clip ? o.h.clip / (norm + 1e-6f) : 1.0f;
	const float unit = norm > 0.0f ? 1.0f / norm : 0.0f;
	return {o.h.normalize ? unit : clip, 1.0f - rate * o.h.decay, rate, !isfinite(norm2)};
}

template <int N> static __device__ __forceinline__ void update(const sgd_arguments &o, const sgd_step &s, int64_t e)
{
	numbers<N> p = load<N>(o.p + e);
	if (!s.skip) {
		const numbers<N> g = load<N>(o.g + e);
		numbers<N> m = load<N>(o.m + e);
#pragma unroll
		for (int i = 0; i < N; i++) {
			m.at[i] = o.h.momentum * m.at[i] + s.factor * g.at[i];
			p.at[i] = p.at[i] * s.shrink - s.rate * m.at[i];
		}
		store(o.m + e, m);
		store(o.p + e, p);
	}
	if (o.narrow)
		store(o.narrow + e, p);
}

static __global__ void __launch_bounds__(ELEMENT_THREADS) sgd_kernel(sgd_arguments o)
{
	enum { N = 4 };
	const sgd_step s = prepare_step(o);
	for (int64_t i = grid_first() * N; i + N <= o.n; i += grid_stride() * N)
		update<N>(o, s, i);
	const int64_t last = o.n / N * N + grid_first();
	if (last < o.n)
		update<1>(o, s, last);
}

status cuda_sgd(backend *b, const op_call *call)
{
	sgd_arguments o = {};
	o.p = (float *)call->in[0].data;
	o.g = (const float *)call->in[1].data;
	o.m = (float *)call->in[2].data;
	o.norm2 = (const float *)call->in[3].data;
	o.hyper = (const float *)call->in[4].data;
	o.narrow = (bf16 *)cuda_optional(call, 5);
	o.h = *(const sgd_params *)call->params;
	o.n = shape_count(call->in[0].shape);
	return cuda_launch(b, sgd_kernel, cuda_blocks(b, o.n, ELEMENT_THREADS * 4), ELEMENT_THREADS, 0, o);
}
