/* additive_lanes.cuh - how lanes hold rows of a head, and what rows are summed to.
 *
 * Tokens have scores s, values and vectors v. An aggregate of tokens is (top, sum, vector), top the largest score in
 * it, sum = Σ e^{s - top} value, vector = Σ e^{s - top} v. A score of -inf is a token that is not there; the empty
 * aggregate is (STREAM_EMPTY, 0, 0). Nothing is ever subtracted, no exponent is above 0, and every scan has a running
 * top: one top for a block would lose what lies 87 below it. */
#ifndef CUDA_ADDITIVE_LANES_CUH
#define CUDA_ADDITIVE_LANES_CUH

#include "cuda/backend.h"
#include "cuda/device.cuh"

extern "C" {
#include "engine/tensor/ops/additive_stream.h"
}

enum { ADDITIVE_THREADS = 256, ADDITIVE_WARPS = ADDITIVE_THREADS / WARP };

/* --- lanes ------------------------------------------------------------------------------ */

/* L lanes hold a row, E channels each: PACKED, 16 bytes in a row and as they are in memory; or every L-th
 * channel, as floats. Channels at and after the width read as 0. */
template <class T_, int L_, int E_, bool PACKED_> struct additive_lanes {
	typedef T_ T;
	enum { L = L_, E = E_, PACKED = PACKED_, WIDTH = L * E, GROUPS = ADDITIVE_THREADS / L, IN_WARP = WARP / L };
	static_assert(WARP % L == 0, "a warp holds whole rows");
	static_assert((int)WIDTH <= (int)ADDITIVE_THREADS, "a channel has a thread");
	static_assert(!PACKED || (int)E * (int)sizeof(T) == 16, "16 bytes at a time");
	struct row {
		unsigned word[PACKED ? 4 : E];
	};

	static __device__ __forceinline__ int lane(void)
	{
		return threadIdx.x % L;
	}
	static __device__ __forceinline__ int group(void)
	{
		return threadIdx.x / L;
	}
	/* Channel of element e. */
	static __device__ __forceinline__ int channel(int e)
	{
		return PACKED ? lane() * E + e : lane() + e * L;
	}
	static __device__ __forceinline__ row load(const T *p, int width, bool there)
	{
		row r;
		if (PACKED) {
			uint4 v = make_uint4(0, 0, 0, 0);
			if (there && channel(0) < width)
				v = *(const uint4 *)(p + channel(0));
			const unsigned word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
			for (int i = 0; i < 4; i++)
				r.word[i] = word[i];
		} else {
#pragma unroll
			for (int e = 0; e < E; e++)
				r.word[e] =
				    there && channel(e) < width ? __float_as_uint(load_real(p + channel(e))) : 0;
		}
		return r;
	}
	static __device__ __forceinline__ float at(const row &r, int e)
	{
		if (PACKED && sizeof(T) == 2)
			return __uint_as_float(e % 2 ? r.word[e / 2] & 0xffff0000u : r.word[e / 2] << 16);
		return __uint_as_float(r.word[e]);
	}
	static __device__ __forceinline__ void store(T *p, int width, const float (&x)[E])
	{
		if (PACKED) {
			pack<T> out;
			if (channel(0) < width) {
#pragma unroll
				for (int e = 0; e < pack<T>::N; e++)
					out.at[e] = x[e % E];
				store_pack(p + channel(0), out);
			}
		} else {
#pragma unroll
			for (int e = 0; e < E; e++)
				if (channel(e) < width)
					store_real(p + channel(e), x[e]);
		}
	}
	static __device__ __forceinline__ void load_weight(float (&w)[E], const float *p, int width)
	{
#pragma unroll
		for (int e = 0; e < E; e++)
			w[e] = channel(e) < width ? p[channel(e)] : 0.0f;
	}
	static __device__ __forceinline__ float dot(const row &a, const float (&b)[E])
	{
		float sum = 0;
#pragma unroll
		for (int e = 0; e < E; e++)
			sum += at(a, e) * b[e];
		return warp_sum<L>(sum);
	}
	static __device__ __forceinline__ float dot(const row &a, const row &b)
	{
		float sum = 0;
#pragma unroll
		for (int e = 0; e < E; e++)
			sum += at(a, e) * at(b, e);
		return warp_sum<L>(sum);
	}
};

/* --- aggregates ---------------------------------------------------------------------------- */

/* Of one head, this lane's channels. */
template <int E> struct additive_aggregate {
	float top, sum, vector[E];

	__device__ __forceinline__ void clear(void)
	{
		top = STREAM_EMPTY;
		sum = 0;
#pragma unroll
		for (int e = 0; e < E; e++)
			vector[e] = 0;
	}
	/* := this ⊕ other, if `take`. */
	__device__ __forceinline__ void merge(const additive_aggregate &other, bool take)
	{
		float both = take ? fmaxf(top, other.top) : top;
		float mine = __expf(top - both), theirs = take ? __expf(other.top - both) : 0.0f;
		top = both;
		sum = mine * sum + theirs * other.sum;
#pragma unroll
		for (int e = 0; e < E; e++)
			vector[e] = mine * vector[e] + theirs * other.vector[e];
	}
};

/* := a ⊕ one token. */
template <class C>
__device__ __forceinline__ void additive_append(additive_aggregate<C::E> &a, float score, float value,
                                                const typename C::row &row)
{
	float both = fmaxf(a.top, score), keep = __expf(a.top - both), weight = __expf(score - both);
	a.top = both;
	a.sum = keep * a.sum + weight * value;
#pragma unroll
	for (int e = 0; e < C::E; e++)
		a.vector[e] = keep * a.vector[e] + weight * C::at(row, e);
}

/* A group's rows with their scores and values. */
template <class C, int R> struct additive_rows {
	typename C::row row[R];
	float score[R], value[R];

	/* The aggregate of those whose bit is set. */
	__device__ __forceinline__ additive_aggregate<C::E> fold(unsigned bits) const
	{
		additive_aggregate<C::E> a;
		a.clear();
#pragma unroll
		for (int r = 0; r < R; r++)
			a.top = bits >> r & 1 ? fmaxf(a.top, score[r]) : a.top;
#pragma unroll
		for (int r = 0; r < R; r++) {
			float weight = bits >> r & 1 ? __expf(score[r] - a.top) : 0.0f;
			a.sum += weight * value[r];
#pragma unroll
			for (int e = 0; e < C::E; e++)
				a.vector[e] += weight * C::at(row[r], e);
		}
		return a;
	}
};

/* An aggregate of every thread. */
template <int E> struct __align__(16) additive_kept {
	float4 vector[E / 4][ADDITIVE_THREADS];
	float2 head[ADDITIVE_THREADS];

	__device__ __forceinline__ void put(const additive_aggregate<E> &a)
	{
#pragma unroll
		for (int e = 0; e < E; e += 4)
			vector[e / 4][threadIdx.x] =
			    make_float4(a.vector[e], a.vector[e + 1], a.vector[e + 2], a.vector[e + 3]);
		head[threadIdx.x] = make_float2(a.top, a.sum);
	}
	__device__ __forceinline__ additive_aggregate<E> get(void) const
	{
		additive_aggregate<E> a;
#pragma unroll
		for (int e = 0; e < E; e += 4) {
			const float4 v = vector[e / 4][threadIdx.x];
			a.vector[e] = v.x;
			a.vector[e + 1] = v.y;
			a.vector[e + 2] = v.z;
			a.vector[e + 3] = v.w;
		}
		a.top = head[threadIdx.x].x;
		a.sum = head[threadIdx.x].y;
		return a;
	}
};

/* --- widths ---------------------------------------------------------------------------------------------- */

/* Call f with the lanes for heads of dh channels; NULL pointers of their types. */
template <class F> status additive_by_lanes(dtype type, int64_t dh, F f)
{
	if (type == DTYPE_BF16) {
		if (dh % 8 == 0 && dh <= 32)
			return f((additive_lanes<bf16, 4, 8, true> *)nullptr);
		if (dh % 8 == 0 && dh <= 64)
			return f((additive_lanes<bf16, 8, 8, true> *)nullptr);
		if (dh % 8 == 0 && dh <= 128)
			return f((additive_lanes<bf16, 16, 8, true> *)nullptr);
		return f((additive_lanes<bf16, 32, 8, false> *)nullptr);
	}
	if (dh % 4 == 0 && dh <= 32)
		return f((additive_lanes<float, 8, 4, true> *)nullptr);
	if (dh % 4 == 0 && dh <= 64)
		return f((additive_lanes<float, 16, 4, true> *)nullptr);
	if (dh % 4 == 0 && dh <= 128)
		return f((additive_lanes<float, 32, 4, true> *)nullptr);
	return f((additive_lanes<float, 32, 8, false> *)nullptr);
}

#endif
