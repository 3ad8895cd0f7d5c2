/* softmax_ring.cuh - the keys and values that queries of a softmax_stream see, read from the memories, the ring or the
 * call's inputs. A ring of codes reads as floats, so all results have the bits that a ring of floats would give. With a
 * ring of bf16 the call's own keys and values are rounded as they are read, to the bits that the ring then holds. */
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
		s.key = (const char *)s.memory_k;
		s.value = (const char *)s.memory_v;
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
	return value ? (const float *)s.value + place_of(r, j) * c.values
	             : (const float *)s.key + place_of(r, j) * c.keys;
}

/* True if key j is in the ring, and not a memory or one of the call's own. */
static __device__ __forceinline__ bool in_ring(const session &s, const reach &r, int64_t j)
{
	return j < s.position && !is_memory(r);
}

/* The first channel of the head in a place of the ring, or of a value if `value` is 1, in the ring's format. */
static __device__ __forceinline__ const char *ring_at(const ring_call &c, const session &s, int64_t place, int value)
{
	return value ? s.value + place * c.store.value_width * sizeof(float)
	             : s.key + place * c.store.key_width * sizeof(float);
}

static __device__ __forceinline__ quad widen(uint2 word)
{
	return {{__uint_as_float(word.x << 16), __uint_as_float(word.x & 0xffff0000u), __uint_as_float(word.y << 16),
	         __uint_as_float(word.y & 0xffff0000u)}};
}

static __device__ __forceinline__ uint2 narrow(const quad &q)
{
	return make_uint2(two_bf16(q.at[0], q.at[1]), two_bf16(q.at[2], q.at[3]));
}

/* Load or store channels d … d + 3 of a head of n channels in a ring of bf16. */
template <bool PACKED> static __device__ __forceinline__ quad load_bf16(const bf16 *head, int64_t d, int64_t n)
{
	if constexpr (PACKED) {
		return widen(*(const uint2 *)(head + d));
	} else {
		quad q;
#pragma unroll
		for (int e = 0; e < QUAD; e++)
			q.at[e] = d + e < n ? load_real(head + d + e) : 0.0f;
		return q;
	}
}

template <bool PACKED>
static __device__ __forceinline__ void store_bf16(bf16 *head, int64_t d, int64_t n, const quad &q)
{
	if constexpr (PACKED) {
		*(uint2 *)(head + d) = narrow(q);
	} else {
#pragma unroll
		for (int e = 0; e < QUAD; e++)
			if (d + e < n)
				store_real(head + d + e, q.at[e]);
	}
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

/* Channels d … d + 3 of the key of position j, or of its value if VALUE is 1. */
template <bool PACKED, softmax_format FORMAT, int VALUE>
static __device__ __forceinline__ quad token_quad(const ring_call &c, const session &s, const reach &r, int64_t j,
                                                  int64_t d)
{
	const int64_t n = VALUE ? c.dv : c.dh;
	if constexpr (FORMAT != SOFTMAX_F32) {
		if (in_ring(s, r, j)) {
			const int64_t place = place_of(r, j);
			const char *head = ring_at(c, s, place, VALUE);
			if constexpr (FORMAT == SOFTMAX_CODES)
				return load_codes<PACKED>((const int8_t *)head, d, n, VALUE ? c.value_step : s.present[place]);
			else
				return load_bf16<PACKED>((const bf16 *)head, d, n);
		}
	}
	const quad q = load_quad<PACKED>(token_at(c, s, r, j, VALUE), d, n);
	return FORMAT == SOFTMAX_BF16 && !is_memory(r) ? widen(narrow(q)) : q;
}

template <softmax_format FORMAT>
static __device__ __forceinline__ bool present_at(const session &s, const reach &r, int64_t j)
{
	if (j >= s.position)
		return !s.mask || s.mask[j - s.position] != 0;
	if (!s.present)
		return true;
	const float stored = s.present[place_of(r, j)];
	return FORMAT == SOFTMAX_CODES ? softmax_step_is_there(stored) : stored != 0.0f;
}

#endif
