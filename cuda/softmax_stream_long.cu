/* The kernel of long runs of queries of softmax_stream.cuh. A block copies a tile of 32 keys and values into shared
 * memory once, for up to 64 queries. These are neighbours of one head, or of the heads that share keys. A warp has ROWS
 * queries of one head and keeps their sums in registers from a chunk's first tile to its last.
 *
 * Every sum has the order of attend. For scores, a thread has KEYS keys of a tile for OWN queries; for values, the lanes
 * are those of attend. The chunks of a query are merged in order as finish does, in shared memory, so nothing is left in
 * scratch.
 *
 * With a ring of bf16 a thread converts the channels that it has copied, in place. Those from the ring become floats,
 * those of the call's own tokens are rounded. That takes 18 instructions for four channels.
 *
 * Keys are copied while values are added, and values while scores are computed. Bytes: every key and value once for
 * up to 64 queries. Instructions of a warp for a tile of 64 channels: 1,400 for scores, 1,500 for values, 400 for
 * exponentials and 900 for copies, chunks and loops. */
#include "cuda/softmax_ring.cuh"

enum {
	MOST_WARPS = 4, /* per block */
	BLOCKS = 4      /* per processor, before a block has more than one warp */
};

/* Shared memory: a tile's keys and values for the block; the rest for each warp. */
struct block_desk {
	float *key, *value;  /* [TILE][ROW], [TILE][LANES · QUAD] */
	float *query;        /* [ROWS][ROW] in the order of query_row */
	float *total;        /* [ROWS][LANES · QUAD] merged chunks */
	float *exponential;  /* [TILE][EXPONENTIAL_ROW] */
	float *factor;       /* [2][ROWS] */
};

template <int LANES> static constexpr size_t tile_floats = TILE * (ROW<LANES> + LANES * QUAD);
template <int LANES>
static constexpr size_t warp_floats = ROWS *(ROW<LANES> + LANES * QUAD + 2) + TILE * EXPONENTIAL_ROW;

template <int LANES> static size_t long_bytes(int warps)
{
	return (tile_floats<LANES> + warps * warp_floats<LANES>) * sizeof(float);
}

template <int LANES> static __device__ __forceinline__ block_desk desk_of(int warp)
{
	block_desk w;
	w.key = shared_memory<float>();
	w.value = w.key + TILE * ROW<LANES>;
	w.query = w.key + tile_floats<LANES> + warp * warp_floats<LANES>;
	w.total = w.query + ROWS * ROW<LANES>;
	w.exponential = w.total + ROWS * LANES * QUAD;
	w.factor = w.exponential + TILE * EXPONENTIAL_ROW;
	return w;
}

/* A block's place in the keys that its queries see: a chunk and a tile of it. */
struct tile_walk {
	session s; /* as the chunk's keys are read */
	reach r;
	unsigned chunk;
	int64_t base;
};

static __device__ __forceinline__ void enter_chunk(const ring_call &c, unsigned row, unsigned head, int64_t t, int count,
                                                   tile_walk &w)
{
	w.s = session_of(c, row, head); /* found again, since a second copy would take too many registers */
	w.r = reach_of(c, w.s, w.chunk, t, count);
	w.base = w.r.low / TILE * TILE;
}

static __device__ __forceinline__ bool is_last_tile(const tile_walk &w)
{
	return w.base + TILE > w.r.high;
}

/* Start to copy the keys of a tile, or its values if `value` is 1, to rows of `stride` floats. Keys that no query sees
 * and channels past the last one are zeros. BF16: four bf16 of the ring are copied to the place of four floats. */
template <int LANES, bool BF16>
static __device__ __forceinline__ void copy_tile(const ring_call &c, const tile_walk &w, int value, float *to,
                                                 int stride)
{
	const int64_t own = w.base + threadIdx.x % WARP;
	const int d = threadIdx.x % LANES * QUAD, width = (int)(value ? c.dv : c.dh);
	if constexpr (!BF16) {
		copy_rows<LANES>(within(w.r, own) ? token_at(c, w.s, w.r, own, value) : nullptr, width, c.q, to, stride);
		return;
	}
	const char *found = nullptr;
	if (within(w.r, own))
		found = in_ring(w.s, w.r, own) ? ring_at(c, w.s, place_of(w.r, own), value)
		                               : (const char *)token_at(c, w.s, w.r, own, value);
#pragma unroll 1
	for (int key = threadIdx.x / LANES; key < TILE; key += blockDim.x / LANES) {
		const char *from = (const char *)__shfl_sync(ALL_LANES, (unsigned long long)found, key);
		const bool some = from && d < width;
		float *at = to + key * stride + d;
		if (in_ring(w.s, w.r, w.base + key))
			copy_async_8(at, some ? from + d * sizeof(bf16) : (const char *)c.q, some ? (int)sizeof(uint2) : 0);
		else
			copy_async(at, some ? from + d * sizeof(float) : (const char *)c.q, some ? (int)sizeof(quad) : 0);
	}
	copy_commit();
}

/* Wait until the thread's copies have arrived. BF16: convert them to floats, unless they are of memories. */
template <int LANES, bool BF16>
static __device__ __forceinline__ void receive_tile(const tile_walk &w, float *to, int stride)
{
	copy_wait<0>();
	if constexpr (BF16) {
		const int end = is_memory(w.r) ? 0 : TILE;
#pragma unroll 1
		for (int key = threadIdx.x / LANES; key < end; key += blockDim.x / LANES) {
			float *at = to + key * stride + threadIdx.x % LANES * QUAD;
			const uint2 word = in_ring(w.s, w.r, w.base + key) ? *(const uint2 *)at : narrow(load_pack(at));
			store_pack(at, widen(word));
		}
	}
}

/* The exponentials of a tile and the factors of the earlier sums, for a thread's OWN queries. first: the warp's first
 * query within the block; present: bit j: key `base` + j is present. */
static __device__ __forceinline__ void tile_exponentials(const ring_call &c, const tile_walk &w, unsigned present,
                                                         int first, int count, unsigned head,
                                                         float score[OWN][KEYS], float2 norm[OWN],
                                                         const block_desk &desk)
{
	const int lane = threadIdx.x % WARP, group = lane / KEY_LANES, own_key = lane % KEY_LANES;
	const unsigned bits = present >> own_key, first_key = (unsigned)w.base + own_key;
	pack<float> shrink;
#pragma unroll
	for (int b = 0; b < OWN; b++) {
		const int i = group * OWN + b;
		const unsigned nearest = min(w.r.query + first + i, w.r.most) - first_key, limit = i < count ? w.r.limit : 0;
		/* a distance below 0 is above every limit */
		const auto sees = [&](int a) { return ((bits >> a * KEY_LANES & 1) != 0) & (nearest - a * KEY_LANES < limit); };
#pragma unroll
		for (int a = 0; a < KEYS; a++)
			score[b][a] = sees(a) ? __fmul_rn(c.scale, score[b][a]) : -INFINITY;
		if (c.bias) {
#pragma unroll
			for (int a = 0; a < KEYS; a++)
				if (sees(a))
					score[b][a] = __fadd_rn(score[b][a], c.bias[(nearest - a * KEY_LANES) * c.heads + head]);
		}
		float from;
		const float2 own = soften(score[b], norm[b].x, from);
		shrink.at[b] = expf(norm[b].x - from);
		norm[b] = make_float2(own.x, __fmaf_rn(shrink.at[b], norm[b].y, own.y));
	}
	store_exponentials(score, desk.exponential);
	if (own_key == 0)
		store_pack(desk.factor + group * OWN, shrink);
}

/* sum = shrink · sum + Σ_j e_j v_j over the keys of the tile. */
template <int LANES>
static __device__ __forceinline__ void tile_values(const block_desk &desk, quad sum[ROWS])
{
#pragma unroll
	for (int q = 0; q < ROWS; q += OWN) {
		const quad shrink = load_pack(desk.factor + q);
#pragma unroll
		for (int b = 0; b < OWN; b++)
#pragma unroll
			for (int e = 0; e < QUAD; e++)
				sum[q + b].at[e] = __fmul_rn(shrink.at[b], sum[q + b].at[e]);
	}
	add_values<LANES>(desk.exponential, desk.value, sum);
}

/* Merge a chunk's sums into the totals and clear them. Part p of the warp has the totals of queries p, p + PARTS, … */
template <int LANES>
static __device__ __forceinline__ void leave_chunk(const block_desk &desk, quad sum[ROWS], float2 norm[OWN],
                                                   merged all[OWN])
{
	enum { PARTS = WARP / LANES };
	const int lane = threadIdx.x % WARP, part = lane / LANES, d = lane % LANES * QUAD, group = lane / KEY_LANES;
	__syncwarp();
#pragma unroll
	for (int b = 0; b < OWN; b++) {
		const float2 by = merge_chunk(all[b], norm[b]);
		if (lane % KEY_LANES == 0) {
			desk.factor[group * OWN + b] = by.x;
			desk.factor[ROWS + group * OWN + b] = by.y;
		}
		norm[b] = make_float2(-INFINITY, 0.0f);
	}
	__syncwarp();
#pragma unroll
	for (int q = 0; q < ROWS; q++) {
		add_parts<LANES>(sum[q]);
		if (q % PARTS == part) {
			quad total = load_pack(desk.total + q * LANES * QUAD + d);
			merge_sums(total, sum[q], make_float2(desk.factor[q], desk.factor[ROWS + q]));
			store_pack(desk.total + q * LANES * QUAD + d, total);
		}
		sum[q] = {};
	}
	__syncwarp();
}

/* Write y and the log-normalizers of the warp's `count` queries, from query i of s on. */
template <int LANES>
static __device__ __forceinline__ void write_answers(const ring_call &c, const session &s, int64_t head, int64_t i,
                                                     int count, const block_desk &desk, const merged all[OWN])
{
	enum { PARTS = WARP / LANES };
	const int lane = threadIdx.x % WARP, part = lane / LANES, d = lane % LANES * QUAD, group = lane / KEY_LANES;
	const int64_t at = (s.tokens.first + i) * c.heads + head;
	__syncwarp();
#pragma unroll
	for (int b = 0; b < OWN; b++) {
		const int q = group * OWN + b;
		if (lane % KEY_LANES != 0)
			continue;
		desk.factor[q] = inverse_of(all[b]);
		if (c.log_normalizer && q < count)
			c.log_normalizer[at + q * c.heads] = normalizer_of(all[b]);
	}
	__syncwarp();
	for (int q = part; c.y && q < count; q += PARTS)
		if (d < c.dv)
			store_pack(c.y + (at + q * c.heads) * c.dv + d,
			           answer_of(load_pack(desk.total + q * LANES * QUAD + d), desk.factor[q]));
}

template <int LANES, bool BF16>
__global__ void __launch_bounds__(MOST_WARPS *WARP, 2) softmax_long_kernel(ring_call c)
{
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, group = lane / KEY_LANES;
	const unsigned block = gridDim.x - 1 - blockIdx.x; /* later queries see more keys, so they begin first */
	const unsigned heads = (unsigned)c.heads / c.members, tile = block / heads;
	const unsigned head = block % heads * c.members + warp % c.members;
	const int queries = c.spans * ROWS;
	const unsigned row = row_of_tile(c, tile, queries);
	const session s = session_of(c, row, head);
	const int64_t begin = (int64_t)(tile - first_tile(c, row, queries)) * queries, left = s.length - begin;
	if (!is_long(c, s) || left <= 0)
		return;
	const int first = warp / c.members * ROWS, count = (int)min(left - first, (int64_t)ROWS);
	const int together = (int)min(left, (int64_t)queries);
	const int64_t t = s.position + begin;
	const int64_t low = first_seen(c, t + first), high = last_seen(c, s, t + first + count - 1);
	const block_desk desk = desk_of<LANES>(warp);
	for (int i = lane; i < ROWS * LANES; i += WARP) {
		const int q = i / LANES, d = i % LANES * QUAD;
		const quad none = {};
		store_pack(desk.query + query_row(q) * ROW<LANES> + d,
		           q < count && d < c.dh ? load_pack(s.q + (begin + first + q) * c.q_row + d) : none);
		store_pack(desk.total + q * LANES * QUAD + d, none);
	}
	quad sum[ROWS];
	float2 norm[OWN];
	merged all[OWN];
#pragma unroll
	for (int q = 0; q < ROWS; q++)
		sum[q] = {};
#pragma unroll
	for (int b = 0; b < OWN; b++) {
		norm[b] = make_float2(-INFINITY, 0.0f);
		all[b] = NOTHING_MERGED;
	}
	const unsigned chunks = c.memory_chunks + token_chunks(c, s, t, t + together - 1);
	tile_walk w = {};
	if (chunks > 0) {
		enter_chunk(c, row, head, t, together, w);
		copy_tile<LANES, BF16>(c, w, 0, desk.key, ROW<LANES>);
	}
	while (w.chunk < chunks) {
		const bool memory = is_memory(w.r), last = is_last_tile(w);
		const bool busy = count > 0 && (memory || (w.base <= high && w.base + TILE > low));
		const int64_t j = w.base + lane;
		const bool present = within(w.r, j) && present_at<SOFTMAX_F32>(w.s, w.r, j);
		receive_tile<LANES, BF16>(w, desk.key, ROW<LANES>);
		__syncthreads(); /* all keys are copied, and every warp is done with the previous values */
		copy_tile<LANES, BF16>(c, w, 1, desk.value, LANES * QUAD);
		__syncwarp(); /* as in add_scores */
		if (busy) {
			float score[OWN][KEYS];
			add_scores<LANES, 0, 1>(desk.query + group * ROW<LANES>,
			                        desk.key + lane % KEY_LANES * ROW<LANES>, score);
			__syncwarp();
			tile_exponentials(c, w, __ballot_sync(ALL_LANES, present), first, count, head, score, norm,
			                  desk);
		}
		receive_tile<LANES, BF16>(w, desk.value, LANES * QUAD);
		__syncthreads(); /* all values are copied, and every warp is done with the keys */
		if (last)
			w.chunk++;
		if (last && w.chunk < chunks)
			enter_chunk(c, row, head, t, together, w);
		else
			w.base += TILE;
		if (w.chunk < chunks)
			copy_tile<LANES, BF16>(c, w, 0, desk.key, ROW<LANES>);
		if (busy)
			tile_values<LANES>(desk, sum);
		if (last)
			leave_chunk<LANES>(desk, sum, norm, all);
	}
	write_answers<LANES>(c, session_of(c, row, head), head, begin + first, count, desk, all);
}

template <int LANES, bool BF16> static status launch(backend *b, ring_call c)
{
	int64_t blocks = 0;
	int warps = 2 * MOST_WARPS;
	do {
		warps /= 2;
		for (c.members = warps; c.group % c.members != 0;)
			c.members /= 2;
		c.spans = warps / c.members;
		c.tiles = all_tiles(c, c.spans * ROWS);
		blocks = c.heads / c.members * c.tiles;
	} while (warps > 1 && (blocks < BLOCKS * (int64_t)cuda_of(b)->processors ||
	                       long_bytes<LANES>(warps) > cuda_of(b)->shared_limit));
	return cuda_launch(b, softmax_long_kernel<LANES, BF16>, cuda_parts(blocks, 1), warps * WARP, long_bytes<LANES>(warps),
	                   c);
}

status cuda_softmax_long(backend *b, const ring_call *c)
{
	return by_lanes(max(c->dh, c->dv), [&](auto lanes) {
		enum { LANES = decltype(lanes)::N };
		return c->store.format == SOFTMAX_BF16 ? launch<LANES, true>(b, *c) : launch<LANES, false>(b, *c);
	});
}
