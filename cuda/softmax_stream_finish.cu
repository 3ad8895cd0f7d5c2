/* The second kernel of softmax_stream.cuh, finish. A part of a warp has a token and a head. It merges the sums of its
 * chunks in order into y and the log-normalizer, and writes the last tokens of a call into the ring.
 *
 * Bytes: 1/64 of 8 per channel and key for the sums of chunks, and 24 per channel and token for qkv, y and the ring
 * (with bf16 20). */
#include "cuda/softmax_ring.cuh"

/* Sequence of a token: the last that begins at it or before. If the token is read, that sequence is not empty. */
static __device__ __forceinline__ unsigned row_of_token(const ring_call &c, int64_t token)
{
	if (!c.start)
		return (unsigned)token / (unsigned)c.n;
	unsigned low = 0, high = c.rows;
	while (high - low > 1) {
		const unsigned middle = (low + high) / 2;
		const bool before = c.start[middle] <= token;
		low = before ? middle : low;
		high = before ? high : middle;
	}
	return low;
}

/* Indices of the sums of a token and head: `memory` for its memories, `token` for its tokens. */
struct parts {
	int64_t memory, token;
	int memories, count; /* count: of both */
};

static __device__ __forceinline__ parts ring_parts_of(const ring_call &c, const session &s, int64_t head, int64_t i)
{
	const int64_t t = s.position + i;
	const int64_t memory = partial_at(c, s, head, i, 0);
	const int64_t skipped = chunk_of(c, first_seen(c, t)) - chunk_of(c, first_seen(c, t - i % c.queries));
	const int memories = (int)c.memory_chunks;
	return {memory, memory + skipped, memories, memories + token_chunks(c, s, t, t)};
}

static __device__ __forceinline__ int64_t part_at(const parts &p, int k)
{
	return (k < p.memories ? p.memory : p.token) + k;
}

/* Token i of a sequence, one head: y [dv] and its log-normalizer. */
template <int LANES, bool PACKED>
static __device__ __forceinline__ void combine(const ring_call &c, const session &s, int64_t head, int64_t i)
{
	const int first = threadIdx.x % LANES * QUAD;
	const parts p = ring_parts_of(c, s, head, i);
	for (int64_t d = first; d == first || d < c.dv; d += LANES * QUAD) {
		const bool requested = c.y && d < c.dv;
		merged all = NOTHING_MERGED;
		quad total = {};
#pragma unroll 4
		for (int k = 0; k < p.count; k++) {
			const quad none = {};
			const quad sum = requested ? load_pack(c.sum + part_at(p, k) * sum_width(c.dv) + d) : none;
			merge_sums(total, sum, merge_chunk(all, c.norm[part_at(p, k)]));
		}
		if (requested)
			store_quad<PACKED>(c.y + ((s.tokens.first + i) * c.heads + head) * c.dv, d, c.dv,
			                   answer_of(total, inverse_of(all)));
		if (c.log_normalizer && d == 0)
			c.log_normalizer[(s.tokens.first + i) * c.heads + head] = normalizer_of(all);
	}
}

/* Write the token into its place of a ring of codes. */
template <int LANES, bool PACKED>
static __device__ __forceinline__ void finish_codes(const ring_call &c, const session &s, int64_t head, int64_t i,
                                                    int64_t place)
{
	const int first = threadIdx.x % LANES * QUAD;
	const float step = c.key_step[s.tokens.first + i];
	int8_t *key = (int8_t *)ring_at(c, s, place, 0), *value = (int8_t *)ring_at(c, s, place, 1);
	for (int64_t d = first; d < c.dh; d += LANES * QUAD)
		store_codes<PACKED>(key, d, c.dh, load_quad<PACKED>(s.k + i * c.k_row, d, c.dh), step);
	for (int64_t d = first; d < c.dv; d += LANES * QUAD)
		store_codes<PACKED>(value, d, c.dv, load_quad<PACKED>(s.v + i * c.v_row, d, c.dv), c.value_step);
	if (head != 0 || first != 0)
		return;
	((float *)s.present)[place] = !s.mask || s.mask[i] != 0 ? step : SOFTMAX_MASKED_STEP;
	for (int64_t d = c.keys; d < 4 * c.store.key_width; d++) /* head 0 also writes the padding of the place */
		key[d] = 0;
	for (int64_t d = c.values; d < 4 * c.store.value_width; d++)
		value[d] = 0;
}

/* Write the token into its place of a ring of floats or bf16. */
template <int LANES, bool PACKED, bool BF16>
static __device__ __forceinline__ void finish_reals(const ring_call &c, const session &s, int64_t head, int64_t i,
                                                    int64_t place)
{
	const int first = threadIdx.x % LANES * QUAD;
	char *key = (char *)ring_at(c, s, place, 0), *value = (char *)ring_at(c, s, place, 1);
	const auto put = [](char *to, int64_t d, int64_t n, const float *from) {
		if constexpr (BF16)
			store_bf16<PACKED>((bf16 *)to, d, n, load_quad<PACKED>(from, d, n));
		else
			store_quad<PACKED>((float *)to, d, n, load_quad<PACKED>(from, d, n));
	};
	for (int64_t d = first; d < c.dh; d += LANES * QUAD)
		put(key, d, c.dh, s.k + i * c.k_row);
	for (int64_t d = first; d < c.dv; d += LANES * QUAD)
		put(value, d, c.dv, s.v + i * c.v_row);
	if (head != 0 || first != 0)
		return;
	((float *)s.present)[place] = !s.mask || s.mask[i] != 0 ? 1.0f : 0.0f;
	if (BF16 && c.keys % 2 != 0)
		store_real((bf16 *)key + c.keys, 0.0f);
	if (BF16 && c.values % 2 != 0)
		store_real((bf16 *)value + c.values, 0.0f);
}

template <int LANES, bool PACKED, softmax_format FORMAT>
__global__ void __launch_bounds__(WARPS *WARP) softmax_finish_kernel(ring_call c)
{
	enum { PARTS = WARP / LANES };
	const int lane = threadIdx.x % WARP, first = lane % LANES * QUAD;
	const unsigned unit = blockIdx.x * WARPS + threadIdx.x / WARP;
	const int64_t at = unit / c.groups, head = (int64_t)(unit % c.groups) * PARTS + lane / LANES;
	if (at >= c.tokens || head >= c.heads)
		return;
	const unsigned row = row_of_token(c, at);
	const session s = session_of(c, row, head);
	const int64_t i = at - s.tokens.first, places = c.store.places;
	const quad zeros = {};
	if (i >= s.length) {
		for (int64_t d = first; c.y && d < c.dv; d += LANES * QUAD)
			store_quad<PACKED>(c.y + (at * c.heads + head) * c.dv, d, c.dv, zeros);
		if (c.log_normalizer && first == 0)
			c.log_normalizer[at * c.heads + head] = 0.0f;
		return;
	}
	if (attends(c) && !is_long(c, s))
		combine<LANES, PACKED>(c, s, head, i);
	if (!c.k || i < s.length - places || (unsigned)head % (unsigned)c.group != 0)
		return;
	const int64_t place = (unsigned)(s.position + i) % (unsigned)places;
	if constexpr (FORMAT == SOFTMAX_CODES)
		finish_codes<LANES, PACKED>(c, s, head, i, place);
	else
		finish_reals<LANES, PACKED, FORMAT == SOFTMAX_BF16>(c, s, head, i, place);
}

template <int LANES, bool PACKED, softmax_format FORMAT> static status finish(backend *b, ring_call c)
{
	enum { PARTS = WARP / LANES };
	c.groups = (unsigned)((c.heads + PARTS - 1) / PARTS);
	const int64_t units = c.tokens * c.groups;
	if (units > UINT32_MAX)
		return STATUS_UNSUPPORTED;
	return cuda_launch(b, softmax_finish_kernel<LANES, PACKED, FORMAT>, cuda_parts(units, WARPS), WARPS * WARP, 0, c);
}

status cuda_softmax_finish(backend *b, const ring_call *c)
{
	return by_layout(*c, [&](auto layout) {
		typedef decltype(layout) L;
		return finish<L::LANES, L::PACKED, L::FORMAT>(b, *c);
	});
}
