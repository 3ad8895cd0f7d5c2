/* gru, gru_grad: a thread takes 16 bytes of each part of a row. Bytes per element of h, f32 / bf16: gru 32 / 16,
 * gru_grad 60 / 30. */
#include "cuda/activation.cuh"
#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"

template <class T> struct gru_values {
	const T *a, *b, *h;
	T *y;
	int64_t width;
	template <int N> __device__ __forceinline__ void at(int64_t row, int64_t column) const
	{
		const T *from = a + row * 3 * width + column, *more = b + row * 3 * width + column;
		numbers<N> r = sum_of(load<N>(from), load<N>(more)),
		           z = sum_of(load<N>(from + width), load<N>(more + width));
		const numbers<N> an = load<N>(from + 2 * width), bn = load<N>(more + 2 * width);
		const numbers<N> old = load<N>(h + row * width + column);
#pragma unroll
		for (int i = 0; i < N; i++) {
			const float gate = logistic_of(z.at[i]).value;
			const float n = tanhf(__fmaf_rn(logistic_of(r.at[i]).value, bn.at[i], an.at[i]));
			z.at[i] = __fmaf_rn(gate, old.at[i], (1.0f - gate) * n);
		}
		store(y + row * width + column, z);
	}
};

template <class T> struct gru_gradients {
	const T *a, *b, *h, *dy;
	T *da, *db, *dh; /* NULL: not requested */
	int64_t width;
	bool frozen;
	template <int N> __device__ __forceinline__ void at(int64_t row, int64_t column) const
	{
		const int64_t e = row * 3 * width + column;
		numbers<N> r = sum_of(load<N>(a + e), load<N>(b + e));
		numbers<N> z = sum_of(load<N>(a + e + width), load<N>(b + e + width));
		numbers<N> n = load<N>(a + e + 2 * width), bn = load<N>(b + e + 2 * width);
		numbers<N> old = load<N>(h + row * width + column);
		const numbers<N> by = load<N>(dy + row * width + column);
#pragma unroll
		for (int i = 0; i < N; i++) {
			const logistic reset = logistic_of(r.at[i]), update = logistic_of(z.at[i]);
			const float argument = __fmaf_rn(reset.value, bn.at[i], n.at[i]), value = tanhf(argument);
			const float slope = !frozen ? 1.0f - value * value : argument == 0.0f ? 1.0f : value / argument;
			const float dn = by.at[i] * (1.0f - update.value) * slope;
			r.at[i] = frozen ? 0.0f : dn * bn.at[i] * reset.slope;
			z.at[i] = frozen ? 0.0f : by.at[i] * (old.at[i] - value) * update.slope;
			n.at[i] = dn;
			bn.at[i] = dn * reset.value;
			old.at[i] = by.at[i] * update.value;
		}
		if (da) {
			store(da + e, r);
			store(da + e + width, z);
			store(da + e + 2 * width, n);
		}
		if (db) {
			store(db + e, r);
			store(db + e + width, z);
			store(db + e + 2 * width, bn);
		}
		if (dh)
			store(dh + row * width + column, old);
	}
};

status cuda_gru(backend *b, const op_call *call)
{
	const shape h = call->in[2].shape;
	return cuda_by_type(call->in[2].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		const gru_values<T> f = {(const T *)call->in[0].data, (const T *)call->in[1].data,
		                         (const T *)call->in[2].data, (T *)call->out[0].data, shape_last(h)};
		return cuda_elementwise_rows<T>(b, f, shape_rows(h), f.width);
	});
}

status cuda_gru_grad(backend *b, const op_call *call)
{
	const shape h = call->in[2].shape;
	return cuda_by_type(call->in[2].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		const gru_gradients<T> f = {(const T *)call->in[0].data,
		                            (const T *)call->in[1].data,
		                            (const T *)call->in[2].data,
		                            (const T *)call->in[3].data,
		                            (T *)call->out[0].data,
		                            (T *)call->out[1].data,
		                            (T *)call->out[2].data,
		                            shape_last(h),
		                            ((const gru_params *)call->params)->frozen};
		return cuda_elementwise_rows<T>(b, f, shape_rows(h), f.width);
	});
}
