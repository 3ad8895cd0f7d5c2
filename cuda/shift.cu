/* shift_rows, shift_stream: each element from its own or another row. Bytes per element, f32 / bf16: 8 / 4.
 *
 * shift_stream has two kernels, since the call's tokens read the ring's previous contents: one for the tokens and one
 * for the ring's rows. Where each sequence has one token, a thread has a channel of a sequence and does both. */
#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"
#include "cuda/stream.cuh"
#include "engine/tensor/ops/shift_stream.h"

/* Shift of channel c; channels after the last segment have none. */
static __device__ __forceinline__ int64_t shift_of(int64_t low, int64_t segments, int64_t width, int64_t c)
{
	const int64_t i = quotient_of(c, width);
	return i < segments ? low + i : 0;
}

template <class T> struct shifted {
	const T *x;
	const int32_t *mask;
	T *y;
	int64_t n, channels, low, segments, width;
	bool transposed;
	template <int N> __device__ __forceinline__ void at(int64_t row, int64_t column) const
	{
		const int64_t t = row - quotient_of(row, n) * n, shift = shift_of(low, segments, width, column);
		const int64_t move = transposed ? shift : -shift;
		const bool inside = t + move >= 0 && t + move < n;
		numbers<N> from = {};
		if (inside && (!mask || shift == 0 || mask[transposed ? row : row + move]))
			from = load<N>(x + (row + move) * channels + column);
		store(y + row * channels + column, from);
	}
};

status cuda_shift_rows(backend *b, const op_call *call)
{
	const shift_params *p = (const shift_params *)call->params;
	const shape s = call->out[0].shape;
	return cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		const int64_t segments = p->high - p->low + 1, width = s.dim[2] / segments;
		const shifted<T> f = {(const T *)call->in[0].data,
		                      (const int32_t *)cuda_optional(call, 1),
		                      (T *)call->out[0].data,
		                      s.dim[1],
		                      s.dim[2],
		                      p->low,
		                      segments,
		                      width,
		                      p->transposed};
		return cuda_elementwise_rows<T>(b, f, shape_rows(s), s.dim[2], width % packed<T>::N == 0);
	});
}

/* --- shift_stream ------------------------------------------------------------------------------------ */

struct shift_call {
	const float *x;
	float *pool, *y;                                        /* y may be NULL */
	const int32_t *slot, *position, *length, *mask, *start; /* the last two may be NULL */
	const float *front;                                     /* rows before token 0; NULL: in the slot */
	int64_t rows, stored;                                   /* stored: offset in the slot */
	int64_t sequences, n, d, low, high, width, segment;
	int64_t slot_floats, offset;

	__device__ __forceinline__ float *ring(int64_t s) const
	{
		return pool + slot[s] * slot_floats + offset;
	}
	/* Channel c of the call's token i of sequence s, as the ring keeps it. */
	__device__ __forceinline__ float kept(const token_span &tokens, int64_t i, int64_t c) const
	{
		return !mask || mask[tokens.first + i] ? x[(tokens.first + i) * d + c] : 0.0f;
	}
	__device__ __forceinline__ float shifted(int64_t s, const token_span &tokens, int64_t i, int64_t c) const
	{
		const int64_t shift = shift_of(low, high - low + 1, width, c), before = position[s];
		if (i >= length[s] || shift > shift_behind(before + i, segment) + rows)
			return 0.0f;
		if (shift > before + i)
			return (front ? front : pool + slot[s] * slot_floats + stored)[(rows + before + i - shift) * d + c];
		if (shift == 0)
			return x[(tokens.first + i) * d + c];
		return shift <= i ? kept(tokens, i - shift, c) : ring(s)[(before + i - shift) % high * d + c];
	}
};

/* A token of each sequence if `both` is set; else all tokens. */
struct shift_tokens {
	shift_call o;
	bool both;
	template <int N> __device__ __forceinline__ void at(int64_t row, int64_t c) const
	{
		int64_t s = row;
		if (!both)
			s = sequence_of(o.start, o.sequences, o.n, row);
		const token_span tokens = tokens_of(o.start, o.sequences, o.n, s);
		if (o.y)
			o.y[row * o.d + c] = o.shifted(s, tokens, row - tokens.first, c);
		if (both && o.high > 0 && o.length[s] > 0)
			o.ring(s)[o.position[s] % o.high * o.d + c] = o.kept(tokens, 0, c);
	}
};

/* Row `row % high` of the last `high` tokens of sequence row / high. */
struct shift_ring {
	shift_call o;
	template <int N> __device__ __forceinline__ void at(int64_t row, int64_t c) const
	{
		const int64_t s = quotient_of(row, o.high), i = o.length[s] - 1 - (row - s * o.high);
		if (i >= 0)
			o.ring(s)[(o.position[s] + i) % o.high * o.d + c] =
			    o.kept(tokens_of(o.start, o.sequences, o.n, s), i, c);
	}
};

status cuda_shift_stream(backend *b, const op_call *call)
{
	const shift_stream_params *p = (const shift_stream_params *)call->params;
	const shape x = call->in[0].shape;
	shift_call o = {};
	o.x = (const float *)call->in[0].data;
	o.pool = (float *)call->in[1].data;
	o.y = (float *)call->out[0].data;
	o.slot = (const int32_t *)call->in[2].data;
	o.position = (const int32_t *)call->in[3].data;
	o.length = (const int32_t *)call->in[4].data;
	o.mask = (const int32_t *)cuda_optional(call, 5);
	o.start = (const int32_t *)cuda_optional(call, 6);
	o.front = (const float *)cuda_optional(call, 7);
	o.rows = o.front ? shape_rows(call->in[7].shape) : p->stored.count;
	o.stored = p->stored.offset;
	o.sequences = call->in[2].shape.dim[0];
	o.n = x.dim[1];
	o.d = x.dim[2];
	o.low = p->low;
	o.high = p->high;
	o.segment = p->segment;
	o.width = o.d / (o.high - o.low + 1);
	o.slot_floats = call->in[1].shape.dim[1];
	o.offset = p->offset;
	const bool both = !o.start && o.n == 1;
	TRY(cuda_elementwise_rows<float>(b, shift_tokens{o, both}, shape_rows(x), o.d, false));
	return both || o.high == 0 ? STATUS_OK
	                           : cuda_elementwise_rows<float>(b, shift_ring{o}, o.sequences * o.high, o.d, false);
}
