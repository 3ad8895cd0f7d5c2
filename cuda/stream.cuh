/* stream.cuh - helpers for the kernels of recurrent states. LANES lanes of a warp work on one head. A lane works on
 * four neighbouring channels at a time (a quad), then on the quad 4 · LANES channels further on. PACKED: quads are
 * whole and 16-byte aligned. */
#ifndef CUDA_STREAM_CUH
#define CUDA_STREAM_CUH

#include "cuda/backend.h"
#include "cuda/device.cuh"

enum { QUAD = 4 };

typedef pack<float> quad;

/* Load or store channels d … d + 3 of a head of dh channels. Past the last channel, loads give zeros and stores do
 * nothing. */
template <bool PACKED> static __device__ __forceinline__ quad load_quad(const float *head, int64_t d, int64_t dh)
{
	if constexpr (PACKED) {
		return load_pack(head + d);
	} else {
		quad q;
#pragma unroll
		for (int i = 0; i < QUAD; i++)
			q.at[i] = d + i < dh ? head[d + i] : 0.0f;
		return q;
	}
}
template <bool PACKED>
static __device__ __forceinline__ void store_quad(float *head, int64_t d, int64_t dh, const quad &q)
{
	if constexpr (PACKED) {
		store_pack(head + d, q);
	} else {
#pragma unroll
		for (int i = 0; i < QUAD; i++)
			if (d + i < dh)
				head[d + i] = q.at[i];
	}
}

/* The tokens of one sequence in a call; see engine/tensor/ops/sequence.h. `start` may be NULL. */
struct token_span {
	int64_t first, room;
};
static __device__ __forceinline__ token_span tokens_of(const int32_t *start, int64_t sequences, int64_t n, int64_t s)
{
	if (!start)
		return {s * n, n};
	const int64_t first = start[s];
	return {first, (s + 1 < sequences ? start[s + 1] : n) - first};
}

/* Return the sequence of a row of tokens: the last sequence that begins at or before `row`. If the token is read, that
 * sequence is not empty. */
static __device__ __forceinline__ int64_t sequence_of(const int32_t *start, int64_t sequences, int64_t n, int64_t row)
{
	if (!start)
		return (int64_t)((uint32_t)row / (uint32_t)n);
	int64_t low = 0, high = sequences;
	while (high - low > 1) {
		const int64_t middle = (low + high) / 2;
		const bool before = start[middle] <= row;
		low = before ? middle : low;
		high = before ? high : middle;
	}
	return low;
}

/* sum + a · b, one channel after another. */
static __device__ __forceinline__ float quad_dot(const quad &a, const quad &b, float sum)
{
#pragma unroll
	for (int i = 0; i < QUAD; i++)
		sum = __fmaf_rn(a.at[i], b.at[i], sum);
	return sum;
}

/* a = fa · a + fb · b */
static __device__ __forceinline__ void quad_merge(quad &a, float fa, const quad &b, float fb)
{
#pragma unroll
	for (int i = 0; i < QUAD; i++)
		a.at[i] = __fmaf_rn(fa, a.at[i], __fmul_rn(fb, b.at[i]));
}

/* Call f with the number of lanes for a head of dh channels: as few as hold it, at least 4, at most a warp. */
template <int lanes> struct lane_count {
	enum { N = lanes };
};
template <class F> status by_lanes(int64_t dh, F f)
{
	if (dh <= 4 * QUAD)
		return f(lane_count<4>());
	if (dh <= 8 * QUAD)
		return f(lane_count<8>());
	if (dh <= 16 * QUAD)
		return f(lane_count<16>());
	return f(lane_count<32>());
}

/* layernorm, additive_stream of its result and y = base + g ⊙ factor, as one kernel (additive_stream.cu). Possible
 * where the stream reads one token of each of a few sessions and no other call reads the first two results. */
typedef struct stream_chain {
	const op_call *norm, *stream;
	const float *base, *factor;
	float *y;
} stream_chain;
bool cuda_stream_can_chain(const backend *b, const stream_chain *chain);
status cuda_stream_run_chain(backend *b, const stream_chain *chain);

#endif
