/* gelu, gelu_grad: x Φ(x) with the exact normal distribution Φ, or with (1 + tanh u(x)) / 2 in its place, which is the
 * logistic function of 2u.
 *
 * Φ's tail is e^{-x²/2} times Mills' ratio over √(2π), a polynomial in 1 / (1 + 0.3 |x|): no branch, no difference of
 * neighbouring numbers where x is negative, and the same exponential serves the gradient. The polynomial is the
 * CPU's. bf16 leaves few instructions an element at the memory's speed (27 for gelu on an H200), so the
 * exponential and the quotients are the fast ones, in the erf form those that flush what is below 2^-126 to zero: 21
 * and 24 instructions an element with loads and stores. Φ's tail has a relative error of at most 2^-21 + x² 2^-24, beside
 * which the bf16 that is stored (2^-9) is coarse, and f32 is exact to about 1e-6.
 *
 * A thread takes 16 bytes at a time. Bytes per element, f32 / bf16: gelu 8 / 4, gelu_grad 12 / 6. */
#include "cuda/elementwise.cuh"
#include "cuda/gelu.cuh"
#include "cuda/kernels.h"

/* dy/dx. In the tanh form with s the logistic function of 2u: s + x s (1 - s) d2u/dx, from e^{-|2u|}, so that neither s
 * nor 1 - s is a difference; where x² is cut off, s is 0 or 1. */
template <bool TANH> static __device__ __forceinline__ float gelu_slope(float x)
{
	if (TANH) {
		const float square = fminf(x * x, 1e3f);
		const float small = __expf(-fabsf(x) * (SLOPE + CUBIC * square)),
		            large = __fdividef(1.0f, 1.0f + small);
		const float s = x < 0.0f ? small * large : large;
		return s + x * (SLOPE + 3.0f * CUBIC * square) * (small * large * large);
	}
	const float bell = exp2_approx(__fmul_rn(__fmul_rn(x, x), -0x1.715476p-1f)), tail = tail_of(x, bell);
	return __fmaf_rn(x, DENSITY * bell, x < 0.0f ? tail : 1.0f - tail);
}

template <class T, bool TANH> struct gelu_value {
	const T *x;
	template <int N> __device__ __forceinline__ numbers<N> at(int64_t e) const
	{
		numbers<N> y = load<N>(x + e);
#pragma unroll
		for (int i = 0; i < N; i++)
			y.at[i] = gelu_of<TANH>(y.at[i]);
		return y;
	}
};

template <class T, bool TANH> struct gelu_gradient {
	const T *x, *dy;
	template <int N> __device__ __forceinline__ numbers<N> at(int64_t e) const
	{
		numbers<N> dx = load<N>(dy + e);
		const numbers<N> from = load<N>(x + e);
#pragma unroll
		for (int i = 0; i < N; i++)
			dx.at[i] *= gelu_slope<TANH>(from.at[i]);
		return dx;
	}
};

template <class T, bool TANH> static status run(backend *b, const op_call *call)
{
	const int64_t n = shape_count(call->out[0].shape);
	const T *x = (const T *)call->in[0].data, *dy = (const T *)cuda_optional(call, 1);
	T *out = (T *)call->out[0].data;
	if (dy)
		return cuda_elementwise(b, out, gelu_gradient<T, TANH>{x, dy}, n);
	return cuda_elementwise(b, out, gelu_value<T, TANH>{x}, n);
}

status cuda_gelu(backend *b, const op_call *call)
{
	const bool tanh = ((const gelu_params *)call->params)->tanh;
	return cuda_by_type(call->out[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		return tanh ? run<T, true>(b, call) : run<T, false>(b, call);
	});
}

/* gelu with a second argument, dy. */
status cuda_gelu_grad(backend *b, const op_call *call)
{
	return cuda_gelu(b, call);
}
