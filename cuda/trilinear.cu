/* trilinear, trilinear_grad: a thread takes 16 bytes of a row. Their partners `xor b` are 16 bytes of the same block of
 * 16 channels, permuted, and come from the L1 cache. Bytes per channel of a row, f32: trilinear 72 (k, u and 16
 * products), trilinear_grad 80; bf16 half of it. */
#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"

extern "C" {
#include "engine/tensor/ops/trilinear.h"
}

/* Load the numbers of columns xor b … in a row: number j is at j xor the low bits of b. */
template <int N, class T> static __device__ __forceinline__ numbers<N> partners(const T *row, int64_t column, int b)
{
	const numbers<N> from = load<N>(row + (column ^ (b & ~(N - 1))));
	numbers<N> x;
#pragma unroll
	for (int j = 0; j < N; j++)
		x.at[j] = from.at[j ^ (b & (N - 1))];
	return x;
}

template <class T> struct trilinear_products {
	const T *k, *u;
	T *p;
	int64_t width;
	template <int N> __device__ __forceinline__ void at(int64_t row, int64_t column) const
	{
		const numbers<N> by = load<N>(u + row * width + column);
		T *to = p + row * TRILINEAR_TAPS * width + column;
#pragma unroll
		for (int b = 0; b < TRILINEAR_TAPS; b++)
			store(to + b * width, product_of(by, partners<N>(k + row * width, column, b)));
	}
};

template <class T> struct trilinear_gradients {
	const T *k, *u, *dp;
	T *dk, *du; /* NULL: not requested */
	int64_t width;
	template <int N> __device__ __forceinline__ void at(int64_t row, int64_t column) const
	{
		numbers<N> to_k = {}, to_u = {};
#pragma unroll
		for (int b = 0; b < TRILINEAR_TAPS; b++) {
			const T *tap = dp + (row * TRILINEAR_TAPS + b) * width;
			if (du)
				to_u = gated(to_u, load<N>(tap + column), partners<N>(k + row * width, column, b));
			if (dk)
				to_k =
				    gated(to_k, partners<N>(tap, column, b), partners<N>(u + row * width, column, b));
		}
		if (dk)
			store(dk + row * width + column, to_k);
		if (du)
			store(du + row * width + column, to_u);
	}
};

status cuda_trilinear(backend *b, const op_call *call)
{
	const int64_t rows = shape_rows(call->in[0].shape), width = shape_last(call->in[0].shape);
	return cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		const trilinear_products<T> f = {(const T *)call->in[0].data, (const T *)call->in[1].data,
		                                 (T *)call->out[0].data, width};
		return cuda_elementwise_rows<T>(b, f, rows, width);
	});
}

status cuda_trilinear_grad(backend *b, const op_call *call)
{
	const int64_t rows = shape_rows(call->in[0].shape), width = shape_last(call->in[0].shape);
	return cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		const trilinear_gradients<T> f = {(const T *)call->in[0].data, (const T *)call->in[1].data,
		                                  (const T *)call->in[2].data, (T *)call->out[0].data,
		                                  (T *)call->out[1].data,      width};
		return cuda_elementwise_rows<T>(b, f, rows, width);
	});
}
