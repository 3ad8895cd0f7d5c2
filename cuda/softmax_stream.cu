/* softmax_stream: queries against the ring of engine/tensor/ops/softmax_stream.h and the call's own tokens.
 *
 * Positions are cut into chunks of a size that depends on the window alone. Two kernels do the rest.
 *
 * Attend: a warp has a head of a sequence, up to QUERIES neighbouring queries and one chunk, through which it walks in tiles of 32
 * keys (online softmax: Milakov and Gimelshein 2018): scores, a part of the warp (stream.cuh) along the channels of a
 * key; exponentials, a lane for a key; values, lanes along the channels again. It leaves m, z and Σ e^{s-m} v of the
 * chunk in scratch. The call's keys and values are read from qkv and older ones from the ring, which nothing changes
 * yet, so no token overwrites one that an earlier query still needs.
 *
 * Finish: y from the chunks in their order, and the call's last tokens into the ring.
 *
 * Tiles and chunks begin at multiples of their sizes, and keys that a query does not see leave its sums as they
 * are; so y depends on the tokens and the position alone: not on the batch, nor on how the tokens are cut into calls.
 *
 * Bytes: every key and value once for QUERIES queries (8 per channel), 1/64 of that for the sums of chunks, and
 * 24 per channel and token for qkv, y and the ring. */
#include "cuda/kernels.h"
#include "cuda/stream.cuh"

extern "C" {
#include "engine/tensor/ops/softmax_stream.h"
}

enum {
	QUERIES = 4, /* that a warp reads keys for, when there are so many */
	TILE = WARP,
	AT_ONCE = 4, /* keys in flight per part of a warp */
	CHUNK = 2 * TILE,
	MOST_CHUNKS = 32, /* of a long window; chunks grow then */
	WARPS = 4
};

/* The call, taken apart. */
struct ring_call {
	const float *qkv;
	float *pool, *y; /* y may be NULL */
	const int32_t *slot, *position, *length, *mask, *start; /* the last two may be NULL */
	int64_t n, d, heads, dh, window;
	int64_t slot_floats, offset;
	int64_t tokens;        /* of all sequences */
	unsigned rows, chunks; /* rows: sequences */
	unsigned tiles;        /* of queries, of all sequences and more */
	unsigned groups;       /* of heads, for finish */
	int64_t chunk;
	int64_t quads; /* of a lane */
	float scale;
	float *sum;   /* [heads, tokens, chunks, whole quads of dh] */
	float2 *norm; /* [heads, tokens, chunks] m, z */
};

/* The floats of a head's sums, whole quads. */
static inline __device__ __host__ int64_t sum_width(int64_t dh)
{
	return (dh + QUAD - 1) / QUAD * QUAD;
}

/* A row of the batch and one of its heads. */
struct session {
	const float *qkv, *state; /* of the head's first channel; the query of the row's first token */
	const float *present;     /* `there` of the ring */
	const int32_t *mask;      /* of its tokens, or NULL */
	int64_t position, length;
	token_span tokens;
};

static __device__ __forceinline__ session session_of(const ring_call &c, unsigned row, int64_t head)
{
	const float *state = c.pool + c.slot[row] * c.slot_floats + c.offset;
	const token_span tokens = tokens_of(c.start, c.rows, c.n, row);
	return {c.qkv + tokens.first * 3 * c.d + head * c.dh,
	        state + head * c.dh,
	        state + 2 * c.window * c.d,
	        c.mask ? c.mask + tokens.first : nullptr,
	        c.position[row],
	        c.length[row],
	        tokens};
}

static inline __device__ __host__ unsigned tiles_of(int64_t queries, int Q)
{
	return (unsigned)((queries + Q - 1) / Q);
}

/* The first of the sequence's tiles of Q queries among those of all. With `start` a sequence has at least as many as its
 * room needs, ⌊start[s+1] / Q⌋ - ⌊start[s] / Q⌋ + 1, so that no tile is of two sequences. */
static __device__ __forceinline__ unsigned first_tile(const ring_call &c, unsigned row, int Q)
{
	return c.start ? (unsigned)c.start[row] / Q + row : row * tiles_of(c.n, Q);
}

/* The sequence of a tile. */
static __device__ __forceinline__ unsigned row_of_tile(const ring_call &c, unsigned tile, int Q)
{
	if (!c.start)
		return tile / tiles_of(c.n, Q);
	unsigned low = 0, high = c.rows;
	while (high - low > 1) {
		const unsigned middle = (low + high) / 2;
		*(first_tile(c, middle, Q) <= tile ? &low : &high) = middle;
	}
	return low;
}

/* The sequence in whose room a token lies: the last that begins at it or before, which has room if it is read. */
static __device__ __forceinline__ unsigned row_of_token(const ring_call &c, int64_t token)
{
	if (!c.start)
		return (unsigned)token / (unsigned)c.n;
	unsigned low = 0, high = c.rows;
	while (high - low > 1) {
		const unsigned middle = (low + high) / 2;
		*(c.start[middle] <= token ? &low : &high) = middle;
	}
	return low;
}

/* The first position that token t sees. */
static __device__ __forceinline__ int64_t first_seen(const ring_call &c, int64_t t)
{
	return t < c.window ? 0 : t - c.window + 1;
}

/* Positions are below 2^32. */
static __device__ __forceinline__ int64_t chunk_of(const ring_call &c, int64_t position)
{
	return (unsigned)position / (unsigned)c.chunk;
}

/* The sums of a chunk of a token of the call: their place in scratch. */
static __device__ __forceinline__ int64_t partial_at(const ring_call &c, int64_t head, int64_t token, int64_t chunk)
{
	return (head * c.tokens + token) * c.chunks + chunk;
}

/* Positions low … high of the ring and the call, and the place of `low` in the ring. */
struct reach {
	int64_t low, high, place;
};

static __device__ __forceinline__ bool within(const reach &r, int64_t j)
{
	return j >= r.low && j <= r.high;
}

/* Fewer than a window lies between `low` and what is read from the ring. */
static __device__ __forceinline__ int64_t place_of(const ring_call &c, const reach &r, int64_t j)
{
	const int64_t place = r.place + (j - r.low);
	return place < c.window ? place : place - c.window;
}

/* The key of position j, or with value = 1 its value. */
static __device__ __forceinline__ const float *token_at(const ring_call &c, const session &s, const reach &r, int64_t j,
                                                        int value)
{
	if (j >= s.position)
		return s.qkv + (j - s.position) * 3 * c.d + (1 + value) * c.d;
	return s.state + (value * c.window + place_of(c, r, j)) * c.d;
}

static __device__ __forceinline__ bool present_at(const ring_call &c, const session &s, const reach &r, int64_t j)
{
	if (j >= s.position)
		return !s.mask || s.mask[j - s.position] != 0;
	return s.present[place_of(c, r, j)] != 0.0f;
}

/* --- 1. attend ------------------------------------------------------------------------------ */

/* A warp's shared memory: its queries and their sums as quads [Q][quads][lane], a tile's scores [Q][TILE]. */
struct desk {
	float4 *query, *sum;
	float *score;
};

static inline __device__ __host__ size_t desk_bytes(int queries, int64_t quads)
{
	return (size_t)queries * (2 * (size_t)quads * WARP * sizeof(float4) + TILE * sizeof(float));
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
template <int LANES, bool PACKED, int Q>
static __device__ __forceinline__ void tile_scores(const ring_call &c, const session &s, const reach &r, int64_t base,
                                                   const desk &w)
{
	enum { PARTS = WARP / LANES };
	const int lane = threadIdx.x % WARP, part = lane / LANES, first = lane % LANES * QUAD;
	for (int key = part; key < TILE; key += PARTS * AT_ONCE) {
		float sum[AT_ONCE][Q] = {};
		for (int64_t i = 0; i < c.quads; i++) {
			const int64_t d = first + i * LANES * QUAD;
			quad k[AT_ONCE] = {};
#pragma unroll
			for (int a = 0; a < AT_ONCE; a++) {
				const int64_t j = base + key + a * PARTS;
				if (within(r, j) && d < c.dh)
					k[a] = load_quad<PACKED>(token_at(c, s, r, j, 0), d, c.dh);
			}
#pragma unroll
			for (int q = 0; q < Q; q++) {
				const quad query = take_quad(w.query + (q * c.quads + i) * WARP + lane);
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

/* Scores become exponentials; what came before is to shrink. Query q is token t + q, of `count`. */
template <int Q>
static __device__ __forceinline__ void tile_exponentials(const ring_call &c, const session &s, const reach &r,
                                                         int64_t base, int64_t t, int count, const desk &w, float m[Q],
                                                         float z[Q], float shrink[Q])
{
	const int lane = threadIdx.x % WARP;
	const int64_t j = base + lane;
	const bool present = within(r, j) && present_at(c, s, r, j);
#pragma unroll
	for (int q = 0; q < Q; q++) {
		const bool seen = present && q < count && j <= t + q && j >= first_seen(c, t + q);
		const float score = seen ? w.score[q * TILE + lane] : -INFINITY;
		const float top = fmaxf(m[q], warp_max(score));
		const bool none = top == -INFINITY;
		const float e = none ? 0.0f : expf(score - top);
		shrink[q] = none ? 1.0f : expf(m[q] - top);
		z[q] = __fmaf_rn(shrink[q], z[q], warp_sum(e));
		m[q] = top;
		w.score[q * TILE + lane] = e;
	}
}

/* sum = shrink · sum + Σ_j e_j v_j over the keys of the tile, each part of the warp its own. */
template <int LANES, bool PACKED, int Q>
static __device__ __forceinline__ void tile_values(const ring_call &c, const session &s, const reach &r, int64_t base,
                                                   const desk &w, const float shrink[Q])
{
	enum { PARTS = WARP / LANES };
	const int lane = threadIdx.x % WARP, part = lane / LANES, first = lane % LANES * QUAD;
	for (int64_t i = 0; i < c.quads; i++) {
		const int64_t d = first + i * LANES * QUAD;
		const quad none = {};
		quad sum[Q];
#pragma unroll
		for (int q = 0; q < Q; q++) {
			sum[q] = take_quad(w.sum + (q * c.quads + i) * WARP + lane);
			quad_merge(sum[q], shrink[q], none, 0.0f);
		}
		for (int key = part; key < TILE; key += PARTS * AT_ONCE) {
			quad v[AT_ONCE] = {};
#pragma unroll
			for (int a = 0; a < AT_ONCE; a++) {
				const int64_t j = base + key + a * PARTS;
				if (within(r, j) && d < c.dh)
					v[a] = load_quad<PACKED>(token_at(c, s, r, j, 1), d, c.dh);
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
			put_quad(w.sum + (q * c.quads + i) * WARP + lane, sum[q]);
	}
}

/* The parts of the warp together, to scratch. */
template <int LANES, int Q>
static __device__ __forceinline__ void leave(const ring_call &c, int64_t head, int64_t token, int count, int64_t chunk,
                                             const desk &w, const float m[Q], const float z[Q])
{
	const int lane = threadIdx.x % WARP, first = lane % LANES * QUAD;
#pragma unroll
	for (int q = 0; q < Q; q++) {
		const int64_t at = partial_at(c, head, token + q, chunk);
		for (int64_t i = 0; i < c.quads; i++) {
			const int64_t d = first + i * LANES * QUAD;
			quad sum = take_quad(w.sum + (q * c.quads + i) * WARP + lane);
#pragma unroll
			for (int e = 0; e < QUAD; e++) {
#pragma unroll
				for (int flip = LANES; flip < WARP; flip *= 2)
					sum.at[e] += __shfl_xor_sync(ALL_LANES, sum.at[e], flip);
			}
			if (q < count && lane < LANES && d < c.dh)
				store_pack(c.sum + at * sum_width(c.dh) + d, sum);
		}
		if (q < count && lane == 0)
			c.norm[at] = make_float2(m[q], z[q]);
	}
}

template <int LANES, bool PACKED, int Q>
__global__ void __launch_bounds__(WARPS *WARP, Q == 1 ? 5 : 3) softmax_attend_kernel(ring_call c)
{
	const int lane = threadIdx.x % WARP, first = lane % LANES * QUAD;
	const unsigned unit = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
	const unsigned chunk = unit % c.chunks, tile = unit / c.chunks % c.tiles, head = unit / c.chunks / c.tiles;
	if (head >= c.heads)
		return;
	const unsigned row = row_of_tile(c, tile, Q);
	const session s = session_of(c, row, head);
	const int64_t query = (int64_t)(tile - first_tile(c, row, Q)) * Q, t = s.position + query;
	const int count = (int)min(s.length - query, (int64_t)Q);
	if (count <= 0)
		return;
	const int64_t begin = (chunk_of(c, first_seen(c, t)) + chunk) * c.chunk;
	reach r = {max(begin, first_seen(c, t)), min(begin + c.chunk, t + count) - 1, 0};
	if (r.low > r.high)
		return;
	r.place = (unsigned)r.low % (unsigned)c.window;
	float4 *memory = shared_memory<float4>(threadIdx.x / WARP * desk_bytes(Q, c.quads));
	const desk w = {memory, memory + Q * c.quads * WARP, (float *)(memory + 2 * Q * c.quads * WARP)};
	float m[Q], z[Q], shrink[Q];
#pragma unroll
	for (int q = 0; q < Q; q++) {
		m[q] = -INFINITY;
		z[q] = 0.0f;
		for (int64_t i = 0; i < c.quads; i++) {
			const int64_t d = first + i * LANES * QUAD, at = (q * c.quads + i) * WARP + lane;
			quad x = {};
			if (q < count && d < c.dh)
				x = load_quad<PACKED>(s.qkv + (query + q) * 3 * c.d, d, c.dh);
			put_quad(w.query + at, x);
			put_quad(w.sum + at, {});
		}
	}
	for (int64_t base = r.low / TILE * TILE; base <= r.high; base += TILE) {
		tile_scores<LANES, PACKED, Q>(c, s, r, base, w);
		__syncwarp();
		tile_exponentials<Q>(c, s, r, base, t, count, w, m, z, shrink);
		__syncwarp();
		tile_values<LANES, PACKED, Q>(c, s, r, base, w, shrink);
		__syncwarp();
	}
	leave<LANES, Q>(c, head, s.tokens.first + query, count, chunk, w, m, z);
}

/* --- 2. finish ----------------------------------------------------------------------------------- */

/* Token i of a sequence, one head: y [dh]. Q: queries of a warp of attend. */
template <int LANES, bool PACKED>
static __device__ __forceinline__ void combine(const ring_call &c, const session &s, int64_t head, int64_t i, int Q)
{
	const int first = threadIdx.x % LANES * QUAD;
	const int64_t t = s.position + i, from = chunk_of(c, first_seen(c, t));
	const int64_t at = partial_at(c, head, s.tokens.first + i, from - chunk_of(c, first_seen(c, t - i % Q)));
	const int count = (int)(chunk_of(c, t) - from) + 1;
	float top = -INFINITY, z = 0.0f;
	for (int k = 0; k < count; k++)
		top = fmaxf(top, c.norm[at + k].x);
	for (int k = 0; k < count && top > -INFINITY; k++)
		z = __fmaf_rn(expf(c.norm[at + k].x - top), c.norm[at + k].y, z);
	const float inverse = z > 0.0f ? __fdiv_rn(1.0f, z) : 0.0f;
	for (int64_t d = first; d < c.dh; d += LANES * QUAD) {
		quad y = {};
		for (int k = 0; k < count && z > 0.0f; k++) {
			const float by = __fmul_rn(expf(c.norm[at + k].x - top), inverse);
			const quad sum = load_pack(c.sum + (at + k) * sum_width(c.dh) + d);
#pragma unroll
			for (int e = 0; e < QUAD; e++)
				y.at[e] = __fmaf_rn(by, sum.at[e], y.at[e]);
		}
		store_quad<PACKED>(c.y + (s.tokens.first + i) * c.d + head * c.dh, d, c.dh, y);
	}
}

template <int LANES, bool PACKED>
__global__ void __launch_bounds__(WARPS *WARP) softmax_finish_kernel(ring_call c, int Q)
{
	enum { PARTS = WARP / LANES };
	const int lane = threadIdx.x % WARP, first = lane % LANES * QUAD;
	const unsigned unit = blockIdx.x * WARPS + threadIdx.x / WARP;
	const int64_t at = unit / c.groups, head = (int64_t)(unit % c.groups) * PARTS + lane / LANES;
	if (at >= c.tokens || head >= c.heads)
		return;
	const unsigned row = row_of_token(c, at);
	const session s = session_of(c, row, head);
	const int64_t i = at - s.tokens.first;
	const quad zeros = {};
	if (i >= s.length) {
		for (int64_t d = first; c.y && d < c.dh; d += LANES * QUAD)
			store_quad<PACKED>(c.y + at * c.d + head * c.dh, d, c.dh, zeros);
		return;
	}
	if (c.y)
		combine<LANES, PACKED>(c, s, head, i, Q);
	if (i < s.length - c.window)
		return;
	const int64_t place = (unsigned)(s.position + i) % (unsigned)c.window;
	float *state = c.pool + c.slot[row] * c.slot_floats + c.offset;
	const float *token = s.qkv + i * 3 * c.d;
	for (int64_t d = first; d < c.dh; d += LANES * QUAD) {
		store_quad<PACKED>(state + place * c.d + head * c.dh, d, c.dh, load_quad<PACKED>(token + c.d, d, c.dh));
		store_quad<PACKED>(state + (c.window + place) * c.d + head * c.dh, d, c.dh,
		                   load_quad<PACKED>(token + 2 * c.d, d, c.dh));
	}
	if (head == 0 && first == 0)
		state[2 * c.window * c.d + place] = !s.mask || s.mask[i] != 0 ? 1.0f : 0.0f;
}

/* --- the call -------------------------------------------------------------------------------------- */

static ring_call ring_call_of(const op_call *call)
{
	const softmax_stream_params *p = (const softmax_stream_params *)call->params;
	const shape qkv = call->in[0].shape;
	ring_call c = {};
	c.qkv = (const float *)call->in[0].data;
	c.pool = (float *)call->in[1].data;
	c.slot = (const int32_t *)call->in[2].data;
	c.position = (const int32_t *)call->in[3].data;
	c.length = (const int32_t *)call->in[4].data;
	c.mask = (const int32_t *)cuda_optional(call, 5);
	c.start = (const int32_t *)cuda_optional(call, 6);
	c.y = (float *)call->out[0].data;
	c.rows = (unsigned)call->in[2].shape.dim[0];
	c.tokens = qkv.dim[0] * qkv.dim[1];
	c.n = qkv.dim[1];
	c.d = qkv.dim[2] / 3;
	c.heads = p->heads;
	c.dh = c.d / c.heads;
	c.window = p->window;
	c.slot_floats = call->in[1].shape.dim[1];
	c.offset = p->offset;
	c.scale = p->scale;
	const int64_t long_chunk = (c.window / MOST_CHUNKS + TILE) / TILE * TILE;
	c.chunk = max(long_chunk, (int64_t)CHUNK);
	c.chunks = (unsigned)((c.window + QUERIES - 2 + c.chunk - 1) / c.chunk + 1);
	return c;
}

/* Queries with their chunks. */
static int64_t partials(const ring_call *c)
{
	return c->heads * c->tokens * c->chunks;
}

size_t cuda_softmax_stream_scratch(const backend *b, const op_call *call)
{
	(void)b;
	const ring_call c = ring_call_of(call);
	return call->out[0].data ? (size_t)partials(&c) * ((size_t)sum_width(c.dh) * sizeof(float) + sizeof(float2))
	                         : 0;
}

template <int LANES, bool PACKED, int Q> static status attend(backend *b, ring_call c)
{
	const size_t bytes = desk_bytes(Q, c.quads), limit = cuda_of(b)->shared_limit;
	c.tiles = c.start ? (unsigned)(c.tokens / Q) + c.rows : c.rows * tiles_of(c.n, Q);
	const int64_t units = c.heads * (int64_t)c.tiles * c.chunks;
	int warps = units < (int64_t)cuda_of(b)->processors * WARPS ? 1 : WARPS;
	while (warps > 1 && (size_t)warps * bytes > limit)
		warps /= 2;
	if (bytes > limit)
		return STATUS_UNSUPPORTED;
	return cuda_launch(b, softmax_attend_kernel<LANES, PACKED, Q>, (unsigned)((units + warps - 1) / warps),
	                   warps * WARP, warps * bytes, c);
}

template <int LANES, bool PACKED> static status ring(backend *b, ring_call c)
{
	enum { PARTS = WARP / LANES };
	c.quads = (c.dh + LANES * QUAD - 1) / (LANES * QUAD);
	c.groups = (unsigned)((c.heads + PARTS - 1) / PARTS);
	const bool one = c.n == 1 || desk_bytes(QUERIES, c.quads) > cuda_of(b)->shared_limit;
	if (c.y)
		TRY((one ? attend<LANES, PACKED, 1>(b, c) : attend<LANES, PACKED, QUERIES>(b, c)));
	const int64_t units = c.tokens * c.groups;
	return cuda_launch(b, softmax_finish_kernel<LANES, PACKED>, (unsigned)((units + WARPS - 1) / WARPS),
	                   WARPS * WARP, 0, c, one ? 1 : QUERIES);
}

status cuda_softmax_stream(backend *b, const op_call *call)
{
	ring_call c = ring_call_of(call);
	if (shape_count(call->in[0].shape) == 0)
		return STATUS_OK;
	c.sum = (float *)call->scratch;
	c.norm = (float2 *)(c.sum + (c.y ? partials(&c) * sum_width(c.dh) : 0));
	const bool packed = c.dh % QUAD == 0 && c.slot_floats % QUAD == 0 && c.offset % QUAD == 0;
	return by_lanes(c.dh, [&](auto lanes) {
		enum { LANES = decltype(lanes)::N };
		return packed ? ring<LANES, true>(b, c) : ring<LANES, false>(b, c);
	});
}
