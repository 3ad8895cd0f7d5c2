/* add, mul, gate, scale, scale_by, tanh, secant_grad, fill, accumulate, lerp: one element of the result per element of
 * the arguments.
 *
 * A thread takes 16 bytes of a tensor at a time, next to its neighbours' bytes; a remainder of less than 16 bytes is
 * processed one by one. Tensors begin at multiples of 16 bytes whatever their width, so this works for every shape. An
 * element is read before it is written, by the same thread, so a result may overwrite an argument.
 *
 * Bytes per element, f32 / bf16: add, mul 12 / 6; gate 16 / 8; scale, scale_by, tanh 8 / 4; secant_grad 16; fill 4;
 * accumulate, lerp 12. */
#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"

template <class T> struct product {
	const T *a, *b;
	template <int N> __device__ __forceinline__ numbers<N> at(int64_t e) const
	{
		return product_of(load<N>(a + e), load<N>(b + e));
	}
};

/* factor · x; if `scalar` is given, scalar · x. */
template <class T> struct scaled {
	const T *x;
	float factor;
	const float *scalar;
	template <int N> __device__ __forceinline__ numbers<N> at(int64_t e) const
	{
		const float by = scalar ? __ldg(scalar) : factor;
		numbers<N> y = load<N>(x + e);
#pragma unroll
		for (int i = 0; i < N; i++)
			y.at[i] = __fmul_rn(by, y.at[i]);
		return y;
	}
};

template <class T> struct hyperbolic {
	const T *x;
	template <int N> __device__ __forceinline__ numbers<N> at(int64_t e) const
	{
		numbers<N> y = load<N>(x + e);
#pragma unroll
		for (int i = 0; i < N; i++)
			y.at[i] = tanhf(y.at[i]);
		return y;
	}
};

struct secant {
	const float *x, *y, *dy;
	float at_zero;
	template <int N> __device__ __forceinline__ numbers<N> at(int64_t e) const
	{
		const numbers<N> from = load<N>(x + e), to = load<N>(y + e);
		numbers<N> dx = load<N>(dy + e);
#pragma unroll
		for (int i = 0; i < N; i++)
			dx.at[i] *= from.at[i] == 0.0f ? at_zero : to.at[i] / from.at[i];
		return dx;
	}
};

struct constant {
	float x;
	template <int N> __device__ __forceinline__ numbers<N> at(int64_t) const
	{
		numbers<N> y;
#pragma unroll
		for (int i = 0; i < N; i++)
			y.at[i] = x;
		return y;
	}
};

struct nearer {
	const float *p, *x, *rate;
	template <int N> __device__ __forceinline__ numbers<N> at(int64_t e) const
	{
		numbers<N> y = load<N>(p + e), to = load<N>(x + e);
#pragma unroll
		for (int i = 0; i < N; i++)
			y.at[i] = __fmaf_rn(*rate, to.at[i] - y.at[i], y.at[i]);
		return y;
	}
};

struct increased {
	const float *sum, *x;
	float factor;
	template <int N> __device__ __forceinline__ numbers<N> at(int64_t e) const
	{
		numbers<N> y = load<N>(sum + e), by = load<N>(x + e);
#pragma unroll
		for (int i = 0; i < N; i++)
			y.at[i] = __fmaf_rn(factor, by.at[i], y.at[i]);
		return y;
	}
};

/* a x + b z */
template <class T> struct weighted_sum {
	const T *x, *z;
	float a, b;
	template <int N> __device__ __forceinline__ numbers<N> at(int64_t e) const
	{
		numbers<N> y = load<N>(x + e);
		const numbers<N> other = load<N>(z + e);
#pragma unroll
		for (int i = 0; i < N; i++)
			y.at[i] = __fmaf_rn(b, other.at[i], __fmul_rn(a, y.at[i]));
		return y;
	}
};

/* Call f with a null pointer of the first output's stored type. */
template <class F> static status by_output(const op_call *call, F f)
{
	return cuda_by_type(call->out[0].type, f);
}

template <class T, front_kind KIND> static status run_front(backend *b, const op_call *call)
{
	front<T, KIND, false> f = {};
	f.a = (const T *)call->in[0].data;
	f.b = (const T *)call->in[1].data;
	f.c = (const T *)cuda_optional(call, 2);
	return cuda_elementwise(b, (T *)call->out[0].data, f, shape_count(call->out[0].shape));
}

status cuda_add(backend *b, const op_call *call)
{
	return by_output(
	    call, [&](auto *type) { return run_front<std::remove_pointer_t<decltype(type)>, FRONT_ADD>(b, call); });
}

status cuda_gate(backend *b, const op_call *call)
{
	return by_output(
	    call, [&](auto *type) { return run_front<std::remove_pointer_t<decltype(type)>, FRONT_GATE>(b, call); });
}

status cuda_mul(backend *b, const op_call *call)
{
	return by_output(call, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		product<T> f = {(const T *)call->in[0].data, (const T *)call->in[1].data};
		return cuda_elementwise(b, (T *)call->out[0].data, f, shape_count(call->out[0].shape));
	});
}

static status run_scaled(backend *b, const op_call *call, float factor, const float *scalar)
{
	return by_output(call, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		scaled<T> f = {(const T *)call->in[0].data, factor, scalar};
		return cuda_elementwise(b, (T *)call->out[0].data, f, shape_count(call->out[0].shape));
	});
}

status cuda_scale(backend *b, const op_call *call)
{
	return run_scaled(b, call, ((const scale_params *)call->params)->factor, nullptr);
}

status cuda_axpby(backend *b, const op_call *call)
{
	const axpby_params *p = (const axpby_params *)call->params;
	return by_output(call, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		const weighted_sum<T> f = {(const T *)call->in[0].data, (const T *)call->in[1].data, p->a, p->b};
		return cuda_elementwise(b, (T *)call->out[0].data, f, shape_count(call->out[0].shape));
	});
}

status cuda_scale_gradient(backend *b, const op_call *call)
{
	return run_scaled(b, call, 1.0f, nullptr);
}

status cuda_scale_by(backend *b, const op_call *call)
{
	return run_scaled(b, call, 0.0f, (const float *)call->in[1].data);
}

status cuda_tanh(backend *b, const op_call *call)
{
	return by_output(call, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		hyperbolic<T> f = {(const T *)call->in[0].data};
		return cuda_elementwise(b, (T *)call->out[0].data, f, shape_count(call->out[0].shape));
	});
}

status cuda_secant_grad(backend *b, const op_call *call)
{
	const secant f = {(const float *)call->in[0].data, (const float *)call->in[1].data,
	                  (const float *)call->in[2].data, ((const secant_params *)call->params)->at_zero};
	return cuda_elementwise(b, (float *)call->out[0].data, f, shape_count(call->out[0].shape));
}

status cuda_fill(backend *b, const op_call *call)
{
	const fill_params *p = (const fill_params *)call->params;
	constant f = {p->value};
	if (p->integer) /* moved, never used in arithmetic */
		memcpy(&f.x, &p->whole, sizeof f.x);
	return cuda_elementwise(b, (float *)call->out[0].data, f, shape_count(call->out[0].shape));
}

status cuda_accumulate(backend *b, const op_call *call)
{
	float *sum = (float *)call->in[0].data;
	increased f = {sum, (const float *)call->in[1].data, ((const scale_params *)call->params)->factor};
	return cuda_elementwise(b, sum, f, shape_count(call->in[0].shape));
}

status cuda_lerp(backend *b, const op_call *call)
{
	float *p = (float *)call->in[0].data;
	const nearer f = {p, (const float *)call->in[1].data, (const float *)call->in[2].data};
	return cuda_elementwise(b, p, f, shape_count(call->in[0].shape));
}
