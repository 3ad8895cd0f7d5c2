/* additive_lanes.cuh - layout of a head's rows in lanes, and their sums.
 *
 * Tokens have scores s, values and vectors v. An aggregate of tokens is (top, sum, vector): top is the largest score in
 * it, sum = Σ e^{s - top} value, vector = Σ e^{s - top} v. A score of -inf marks an absent token. The empty aggregate
 * has top -inf and any sum and vector, or is (STREAM_EMPTY, 0, 0). Nothing is ever subtracted, no exponent is above 0,
 * and every scan has a running top: with one top per block, scores more than 87 below it would be lost. */
#ifndef CUDA_ADDITIVE_LANES_CUH
#define CUDA_ADDITIVE_LANES_CUH

#include "cuda/backend.h"
#include "cuda/device.cuh"
#include "cuda/ptx.cuh"

extern "C" {
#include "engine/tensor/ops/additive_stream.h"
}

enum { ADDITIVE_THREADS = 256, ADDITIVE_WARPS = ADDITIVE_THREADS / WARP };

/* --- lanes ------------------------------------------------------------------------------ */

/* L lanes hold a row, E channels each. PACKED: a lane has 16 neighbouring bytes, as in memory; otherwise every L-th
 * channel, as floats. Channels past the width read as 0. */
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
	static __device__ __forceinline__ row load(const T *p, int width, bool exists)
	{
		row r;
		if (PACKED) {
			uint4 v = make_uint4(0, 0, 0, 0);
			if (exists && channel(0) < width)
				v = *(const uint4 *)(p + channel(0));
			const unsigned word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
			for (int i = 0; i < 4; i++)
				r.word[i] = word[i];
		} else {
#pragma unroll
			for (int e = 0; e < E; e++)
				r.word[e] =
				    exists && channel(e) < width ? __float_as_uint(load_real(p + channel(e))) : 0;
		}
		return r;
	}
	static __device__ __forceinline__ float at(const row &r, int e)
	{
		if (PACKED && sizeof(T) == 2)
			return __uint_as_float(e % 2 ? r.word[e / 2] & 0xffff0000u : r.word[e / 2] << 16);
		return __uint_as_float(r.word[e]);
	}
	/* Spelled as 16-byte instructions, which the compiler would otherwise split into four. */
	static __device__ __forceinline__ void store(T *p, int width, const float (&x)[E])
	{
		if constexpr (PACKED) {
			uint4 v;
			if (sizeof(T) == 2)
				v = make_uint4(two_bf16(x[0], x[1]), two_bf16(x[2], x[3]), two_bf16(x[4 % E], x[5 % E]),
				               two_bf16(x[6 % E], x[7 % E]));
			else
				v = make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
				               __float_as_uint(x[3]));
			if (channel(0) < width)
				__stcs((uint4 *)(p + channel(0)), v);
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
		for (int e = 0; e < E; e += 4) {
			float4 v = make_float4(0, 0, 0, 0);
			if (PACKED && channel(e) < width)
				v = *(const float4 *)(p + channel(e));
			w[e] = v.x;
			w[e + 1] = v.y;
			w[e + 2] = v.z;
			w[e + 3] = v.w;
		}
#pragma unroll
		for (int e = 0; e < E && !PACKED; e++)
			w[e] = channel(e) < width ? p[channel(e)] : 0.0f;
	}
	/* Dot product of this lane's channels only. */
	static __device__ __forceinline__ float dot(const row &a, const float (&b)[E])
	{
		float sum = 0;
#pragma unroll
		for (int e = 0; e < E; e++)
			sum += at(a, e) * b[e];
		return sum;
	}
	static __device__ __forceinline__ float dot(const row &a, const row &b)
	{
		float sum = 0;
#pragma unroll
		for (int e = 0; e < E; e++)
			sum += at(a, e) * at(b, e);
		return sum;
	}
};

/* R rows of every thread in shared memory. A thread reads only the rows that it wrote, so no barrier is needed. */
template <class C, int R> struct __align__(16) additive_stage {
	enum { PIECES = sizeof(typename C::row) / 16 };
	uint4 piece[R][PIECES][ADDITIVE_THREADS];

	/* Set row r to this one, or to zeros; readable after copy_wait. */
	__device__ __forceinline__ void fetch(int r, const typename C::T *p, int width, bool exists)
	{
		if constexpr (C::PACKED) {
			const bool any = exists && C::channel(0) < width;
			copy_async(&piece[r][0][threadIdx.x], p + C::channel(0), any ? 16 : 0);
		} else {
			const typename C::row row = C::load(p, width, exists);
#pragma unroll
			for (int i = 0; i < PIECES; i++)
				piece[r][i][threadIdx.x] = make_uint4(row.word[4 * i], row.word[4 * i + 1],
				                                      row.word[4 * i + 2], row.word[4 * i + 3]);
		}
	}
	__device__ __forceinline__ typename C::row get(int r) const
	{
		typename C::row row;
#pragma unroll
		for (int i = 0; i < PIECES; i++) {
			const uint4 v = piece[r][i][threadIdx.x];
			row.word[4 * i] = v.x;
			row.word[4 * i + 1] = v.y;
			row.word[4 * i + 2] = v.z;
			row.word[4 * i + 3] = v.w;
		}
		return row;
	}
};

/* --- aggregates ---------------------------------------------------------------------------- */

/* e^x for x <= 0, or slightly above 0; 0 below -87. */
__device__ __forceinline__ float additive_exp(float x)
{
	return exp2_approx(x * 1.44269504f);
}

/* 1 / sum, for a sum of positive weights of which one is 1; finite for a sum of 0, so that 0 / 0 gives 0. */
__device__ __forceinline__ float additive_share(float sum)
{
	return __fdividef(1, fmaxf(sum, FLT_MIN));
}

/* Aggregate of one head: this lane's channels. */
template <int E> struct additive_aggregate {
	float top, sum, vector[E];

	/* Empty the aggregate if `now`. */
	__device__ __forceinline__ void clear(bool now)
	{
		top = now ? -INFINITY : top;
	}
	/* this := this ⊕ other, if `take`. */
	__device__ __forceinline__ void merge(const additive_aggregate &other, bool take)
	{
		const float others = take ? other.top : -INFINITY, both = fmaxf(fmaxf(top, others), STREAM_EMPTY);
		const float mine = additive_exp(top - both), theirs = additive_exp(others - both);
		top = both;
		sum = mine * sum + theirs * other.sum;
#pragma unroll
		for (int e = 0; e < E; e++)
			vector[e] = mine * vector[e] + theirs * other.vector[e];
	}
};

/* vector := keep · vector + weight · row. */
template <class C>
__device__ __forceinline__ void additive_add(float (&vector)[C::E], float keep, float weight, const typename C::row &row)
{
#pragma unroll
	for (int e = 0; e < C::E; e++)
		vector[e] = keep * vector[e] + weight * C::at(row, e);
}

/* --- numbers per row ------------------------------------------------------------------------- */

/* A number per row of a group. A slot has the numbers of ROWS rows: row r is in lane r % ROWS and, if a group has more
 * lanes, in every ROWS-th lane after it. So one lane computes a row's number and the others get it by a shuffle. */
template <class C, int R> struct additive_held {
	enum { ROWS = R < (int)C::L ? R : (int)C::L, SLOTS = R / ROWS };
	float slot[SLOTS];

	/* This lane's row in slot i, and its place among the rows of a slot. */
	static __device__ __forceinline__ int row(int i)
	{
		return i * ROWS + place();
	}
	static __device__ __forceinline__ int place(void)
	{
		return threadIdx.x % ROWS;
	}
	/* Return row r's number to all lanes. */
	__device__ __forceinline__ float get(int r) const
	{
		return __shfl_sync(ALL_LANES, slot[r / ROWS], r % ROWS, ROWS);
	}
	/* Write the numbers whose bit is set to at[0], at[step], … */
	__device__ __forceinline__ void store(float *at, int step, unsigned bits) const
	{
#pragma unroll
		for (int i = 0; i < SLOTS; i++)
			if (C::lane() < ROWS && bits >> row(i) & 1)
				at[(int64_t)row(i) * step] = slot[i];
	}
};

/* Sum each of R numbers over a group's lanes, in the order of warp_sum. Overwrites x. */
template <class C, int R> __device__ __forceinline__ additive_held<C, R> additive_sums(float (&x)[R])
{
	typedef additive_held<C, R> held;
	held out;
#pragma unroll
	for (int s = 0; s < held::SLOTS; s++) {
		float *y = x + s * held::ROWS;
#pragma unroll
		for (int flip = C::L / 2; flip > 0; flip /= 2) {
			const bool upper = threadIdx.x & flip; /* this lane keeps the upper half of the remaining rows */
#pragma unroll
			for (int i = 0; i < (flip < held::ROWS ? flip : (int)held::ROWS); i++) {
				const bool half = flip < held::ROWS;
				const float mine = half && upper ? y[i + flip] : y[i];
				const float other = half && !upper ? y[i + flip] : y[i];
				y[i] = mine + __shfl_xor_sync(ALL_LANES, other, flip);
			}
		}
		out.slot[s] = y[0];
	}
	return out;
}

/* A group's rows, their scores and values (ONES: all 1). */
template <class C, int R, bool ONES> struct additive_rows {
	typedef additive_held<C, R> held;
	additive_stage<C, R> *stage;
	held scores, values;

	__device__ __forceinline__ float value(int i) const
	{
		return ONES ? 1 : values.slot[i];
	}
	/* Aggregate of the rows whose bit is set. */
	__device__ __forceinline__ additive_aggregate<C::E> fold(unsigned bits) const
	{
		additive_aggregate<C::E> a = {STREAM_EMPTY, 0, {}};
		held weights;
#pragma unroll
		for (int i = 0; i < held::SLOTS; i++)
			a.top = bits >> held::row(i) & 1 ? fmaxf(a.top, scores.slot[i]) : a.top;
		a.top = warp_max<held::ROWS>(a.top);
#pragma unroll
		for (int i = 0; i < held::SLOTS; i++) {
			weights.slot[i] = bits >> held::row(i) & 1 ? additive_exp(scores.slot[i] - a.top) : 0.0f;
			a.sum += weights.slot[i] * value(i);
		}
		a.sum = warp_sum<held::ROWS>(a.sum);
		__syncwarp(); /* the rows are read again, because they would not fit in registers */
#pragma unroll
		for (int r = 0; r < R; r++)
			additive_add<C>(a.vector, 1, weights.get(r), stage->get(r));
		return a;
	}
};

/* Factors that append the rows of a group one after another: each makes the vector keep · vector + weight · row. */
template <class C, int R> struct additive_course {
	typedef additive_held<C, R> held;
	held keep, weight, top, sum;
};

/* Aggregates of rows appended to an aggregate with this top and sum. Forwards, `top` and `sum` are those after each
 * row. With `back` the last row comes first, and they are those of the rows after it. The aggregate is emptied at a row
 * whose bit in `borders` is set. MEAN: vectors are divided by their sums; values are 1. */
template <bool back, bool MEAN, class C, int R, bool ONES>
__device__ __forceinline__ additive_course<C, R> additive_course_of(const additive_rows<C, R, ONES> &rows, float top,
                                                                    float sum, unsigned borders)
{
	typedef additive_held<C, R> held;
	enum { ROWS = held::ROWS };
	additive_course<C, R> out;
	const int place = held::place(), steps = back ? ROWS - 1 - place : place; /* rows of the slot before this one */
	auto before = [](float x, int by) {
		return back ? __shfl_down_sync(ALL_LANES, x, by, ROWS) : __shfl_up_sync(ALL_LANES, x, by, ROWS);
	};
#pragma unroll
	for (int n = 0; n < held::SLOTS; n++) {
		const int i = back ? held::SLOTS - 1 - n : n, row = held::row(i);
		/* Bits of the slot from this row on to those before it; rows up to the first border are one
		 * aggregate. */
		const unsigned cuts = back ? borders >> row : __brev(borders) >> (31 - row);
		const int reach = cuts ? __ffs((int)cuts) - 1 : R; /* rows before this one up to the nearest border */
		const float score = rows.scores.slot[i];
		float t = score;
#pragma unroll
		for (int by = 1; by < ROWS; by *= 2) {
			const float other = before(t, by);
			t = by <= steps && by <= reach ? fmaxf(t, other) : t;
		}
		t = fmaxf(fmaxf(t, steps < reach ? top : -INFINITY), STREAM_EMPTY);
		float last = before(t, 1);
		last = reach == 0 ? -INFINITY : steps == 0 ? top : last;
		const float keep = additive_exp(last - t), weight = additive_exp(score - t);
		float kept = keep, added = weight * rows.value(i); /* sum = kept · (sum before the slot) + added */
#pragma unroll
		for (int by = 1; by < ROWS; by *= 2) {
			const float others_kept = before(kept, by), others_added = before(added, by);
			if (by <= steps) {
				added += kept * others_added;
				kept *= others_kept;
			}
		}
		const float all = kept * sum + added, before_all = before(all, 1), past = steps == 0 ? sum : before_all;
		const float share = MEAN ? additive_share(all) : 1.0f;
		out.keep.slot[i] = MEAN ? keep * past * share : keep;
		out.weight.slot[i] = weight * share;
		out.top.slot[i] = back ? last : t;
		out.sum.slot[i] = back ? past : all;
		if (n + 1 < held::SLOTS) {
			top = __shfl_sync(ALL_LANES, t, back ? 0 : ROWS - 1, ROWS);
			sum = __shfl_sync(ALL_LANES, all, back ? 0 : ROWS - 1, ROWS);
		}
	}
	return out;
}

/* --- widths ---------------------------------------------------------------------------------------------- */

/* Call f with the lanes for heads of dh channels: a NULL pointer of their type. */
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
