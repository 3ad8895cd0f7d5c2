/* activation, activation_grad, gelu, gelu_grad: one element of the result per element of the arguments.
 *
 * A thread takes 16 bytes at a time. Bytes per element, f32 / bf16: 8 / 4, of a gradient 12 / 6. */
#include "cuda/activation.cuh"
#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"

template <class T, activation_kind KIND> struct values {
	const T *x;
	template <int N> __device__ __forceinline__ numbers<N> at(int64_t e) const
	{
		numbers<N> y = load<N>(x + e);
#pragma unroll
		for (int i = 0; i < N; i++)
			y.at[i] = activation_value<KIND>(y.at[i]);
		return y;
	}
};

template <class T, activation_kind KIND, bool FROZEN> struct gradients {
	const T *x, *dy;
	template <int N> __device__ __forceinline__ numbers<N> at(int64_t e) const
	{
		numbers<N> dx = load<N>(dy + e);
		const numbers<N> from = load<N>(x + e);
#pragma unroll
		for (int i = 0; i < N; i++)
			dx.at[i] *= FROZEN ? activation_secant<KIND>(from.at[i]) : activation_slope<KIND>(from.at[i]);
		return dx;
	}
};

template <class T, activation_kind KIND> static status run(backend *b, const op_call *call, bool frozen)
{
	const int64_t n = shape_count(call->out[0].shape);
	const T *x = (const T *)call->in[0].data, *dy = (const T *)cuda_optional(call, 1);
	T *out = (T *)call->out[0].data;
	if (!dy)
		return cuda_elementwise(b, out, values<T, KIND>{x}, n);
	return frozen ? cuda_elementwise(b, out, gradients<T, KIND, true>{x, dy}, n)
	              : cuda_elementwise(b, out, gradients<T, KIND, false>{x, dy}, n);
}

/* A gradient has dy as its second argument. */
static status run_kind(backend *b, const op_call *call, activation_kind kind, bool frozen)
{
	return cuda_by_type(call->out[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		return by_activation(kind, [&](auto c) { return run<T, decltype(c)::kind>(b, call, frozen); });
	});
}

status cuda_activation(backend *b, const op_call *call)
{
	const activation_params *p = (const activation_params *)call->params;
	return run_kind(b, call, p->kind, p->frozen);
}

status cuda_activation_grad(backend *b, const op_call *call)
{
	return cuda_activation(b, call);
}

status cuda_gelu(backend *b, const op_call *call)
{
	const bool tanh = ((const gelu_params *)call->params)->tanh;
	return run_kind(b, call, tanh ? ACTIVATION_GELU_TANH : ACTIVATION_GELU, false);
}

status cuda_gelu_grad(backend *b, const op_call *call)
{
	return cuda_gelu(b, call);
}
