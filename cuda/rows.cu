/* join_rows, join_rows_grad, slice_rows, slice_rows_grad, pad_mask, mask_rows: copies of rows, 16 bytes at a time where
 * rows are whole packs. Integers are copied as floats, without arithmetic. Bytes per element of the result, f32 / bf16:
 * 8 / 4. */
#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"

/* A row of a sequence in a longer or shorter tensor: row t of sequence i, n rows each. */
struct row_at {
	int64_t i, t;
};
static __device__ __forceinline__ row_at rows_row_of(int64_t row, int64_t n)
{
	const int64_t i = quotient_of(row, n);
	return {i, row - i * n};
}

/* i32 as f32. */
template <class F> static status by_copied_type(dtype type, F f)
{
	return cuda_by_type(type == DTYPE_I32 ? DTYPE_F32 : type, f);
}

/* --- join_rows ----------------------------------------------------------------------------- */

/* P: the type of the prefix, whose row t of head h begins at (h · rows + t) · width; width: a head's. */
template <class P, class T> struct joined {
	const P *prefix;
	const T *x;
	T *y;
	int64_t rows, total, channels, width, batch_stride;
	template <int N> __device__ __forceinline__ void at(int64_t row, int64_t column) const
	{
		const row_at r = rows_row_of(row, total);
		T *to = y + row * channels + column;
		if (r.t >= rows) {
			store(to, load<N>(x + (r.i * (total - rows) + r.t - rows) * channels + column));
			return;
		}
		const row_at head = rows_row_of(column, width); /* head i, its channel t */
		store(to, load<N>(prefix + r.i * batch_stride + (head.i * rows + r.t) * width + head.t));
	}
};

template <class P, class T> static status join(backend *b, const op_call *call)
{
	const int64_t heads = ((const join_rows_params *)call->params)->heads;
	const shape s = call->out[0].shape, prefix = call->in[0].shape;
	joined<P, T> f = {};
	f.prefix = (const P *)call->in[0].data;
	f.x = (const T *)call->in[1].data;
	f.y = (T *)call->out[0].data;
	f.rows = prefix.dim[prefix.rank - 2];
	f.total = s.dim[1];
	f.channels = s.dim[2];
	f.width = shape_last(prefix);
	f.batch_stride = heads == 0 && prefix.rank == 3 ? f.rows * f.channels : 0;
	return cuda_elementwise_rows<T>(b, f, shape_rows(s), f.channels, f.width % packed<T>::N == 0);
}

status cuda_join_rows(backend *b, const op_call *call)
{
	return by_copied_type(call->in[1].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		return call->in[0].type == DTYPE_BF16 ? join<bf16, T>(b, call) : join<float, T>(b, call);
	});
}

/* --- slice_rows -------------------------------------------------------------------------------- */

/* Rows from `first` on of the `from` rows of each sequence, `to` of them; rows outside are zeros. */
template <class T> struct sliced {
	const T *x;
	T *y;
	int64_t first, from, to, width;
	template <int N> __device__ __forceinline__ void at(int64_t row, int64_t column) const
	{
		const row_at r = rows_row_of(row, to);
		const int64_t t = r.t + first;
		numbers<N> moved = {};
		if (t >= 0 && t < from)
			moved = load<N>(x + (r.i * from + t) * width + column);
		store(y + row * width + column, moved);
	}
};

/* Copy argument 0 into y [B, to, C]. */
template <class T> static status slice(backend *b, const op_call *call, const tensor &y, int64_t first, int64_t from)
{
	const shape s = y.shape;
	const sliced<T> f = {(const T *)call->in[0].data, (T *)y.data, first, from, s.dim[1], s.dim[2]};
	return cuda_elementwise_rows<T>(b, f, shape_rows(s), s.dim[2]);
}

status cuda_slice_rows(backend *b, const op_call *call)
{
	const int64_t first = ((const slice_rows_params *)call->params)->first;
	return by_copied_type(call->in[0].type, [&](auto *type) {
		return slice<std::remove_pointer_t<decltype(type)>>(b, call, call->out[0], first,
		                                                    call->in[0].shape.dim[1]);
	});
}

status cuda_slice_rows_grad(backend *b, const op_call *call)
{
	const int64_t first = ((const slice_rows_params *)call->params)->first, batch = call->out[0].shape.dim[0];
	return cuda_by_type(call->in[0].type, [&](auto *type) {
		return slice<std::remove_pointer_t<decltype(type)>>(b, call, call->out[0], -first,
		                                                    batch ? shape_rows(call->in[0].shape) / batch : 0);
	});
}

/* --- join_rows_grad --------------------------------------------------------------------------- */

/* Sequences are added in order. */
template <class T> struct prefix_sum {
	const T *dy;
	float *dprefix;
	int64_t batch, rows, stride, channels, width; /* stride: from sequence to sequence */
	template <int N> __device__ __forceinline__ void at(int64_t row, int64_t column) const
	{
		const row_at head = rows_row_of(row, rows);
		const T *from = dy + head.t * channels + head.i * width + column;
		numbers<N> sum = {};
#pragma unroll 1
		for (int64_t i = 0; i < batch; i++)
			sum = sum_of(sum, load<N>(from + i * stride));
		store(dprefix + row * width + column, sum);
	}
};

template <class T> static status join_grad(backend *b, const op_call *call)
{
	const join_rows_params *p = (const join_rows_params *)call->params;
	const shape s = call->in[1].shape, prefix = call->out[1].shape;
	if (call->out[0].data)
		TRY(slice<T>(b, call, call->out[0], p->rows, s.dim[1]));
	if (!call->out[1].data)
		return STATUS_OK;
	if (p->each)
		return slice<T>(b, call, call->out[1], 0, s.dim[1]);
	const prefix_sum<T> f = {
	    (const T *)call->in[0].data, (float *)call->out[1].data, s.dim[0], p->rows, s.dim[1] * s.dim[2], s.dim[2],
	    shape_last(prefix)};
	return cuda_elementwise_rows<T>(b, f, shape_rows(prefix), f.width);
}

status cuda_join_rows_grad(backend *b, const op_call *call)
{
	return cuda_by_type(call->in[0].type,
	                    [&](auto *type) { return join_grad<std::remove_pointer_t<decltype(type)>>(b, call); });
}

/* --- masks ----------------------------------------------------------------------------------------- */

struct padded {
	const int32_t *mask;
	int32_t *y;
	int64_t before, n;
	int32_t filled;
	template <int N> __device__ __forceinline__ void at(int64_t row, int64_t column) const
	{
		y[row * (before + n) + column] = column < before ? filled : mask[row * n + column - before];
	}
};

status cuda_pad_mask(backend *b, const op_call *call)
{
	const pad_mask_params *p = (const pad_mask_params *)call->params;
	const shape s = call->out[0].shape;
	const padded f = {(const int32_t *)call->in[0].data, (int32_t *)call->out[0].data, p->before,
	                  s.dim[1] - p->before, p->value};
	return cuda_elementwise_rows<float>(b, f, s.dim[0], s.dim[1], false);
}

template <class T> struct masked {
	const T *x;
	const int32_t *mask;
	T *y;
	int64_t width;
	template <int N> __device__ __forceinline__ void at(int64_t row, int64_t column) const
	{
		numbers<N> left = {};
		if (mask[row])
			left = load<N>(x + row * width + column);
		store(y + row * width + column, left);
	}
};

status cuda_mask_rows(backend *b, const op_call *call)
{
	const shape s = call->out[0].shape;
	return cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		const masked<T> f = {(const T *)call->in[0].data, (const int32_t *)call->in[1].data,
		                     (T *)call->out[0].data, shape_last(s)};
		return cuda_elementwise_rows<T>(b, f, shape_rows(s), f.width);
	});
}
