/* forgetting_stream: the next tokens of each sequence, on the state of a slot (forgetting_attention.cuh).
 *
 * A block has a slab of one sequence and reads its tokens one after another, so the bits do not depend on how a prompt
 * is cut. Parts of a prompt are not read in parallel: merging their sums would round differently. Bytes: v and the
 * state once, g once; one token of many sessions is bound by memory, a long prompt by the sums. */
#include "cuda/forgetting_attention.cuh"
#include "cuda/kernels.h"
#include "cuda/stream.cuh"

struct forgetting_stream_call {
	forgetting_cut cut;
	const float *v, *a, *f, *bonus;
	float *pool, *g, *l, *before;
	const int32_t *slot, *position, *length, *mask, *start;
	int64_t rows, n, slot_floats, offset;
	bool aligned; /* a thread's channels in the slot can be accessed at once */
};

/* Copy V channels, at once if `aligned`. */
template <int V> static __device__ __forceinline__ void load_state(float (&g)[V], const float *from, bool aligned)
{
	if (aligned) {
		const forgetting_channels<float, V> x = *(const forgetting_channels<float, V> *)from;
#pragma unroll
		for (int e = 0; e < V; e++)
			g[e] = x.at[e];
	} else {
#pragma unroll
		for (int e = 0; e < V; e++)
			g[e] = from[e];
	}
}
template <int V> static __device__ __forceinline__ void store_state(float *to, const float (&g)[V], bool aligned)
{
	if (aligned) {
		forgetting_store<float, V>(to, g);
	} else {
#pragma unroll
		for (int e = 0; e < V; e++)
			to[e] = g[e];
	}
}

/* Tokens that the sequence has room for but does not read are 0. */
template <int HELD, bool BONUS>
static __device__ __forceinline__ void clear_tokens(const forgetting_stream_call &c, const forgetting_part &p,
                                                    int64_t first, int64_t stop, bool speaks)
{
	const float zeros[HELD] = {};
	for (int64_t t = first; t < stop; t++) {
		if (p.values && c.g)
			forgetting_store<float, HELD>(c.g + t * c.cut.d + p.channel, zeros);
		if (p.scores && c.l && speaks)
			c.l[t * c.cut.heads + p.head] = 0.0f;
		if (BONUS && p.values && c.before)
			forgetting_store<float, HELD>(c.before + t * c.cut.d + p.channel, zeros);
	}
}

template <int V, int AHEAD, bool BONUS = false>
static __global__ void __launch_bounds__(WARP + FORGETTING_HELPERS + FORGETTING_THREADS, 1)
    forgetting_stream_kernel(forgetting_stream_call c)
{
	enum { HELD = V ? V : 1 };
	wait_for_previous();
	let_next_begin();
	const int64_t row = blockIdx.x / (unsigned)c.cut.groups;
	const token_span span = tokens_of(c.start, c.rows, c.n, row);
	const int64_t length = c.length[row];
	const bool begins = c.position[row] == 0;
	float *state = c.pool + c.slot[row] * c.slot_floats + c.offset;
	forgetting_tokens<float> k = {};
	k.v = c.v + span.first * c.cut.d;
	k.a = c.a + span.first * c.cut.heads;
	k.f = c.f ? c.f + span.first * c.cut.f_stride : nullptr;
	k.mask = c.mask ? c.mask + span.first : nullptr;
	k.bonus = c.bonus;
	k.g = c.g ? c.g + span.first * c.cut.d : nullptr;
	k.before = c.before ? c.before + span.first * c.cut.d : nullptr;
	k.count = length;
	forgetting_sum before = forgetting_nothing(), s = before;
	for (int piece = 0; piece < c.cut.pieces; piece++) {
		const forgetting_part p =
		    forgetting_part_of<V>(c.cut, (int)(blockIdx.x % (unsigned)c.cut.groups), piece,
		                          WARP + c.cut.helpers);
		float *held = state + 3 * c.cut.heads + p.channel;
		float g[HELD] = {};
		if (length > 0 && !begins) {
			if (p.scores && piece == 0)
				before = {forgetting_exponent(state[p.head]), state[c.cut.heads + p.head],
				          state[2 * c.cut.heads + p.head], 0.0f};
			if (p.values)
				load_state<HELD>(g, held, c.aligned);
		}
		s = before;
		k.l = c.l && piece == 0 ? c.l + span.first * c.cut.heads : nullptr;
		if (length > 0) {
			forgetting_read<V, AHEAD, BONUS>(k, c.cut, p, s, g);
			if (p.values)
				store_state<HELD>(held, g, c.aligned);
			if (p.scores && piece == 0) {
				state[p.head] = (float)s.m;
				state[c.cut.heads + p.head] = s.s;
				state[2 * c.cut.heads + p.head] = s.rest;
			}
		}
		clear_tokens<HELD, BONUS>(c, p, span.first + length, span.first + span.room, piece == 0);
	}
}

/* AHEAD = 1 for one token: few registers, so that many sessions fit a processor. */
template <int V, int AHEAD, bool BONUS = false>
static status launch(backend *b, const forgetting_stream_call &c)
{
	return cuda_launch_early(b, forgetting_stream_kernel<V, AHEAD, BONUS>, cuda_extent(c.rows * c.cut.groups),
	                         c.cut.threads, forgetting_shared_bytes(c.cut, V), c);
}

status cuda_forgetting_stream(backend *b, const op_call *call)
{
	enum { F = 8, BONUS = 9, CHANNELS = 4 };
	const shape v = call->in[0].shape;
	forgetting_stream_call c = {};
	c.cut = forgetting_cut_of(call, F);
	c.v = (const float *)call->in[0].data;
	c.a = (const float *)call->in[1].data;
	c.f = (const float *)cuda_optional(call, F);
	c.pool = (float *)call->in[2].data;
	c.slot = (const int32_t *)call->in[3].data;
	c.position = (const int32_t *)call->in[4].data;
	c.length = (const int32_t *)call->in[5].data;
	c.mask = (const int32_t *)cuda_optional(call, 6);
	c.start = (const int32_t *)cuda_optional(call, 7);
	c.g = (float *)call->out[0].data;
	c.l = (float *)call->out[1].data;
	c.bonus = (const float *)cuda_optional(call, BONUS);
	c.before = c.bonus ? (float *)call->out[2].data : nullptr;
	c.rows = call->in[3].shape.dim[0];
	c.n = v.dim[1];
	c.slot_floats = call->in[2].shape.dim[1];
	c.offset = ((const forgetting_stream_params *)call->params)->offset;
	c.aligned = c.slot_floats % CHANNELS == 0 && (c.offset + 3 * c.cut.heads) % CHANNELS == 0;
	if (shape_count(v) == 0)
		return STATUS_OK;
	c.cut.helpers = c.n > 1 ? FORGETTING_HELPERS : 0;
	return forgetting_by_width(&c.cut, [&](auto width) {
		enum { V = decltype(width)::V };
		c.aligned = c.aligned || (int)V < (int)CHANNELS;
		enum { AHEAD = (int)V != 0 ? FORGETTING_AHEAD : FORGETTING_AHEAD / 2 };
		if constexpr (V == 0)
			if (c.bonus)
				return c.n == 1 ? launch<V, 1, true>(b, c) : launch<V, AHEAD, true>(b, c);
		return c.n == 1 ? launch<V, 1>(b, c) : launch<V, AHEAD>(b, c);
	});
}
