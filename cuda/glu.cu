/* glu, glu_grad: a thread takes 16 bytes of each half of a row. Bytes per element of the result, f32 / bf16: 12 / 6, of
 * x's gradient 10 / 5. The gradient may overwrite x: a thread reads both halves before it writes one. */
#include "cuda/activation.cuh"
#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"

template <class T, activation_kind KIND> struct glu_values {
	const T *x;
	T *y;
	int64_t width; /* width of a half */
	int64_t at_a, at_gate;
	template <int N> __device__ __forceinline__ void at(int64_t row, int64_t column) const
	{
		const T *from = x + row * 2 * width + column;
		numbers<N> a = load<N>(from + at_a), gate = load<N>(from + at_gate);
#pragma unroll
		for (int i = 0; i < N; i++)
			a.at[i] *= activation_value<KIND>(gate.at[i]);
		store(y + row * width + column, a);
	}
};

template <class T, activation_kind KIND, bool FROZEN> struct glu_gradients {
	const T *x, *dy;
	T *dx;
	int64_t width, at_a, at_gate;
	float to_a, to_b; /* FROZEN: the shares */
	template <int N> __device__ __forceinline__ void at(int64_t row, int64_t column) const
	{
		const int64_t e = row * 2 * width + column;
		numbers<N> a = load<N>(x + e + at_a), gate = load<N>(x + e + at_gate);
		const numbers<N> by = load<N>(dy + row * width + column);
#pragma unroll
		for (int i = 0; i < N; i++) {
			const float to_gate = by.at[i] * a.at[i];
			a.at[i] = by.at[i] * activation_value<KIND>(gate.at[i]);
			gate.at[i] = to_gate * (FROZEN ? activation_secant<KIND>(gate.at[i])
			                               : activation_slope<KIND>(gate.at[i]));
			if (FROZEN)
				a.at[i] *= to_a, gate.at[i] *= to_b;
		}
		store(dx + e + at_a, a);
		store(dx + e + at_gate, gate);
	}
};

template <class T, activation_kind KIND> static status run_grad(backend *b, const op_call *call)
{
	const glu_params *p = (const glu_params *)call->params;
	const T *x = (const T *)call->in[0].data, *dy = (const T *)call->in[1].data;
	T *dx = (T *)call->out[0].data;
	const int64_t rows = shape_rows(call->out[0].shape), width = shape_last(call->out[0].shape) / 2;
	const int64_t at_a = p->gate_first * width, at_gate = !p->gate_first * width;
	if (p->frozen)
		return cuda_elementwise_rows<T>(
		    b, glu_gradients<T, KIND, true>{x, dy, dx, width, at_a, at_gate, p->share, 1.0f - p->share}, rows,
		    width);
	return cuda_elementwise_rows<T>(
	    b, glu_gradients<T, KIND, false>{x, dy, dx, width, at_a, at_gate, 1.0f, 1.0f}, rows, width);
}

status cuda_glu(backend *b, const op_call *call)
{
	return cuda_by_type(call->out[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		const glu_params *p = (const glu_params *)call->params;
		return by_gate(p->kind, [&](auto c) {
			const int64_t rows = shape_rows(call->out[0].shape), width = shape_last(call->out[0].shape);
			const glu_values<T, decltype(c)::kind> f = {(const T *)call->in[0].data, (T *)call->out[0].data,
			                                            width, p->gate_first * width,
			                                            !p->gate_first * width};
			return cuda_elementwise_rows<T>(b, f, rows, width);
		});
	});
}

status cuda_glu_grad(backend *b, const op_call *call)
{
	return cuda_by_type(call->out[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		return by_gate(((const glu_params *)call->params)->kind,
		               [&](auto c) { return run_grad<T, decltype(c)::kind>(b, call); });
	});
}
