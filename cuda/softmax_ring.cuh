/* softmax_ring.cuh - the keys and values that queries of a softmax_stream see, read from the memories, the ring or the
 * call's inputs. A ring of codes reads as floats, so all results have the bits that a ring of floats would give. */
#ifndef CUDA_SOFTMAX_RING_CUH
#define CUDA_SOFTMAX_RING_CUH

#include "cuda/softmax_stream.cuh"

extern "C" {
#include "engine/tensor/ops/quantize.h"
}

/* Keys low … high: tokens by position, memories by number. */
struct reach {
	int64_t low, high;
	unsigned query, most;   /* query q is at distance min(query + q, most) - j from key j */
	unsigned limit;         /* and sees it if the distance is from 0 to below this */
	unsigned place, places; /* place of `low` in the store; place at which the store wraps */
};

static __device__ __forceinline__ bool within(const reach &r, int64_t j)
{
	return j >= r.low && j <= r.high;
}

static __device__ __forceinline__ bool is_memory(const reach &r)
{
	return r.places == UINT32_MAX;
}

/* Place of key j in the ring. Keys read from it are less than a window after `low`. */
static __device__ __forceinline__ int64_t place_of(const reach &r, int64_t j)
{
	const unsigned place = r.place + (unsigned)(j - r.low);
	return place < r.places ? place : place - r.places;
}

/* Keys in chunk `number` that queries t … t + count - 1 of s see. A chunk of memories replaces the store in s. */
static __device__ __forceinline__ reach reach_of(const ring_call &c, session &s, unsigned number, int64_t t, int count)
{
	const unsigned most = UINT32_MAX;
	if (number < c.memory_chunks) {
		const int64_t low = number * c.chunk;
		s.key = s.memory_k;
		s.value = s.memory_v;
		s.present = nullptr;
		s.position = INT64_MAX;
		return {low,
		        min(low + c.chunk, c.memories) - 1,
		        (unsigned)(c.memories + t),
		        (unsigned)(c.memories + c.store.places - 1),
		        c.past > 0 && c.past < INT32_MAX ? (unsigned)c.past + 1 : most,
		        (unsigned)low,
		        most};
	}
	const int64_t begin = (chunk_of(c, first_seen(c, t)) + number - c.memory_chunks) * c.chunk;
	reach r = {max(begin, first_seen(c, t)),
	           min(begin + c.chunk - 1, last_seen(c, s, t + count - 1)),
	           (unsigned)t,
	           most,
	           (unsigned)c.reach,
	           0,
	           (unsigned)c.store.places};
	r.place = (unsigned)r.low % r.places;
	if (!c.k)
		r.query = r.most = (unsigned)s.position;
	return r;
}

/* For a query at `at` (memories or tokens, counted from 0): its position without the part that its segment hides, and
 * the rest that it sees. */
static __device__ __forceinline__ void within_segment(const ring_call &c, const reach &r, unsigned at, unsigned *query,
                                                      unsigned *limit)
{
	const bool memory = is_memory(r);
	const unsigned t = memory ? at - (unsigned)c.memories : at;
	const unsigned behind = min(t, stream_behind(t, (unsigned)c.store.places, (unsigned)c.segment));
	if (memory)
		*query = (unsigned)c.memories + behind;
	else
		*limit = min(*limit, behind + 1);
}

/* The key of position j, or its value if `value` is 1, stored as floats. */
static __device__ __forceinline__ const float *token_at(const ring_call &c, const session &s, const reach &r, int64_t j,
                                                        int value)
{
	if (j >= s.position)
		return value ? s.v + (j - s.position) * c.v_row : s.k + (j - s.position) * c.k_row;
	return value ? s.value + place_of(r, j) * c.values : s.key + place_of(r, j) * c.keys;
}

/* Codes d … d + 3 of a head of n channels as a quad of floats. */
template <bool PACKED>
static __device__ __forceinline__ quad load_codes(const int8_t *head, int64_t d, int64_t n, float step)
{
	quad q;
	if constexpr (PACKED) {
		const uint32_t word = *(const uint32_t *)(head + d);
#pragma unroll
		for (int e = 0; e < QUAD; e++)
			q.at[e] = __fmul_rn((float)(int8_t)(word >> 8 * e), step);
	} else {
#pragma unroll
		for (int e = 0; e < QUAD; e++)
			q.at[e] = d + e < n ? __fmul_rn((float)head[d + e], step) : 0.0f;
	}
	return q;
}

template <bool PACKED>
static __device__ __forceinline__ void store_codes(int8_t *head, int64_t d, int64_t n, const quad &q, float step)
{
	if constexpr (PACKED) {
		uint32_t word = 0;
#pragma unroll
		for (int e = 0; e < QUAD; e++)
			word |= (uint32_t)(uint8_t)quantize_byte(q.at[e], step) << 8 * e;
		*(uint32_t *)(head + d) = word;
	} else {
#pragma unroll
		for (int e = 0; e < QUAD; e++)
			if (d + e < n)
				head[d + e] = quantize_byte(q.at[e], step);
	}
}

/* Channels d … d + 3 of the key of position j. */
template <bool PACKED, bool CODES>
static __device__ __forceinline__ quad key_quad(const ring_call &c, const session &s, const reach &r, int64_t j,
                                                int64_t d)
{
	if constexpr (CODES) {
		if (j < s.position && !is_memory(r)) {
			const int64_t place = place_of(r, j);
			return load_codes<PACKED>(s.key_code + 4 * place * c.store.key_width, d, c.dh,
			                          s.present[place]);
		}
	}
	return load_quad<PACKED>(token_at(c, s, r, j, 0), d, c.dh);
}

template <bool PACKED, bool CODES>
static __device__ __forceinline__ quad value_quad(const ring_call &c, const session &s, const reach &r, int64_t j,
                                                  int64_t d)
{
	if constexpr (CODES) {
		if (j < s.position && !is_memory(r))
			return load_codes<PACKED>(s.value_code + 4 * place_of(r, j) * c.store.value_width, d, c.dv,
			                          c.value_step);
	}
	return load_quad<PACKED>(token_at(c, s, r, j, 1), d, c.dv);
}

template <bool CODES>
static __device__ __forceinline__ bool present_at(const session &s, const reach &r, int64_t j)
{
	if (j >= s.position)
		return !s.mask || s.mask[j - s.position] != 0;
	if (!s.present)
		return true;
	const float stored = s.present[place_of(r, j)];
	return CODES ? softmax_step_is_there(stored) : stored != 0.0f;
}

#endif
