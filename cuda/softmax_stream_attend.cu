/* The first kernel of softmax_stream.cuh, attend. A warp has a head of a sequence, up to QUERIES neighbouring queries
 * and one chunk, which it reads in tiles of 32 keys (online softmax: Milakov and Gimelshein 2018). For scores, part of
 * the warp (stream.cuh) is along the channels of a key; for exponentials, a lane has a key; for values, lanes are
 * along the channels again. The warp stores m, z and Σ e^{s-m} v of the chunk in scratch.
 *
 * Bytes: every key and value once for QUERIES queries (8 per channel; of bf16 4, of codes 2), and 1/64 of 8 for the sums of
 * chunks. */
#include "cuda/softmax_ring.cuh"

enum { AT_ONCE = 4 /* keys in flight per part of a warp */ };

/* A warp's shared memory: its queries and their sums as quads [Q][quads][lane], and a tile's scores [Q][TILE]. */
struct desk {
	float4 *query, *sum;
	float *score;
};

/* quads: per query and per sum. */
static inline __device__ __host__ size_t desk_bytes(int queries, int64_t quads)
{
	return (size_t)queries * ((size_t)quads * WARP * sizeof(float4) + TILE * sizeof(float));
}

static __device__ __forceinline__ quad take_quad(const float4 *from)
{
	return load_pack((const float *)from);
}

static __device__ __forceinline__ void put_quad(float4 *to, const quad &q)
{
	store_pack((float *)to, q);
}

/* Scores of the tile that begins at `base`. */
template <int LANES, bool PACKED, softmax_format FORMAT, int Q>
static __device__ __forceinline__ void tile_scores(const ring_call &c, const session &s, const reach &r, int64_t base,
                                                   const desk &w)
{
	enum { PARTS = WARP / LANES };
	const int lane = threadIdx.x % WARP, part = lane / LANES, first = lane % LANES * QUAD;
	for (int key = part; key < TILE; key += PARTS * AT_ONCE) {
		float sum[AT_ONCE][Q] = {};
		for (int64_t i = 0; i < c.key_quads; i++) {
			const int64_t d = first + i * LANES * QUAD;
			quad k[AT_ONCE] = {};
#pragma unroll
			for (int a = 0; a < AT_ONCE; a++) {
				const int64_t j = base + key + a * PARTS;
				if (within(r, j) && d < c.dh)
					k[a] = token_quad<PACKED, FORMAT, 0>(c, s, r, j, d);
			}
#pragma unroll
			for (int q = 0; q < Q; q++) {
				const quad query = take_quad(w.query + (q * c.key_quads + i) * WARP + lane);
#pragma unroll
				for (int a = 0; a < AT_ONCE; a++)
					sum[a][q] = quad_dot(query, k[a], sum[a][q]);
			}
		}
#pragma unroll
		for (int a = 0; a < AT_ONCE; a++) {
#pragma unroll
			for (int q = 0; q < Q; q++) {
				const float score = __fmul_rn(c.scale, warp_sum<LANES>(sum[a][q]));
				if (first == 0)
					w.score[q * TILE + key + a * PARTS] = score;
			}
		}
	}
}

/* Convert scores to exponentials; the earlier sums have to be multiplied by `shrink`. */
template <softmax_format FORMAT, int Q>
static __device__ __forceinline__ void tile_exponentials(const ring_call &c, const session &s, const reach &r,
                                                         int64_t base, unsigned head, int count, const desk &w,
                                                         float m[Q], float z[Q], float shrink[Q])
{
	const int lane = threadIdx.x % WARP;
	const int64_t j = base + lane;
	const bool present = within(r, j) && present_at<FORMAT>(s, r, j);
#pragma unroll
	for (int q = 0; q < Q; q++) {
		unsigned query = min(r.query + q, r.most), limit = r.limit;
		if (Q == 1 && c.segment > 0) /* with more queries there are not enough registers */
			within_segment(c, r, r.query + q, &query, &limit);
		const int64_t distance = query - j;
		const bool seen = present && q < count && (uint64_t)distance < limit;
		float score = seen ? w.score[q * TILE + lane] : -INFINITY;
		if (c.bias && seen)
			score = __fadd_rn(score, c.bias[distance * c.heads + head]);
		const float top = fmaxf(m[q], warp_max(score));
		const bool none = top == -INFINITY;
		const float e = none ? 0.0f : expf(score - top);
		shrink[q] = none ? 1.0f : expf(m[q] - top);
		z[q] = __fmaf_rn(shrink[q], z[q], warp_sum(e));
		m[q] = top;
		w.score[q * TILE + lane] = e;
	}
}

/* sum = shrink · sum + Σ_j e_j v_j over the keys of the tile; each part of the warp adds its own keys. */
template <int LANES, bool PACKED, softmax_format FORMAT, int Q>
static __device__ __forceinline__ void tile_values(const ring_call &c, const session &s, const reach &r, int64_t base,
                                                   const desk &w, const float shrink[Q])
{
	enum { PARTS = WARP / LANES };
	const int lane = threadIdx.x % WARP, part = lane / LANES, first = lane % LANES * QUAD;
	for (int64_t i = 0; i < c.value_quads; i++) {
		const int64_t d = first + i * LANES * QUAD;
		quad sum[Q];
#pragma unroll
		for (int q = 0; q < Q; q++) {
			sum[q] = take_quad(w.sum + (q * c.value_quads + i) * WARP + lane);
#pragma unroll
			for (int e = 0; e < QUAD; e++)
				sum[q].at[e] = __fmul_rn(shrink[q], sum[q].at[e]);
		}
		for (int key = part; key < TILE; key += PARTS * AT_ONCE) {
			quad v[AT_ONCE] = {};
#pragma unroll
			for (int a = 0; a < AT_ONCE; a++) {
				const int64_t j = base + key + a * PARTS;
				if (within(r, j) && d < c.dv)
					v[a] = token_quad<PACKED, FORMAT, 1>(c, s, r, j, d);
			}
#pragma unroll
			for (int a = 0; a < AT_ONCE; a++) {
#pragma unroll
				for (int q = 0; q < Q; q++) {
					const float e = w.score[q * TILE + key + a * PARTS];
#pragma unroll
					for (int e4 = 0; e4 < QUAD && e > 0.0f;
					     e4++) /* the value of a masked token may be anything */
						sum[q].at[e4] = __fmaf_rn(e, v[a].at[e4], sum[q].at[e4]);
				}
			}
		}
#pragma unroll
		for (int q = 0; q < Q; q++)
			put_quad(w.sum + (q * c.value_quads + i) * WARP + lane, sum[q]);
	}
}

/* Merge the parts of the warp and store the result in scratch. */
template <int LANES, int Q>
static __device__ __forceinline__ void leave(const ring_call &c, const session &s, int64_t head, int64_t i, int count,
                                             int64_t chunk, const desk &w, const float m[Q], const float z[Q])
{
	const int lane = threadIdx.x % WARP, first = lane % LANES * QUAD;
#pragma unroll
	for (int q = 0; q < Q; q++) {
		const int64_t at = partial_at(c, s, head, i + q, chunk);
		for (int64_t n = 0; n < c.value_quads; n++) {
			const int64_t d = first + n * LANES * QUAD;
			quad sum = take_quad(w.sum + (q * c.value_quads + n) * WARP + lane);
#pragma unroll
			for (int e = 0; e < QUAD; e++) {
#pragma unroll
				for (int flip = LANES; flip < WARP; flip *= 2)
					sum.at[e] += __shfl_xor_sync(ALL_LANES, sum.at[e], flip);
			}
			if (q < count && lane < LANES && d < c.dv)
				store_pack(c.sum + at * sum_width(c.dv) + d, sum);
		}
		if (q < count && lane == 0)
			c.norm[at] = make_float2(m[q], z[q]);
	}
}

/* Blocks per processor. With one more, the conversions of other formats would have too few registers, but for those of
 * whole quads of bf16 for one query. */
template <bool PACKED, softmax_format FORMAT, int Q>
static constexpr int RESIDENT = FORMAT == SOFTMAX_F32 || (FORMAT == SOFTMAX_BF16 && PACKED && Q == 1) ? (Q == 1 ? 5 : 4)
                                                                                                     : (Q == 1 ? 4 : 3);

template <int LANES, bool PACKED, softmax_format FORMAT, int Q>
__global__ void __launch_bounds__(WARPS *WARP, (RESIDENT<PACKED, FORMAT, Q>)) softmax_attend_kernel(ring_call c)
{
	const int lane = threadIdx.x % WARP, first = lane % LANES * QUAD;
	const unsigned unit = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
	const unsigned chunk = unit % c.chunks, tile = unit / c.chunks % c.tiles, head = unit / c.chunks / c.tiles;
	if (head >= c.heads)
		return;
	const unsigned row = c.split ? tile : row_of_tile(c, tile, Q);
	session s = session_of(c, row, head);
	const int64_t query = c.split ? 0 : (int64_t)(tile - first_tile(c, row, Q)) * Q;
	const int count = (int)min(s.length - query, (int64_t)Q);
	if (count <= 0 || is_long(c, s))
		return;
	const reach r = reach_of(c, s, chunk, s.position + query, count);
	if (r.low > r.high)
		return;
	const int64_t quads = c.key_quads + c.value_quads;
	float4 *memory = shared_memory<float4>(threadIdx.x / WARP * desk_bytes(Q, quads));
	const desk w = {memory, memory + Q * c.key_quads * WARP, (float *)(memory + Q * quads * WARP)};
	float m[Q], z[Q], shrink[Q];
#pragma unroll
	for (int q = 0; q < Q; q++) {
		m[q] = -INFINITY;
		z[q] = 0.0f;
		for (int64_t i = 0; i < c.key_quads; i++) {
			const int64_t d = first + i * LANES * QUAD;
			quad x = {};
			if (q < count && d < c.dh)
				x = load_quad<PACKED>(s.q + (query + q) * c.q_row, d, c.dh);
			put_quad(w.query + (q * c.key_quads + i) * WARP + lane, x);
		}
		for (int64_t i = 0; i < c.value_quads; i++)
			put_quad(w.sum + (q * c.value_quads + i) * WARP + lane, {});
	}
	for (int64_t base = r.low / TILE * TILE; base <= r.high; base += TILE) {
		tile_scores<LANES, PACKED, FORMAT, Q>(c, s, r, base, w);
		__syncwarp();
		tile_exponentials<FORMAT, Q>(c, s, r, base, head, count, w, m, z, shrink);
		__syncwarp();
		tile_values<LANES, PACKED, FORMAT, Q>(c, s, r, base, w, shrink);
		__syncwarp();
	}
	leave<LANES, Q>(c, s, head, query, count, chunk, w, m, z);
}

template <int LANES, bool PACKED, softmax_format FORMAT, int Q> static status launch(backend *b, ring_call c)
{
	const size_t bytes = desk_bytes(Q, c.key_quads + c.value_quads), limit = cuda_of(b)->shared_limit;
	c.tiles = c.split ? c.rows : all_tiles(c, Q);
	const int64_t units = c.heads * (int64_t)c.tiles * c.chunks;
	int warps = units < (int64_t)cuda_of(b)->processors * WARPS ? 1 : WARPS;
	while (warps > 1 && (size_t)warps * bytes > limit)
		warps /= 2;
	if (bytes > limit || c.tokens > INT32_MAX || units > UINT32_MAX) /* tiles and units are counted in 32 bits */
		return STATUS_UNSUPPORTED;
	return cuda_launch(b, softmax_attend_kernel<LANES, PACKED, FORMAT, Q>, cuda_parts(units, warps), warps * WARP,
	                   warps * bytes, c);
}

template <int LANES, bool PACKED, softmax_format FORMAT> static status attend(backend *b, ring_call *c)
{
	c->key_quads = (c->dh + LANES * QUAD - 1) / (LANES * QUAD);
	c->value_quads = (c->dv + LANES * QUAD - 1) / (LANES * QUAD);
	const bool one = c->n == 1 || c->segment > 0 ||
	                 desk_bytes(QUERIES, c->key_quads + c->value_quads) > cuda_of(b)->shared_limit;
	c->queries = one ? 1 : QUERIES;
	return one ? launch<LANES, PACKED, FORMAT, 1>(b, *c) : launch<LANES, PACKED, FORMAT, QUERIES>(b, *c);
}

status cuda_softmax_attend(backend *b, ring_call *c)
{
	return by_layout(*c, [&](auto layout) {
		typedef decltype(layout) L;
		return attend<L::LANES, L::PACKED, L::FORMAT>(b, c);
	});
}
