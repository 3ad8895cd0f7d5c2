/* forgetting_attention over whole sequences (forgetting_attention.cuh).
 *
 *   v [B, N, D] real, a [B, N, H], f?, mask?, bonus? -> g [B, N, D], log_normalizer l [B, N, H], before [B, N, D]
 *
 * A sequence is cut into tiles that blocks read in parallel. An aggregate of tokens is (P = sum of f, l, g). Appending
 * one is adding a token with rate P, score l and value g:
 *   (P1, l1, g1) ⊕ (P2, l2, g2) = (P1 + P2, l, g1 + e^{l2 - l} (g2 - g1)),  l = log(e^{l1 + P2} + e^{l2})
 * So three kernels are one loop: tiles from the empty state give aggregates; those, one after another, give the state
 * before each tile; tiles from that state give the results. Two of them are left out if tiles are not needed to fill
 * the device. Bytes per element: v twice, g once; once each with one tile. */
#include "cuda/forgetting_attention.cuh"
#include "cuda/kernels.h"

template <class T> struct forgetting_call {
	forgetting_cut cut;
	forgetting_tokens<T> all; /* tokens of all sequences; count: of one */
	int64_t batch;
	int tile, tiles;
	float *rate, *l; /* [B, tiles, H] aggregates of tiles; then l of the state after each */
	float *g;        /* [B, tiles, D] */
};

/* The tokens `first` … `first + count - 1` of a sequence. */
template <class T>
static __device__ __forceinline__ forgetting_tokens<T> forgetting_tokens_at(const forgetting_call<T> &c, int64_t first,
                                                                            int64_t count)
{
	forgetting_tokens<T> k = c.all;
	k.v += first * c.cut.d;
	k.a += first * c.cut.heads;
	k.f = k.f ? k.f + first * c.cut.f_stride : nullptr;
	k.mask = k.mask ? k.mask + first : nullptr;
	k.g = k.g ? k.g + first * c.cut.d : nullptr;
	k.l = k.l ? k.l + first * c.cut.heads : nullptr;
	k.before = k.before ? k.before + first * c.cut.d : nullptr;
	k.count = count;
	return k;
}

/* A block per slab, sequence and tile. AGGREGATE: from the empty state to an aggregate, without the last tile;
 * otherwise from the state before the tile to the results. */
template <class T, int V, bool AGGREGATE, bool BONUS = false>
static __global__ void __launch_bounds__(WARP + FORGETTING_HELPERS + FORGETTING_THREADS, 1) forgetting_tile_kernel(forgetting_call<T> c)
{
	enum { HELD = V ? V : 1 };
	const unsigned tiles = AGGREGATE ? c.tiles - 1 : c.tiles, at = blockIdx.x / (unsigned)c.cut.groups;
	const int64_t sequence = at / tiles, tile = at % tiles, first = tile * c.tile;
	forgetting_tokens<T> k =
	    forgetting_tokens_at(c, sequence * c.all.count + first, min((int64_t)c.tile, c.all.count - first));
	if (AGGREGATE) {
		k.g = nullptr;
		k.l = nullptr;
	}
	const int64_t entry = sequence * c.tiles + tile;
	for (int piece = 0; piece < c.cut.pieces; piece++) {
		const forgetting_part p =
		    forgetting_part_of<V>(c.cut, (int)(blockIdx.x % (unsigned)c.cut.groups), piece,
		                          WARP + c.cut.helpers);
		forgetting_sum s = forgetting_nothing();
		float g[HELD] = {};
		if (!AGGREGATE && tile > 0) {
			if (p.scores)
				s = forgetting_sum_at(c.l[(entry - 1) * c.cut.heads + p.head]);
#pragma unroll
			for (int e = 0; e < HELD && p.values; e++)
				g[e] = c.g[(entry - 1) * c.cut.d + p.channel + e];
		}
		forgetting_read<V, V ? FORGETTING_AHEAD : FORGETTING_AHEAD / 2, BONUS>(k, c.cut, p, s, g);
		k.l = nullptr;
		if (!AGGREGATE)
			continue;
		const float rate = V ? forgetting_rate(c.cut, s.rate) : s.rate;
		if (p.scores && piece == 0) {
			c.rate[entry * c.cut.heads + p.head] = rate;
			c.l[entry * c.cut.heads + p.head] = forgetting_log(__fadd_rn(s.s, s.rest), s.m);
		}
		if (p.values)
			forgetting_store<float, HELD>(c.g + entry * c.cut.d + p.channel, g);
	}
}

/* Aggregates become states. A block per slab and sequence. Each thread overwrites what it alone has read. */
template <int V>
static __global__ void __launch_bounds__(WARP + FORGETTING_HELPERS + FORGETTING_THREADS, 1)
    forgetting_carry_kernel(forgetting_cut cut, int tiles, const float *rate, float *l, float *g)
{
	enum { HELD = V ? V : 1 };
	const int64_t entry = blockIdx.x / (unsigned)cut.groups * (int64_t)tiles;
	forgetting_tokens<float> k = {};
	cut.f_stride = cut.heads;
	k.v = k.g = g + entry * cut.d;
	k.a = l + entry * cut.heads;
	k.f = rate + entry * cut.heads;
	k.count = tiles - 1;
	for (int piece = 0; piece < cut.pieces; piece++) {
		const forgetting_part p = forgetting_part_of<V>(cut, (int)(blockIdx.x % (unsigned)cut.groups), piece,
		                                                      WARP + cut.helpers);
		forgetting_sum s = forgetting_nothing();
		float held[HELD] = {};
		k.l = piece == cut.pieces - 1 ? l + entry * cut.heads : nullptr;
		forgetting_read<V, V ? FORGETTING_AHEAD : FORGETTING_AHEAD / 2>(k, cut, p, s, held);
	}
}

/* Choose tiles; *floats: size of their aggregates. */
template <class T> static void cut_into_tiles(const backend *b, forgetting_call<T> *c, int64_t *floats)
{
	c->tile = forgetting_tile(b, c->batch * c->cut.groups, c->all.count);
	c->tiles = (int)((c->all.count + c->tile - 1) / c->tile);
	*floats = c->tiles > 1 ? c->batch * c->tiles * (2 * c->cut.heads + c->cut.d) : 0;
}

template <class T> static forgetting_call<T> call_of(const op_call *call)
{
	forgetting_call<T> c = {};
	c.cut = forgetting_cut_of(call, 2);
	c.cut.helpers = FORGETTING_HELPERS;
	c.batch = call->in[0].shape.dim[0];
	c.all.v = (const T *)call->in[0].data;
	c.all.a = (const float *)call->in[1].data;
	c.all.f = (const float *)cuda_optional(call, 2);
	c.all.mask = (const int32_t *)cuda_optional(call, 3);
	c.all.bonus = (const float *)cuda_optional(call, 4);
	c.all.g = (T *)call->out[0].data;
	c.all.l = (float *)call->out[1].data;
	c.all.before = c.all.bonus ? (T *)call->out[2].data : nullptr;
	c.all.count = call->in[0].shape.dim[1];
	return c;
}

size_t cuda_forgetting_attention_scratch(const backend *b, const op_call *call)
{
	int64_t floats = 0;
	if (shape_count(call->in[0].shape) == 0)
		return 0;
	forgetting_call<float> c = call_of<float>(call);
	(void)forgetting_by_width(&c.cut, [&](auto) {
		cut_into_tiles(b, &c, &floats);
		return STATUS_OK;
	});
	return (size_t)floats * sizeof(float);
}

template <class T, int V> static status forward_tiles(backend *b, forgetting_call<T> c, float *scratch)
{
	int64_t floats;
	const size_t shared = forgetting_shared_bytes(c.cut, V);
	const int64_t slabs = c.batch * c.cut.groups;
	cut_into_tiles(b, &c, &floats);
	c.g = scratch;
	c.l = c.g + (floats ? c.batch * c.tiles * c.cut.d : 0);
	c.rate = c.l + (floats ? c.batch * c.tiles * c.cut.heads : 0);
	TRY(cuda_launch(b, forgetting_tile_kernel<T, V, true>, cuda_extent(slabs * (c.tiles - 1)), c.cut.threads,
	                shared, c));
	if (c.tiles > 1)
		TRY(cuda_launch(b, forgetting_carry_kernel<V>, cuda_extent(slabs), c.cut.threads, shared, c.cut,
		                c.tiles, c.rate, c.l, c.g));
	auto kernel = forgetting_tile_kernel<T, V, false>;
	if constexpr (V == 0)
		kernel = c.all.bonus ? forgetting_tile_kernel<T, V, false, true> : kernel;
	return cuda_launch(b, kernel, cuda_extent(slabs * c.tiles), c.cut.threads, shared, c);
}

status cuda_forgetting_attention(backend *b, const op_call *call)
{
	if (shape_count(call->in[0].shape) == 0)
		return STATUS_OK;
	return cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		forgetting_call<T> c = call_of<T>(call);
		return forgetting_by_width(&c.cut, [&](auto width) {
			return forward_tiles<T, decltype(width)::V>(b, c, (float *)call->scratch);
		});
	});
}
