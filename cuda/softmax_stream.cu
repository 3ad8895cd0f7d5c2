/* softmax_stream: queries against memories, the ring of engine/tensor/ops/softmax_stream.h and the call's own tokens; and
 * source_attention: queries against memories and a source.
 *
 * Memories and positions are cut into chunks of a size that depends on the window alone. Two kernels do the rest.
 *
 * Attend: a warp has a head of a sequence, up to QUERIES neighbouring queries and one chunk, through which it walks in
 * tiles of 32 keys (online softmax: Milakov and Gimelshein 2018): scores, a part of the warp (stream.cuh) along the
 * channels of a key; exponentials, a lane for a key; values, lanes along the channels again. It leaves m, z and Σ e^{s-m} v of the
 * chunk in scratch. The call's keys and values are read from its inputs and older ones from the ring, which nothing changes
 * yet, so no token overwrites one that an earlier query still needs.
 *
 * Finish: y from the chunks in their order, and the call's last tokens into the ring.
 *
 * Tiles and chunks begin at multiples of their sizes, and keys that a query does not see leave its sums as they
 * are; so y depends on the tokens and the position alone: not on the batch, nor on how the tokens are cut into calls.
 *
 * A ring of codes is read as the floats that a ring of floats would hold, so all results have its bits.
 *
 * Bytes: every key and value once for QUERIES queries (8 per channel; of codes 2), 1/64 of 8 for the sums of chunks,
 * and 24 per channel and token for qkv, y and the ring. */
#include "cuda/kernels.h"
#include "cuda/stream.cuh"

extern "C" {
#include "engine/tensor/ops/quantize.h"
#include "engine/tensor/ops/softmax.h"
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
	const float *q, *k, *v; /* of the first token; k and v NULL: queries to a source */
	int64_t q_row, k_row, v_row;
	float *pool, *y, *log_normalizer;                       /* the last two may be NULL */
	const int32_t *slot, *position, *length, *mask, *start; /* the last two may be NULL */
	const float *memory_k, *memory_v, *bias;                /* bias may be NULL */
	const float *key_step; /* of the first token; NULL: a ring of floats */
	float value_step;
	softmax_store store;
	int64_t keys, values;            /* channels of a token's keys and of its values */
	int64_t n, heads, group, dh, dv; /* group: query heads of a key head */
	int64_t reach, memories, past;   /* reach: tokens that a query sees, its own included */
	int64_t segment;                 /* 0: none */
	int64_t slot_floats, offset;
	int64_t stored; /* memory_k NULL: where the memories are in a slot */
	int64_t tokens;                       /* of all sequences */
	unsigned rows, chunks, memory_chunks; /* rows: sequences; chunks: those of memories, which come first, and of tokens */
	unsigned tiles;                       /* of queries, of all sequences and more */
	unsigned groups;                      /* of heads, for finish */
	int64_t chunk;
	int64_t key_quads, value_quads; /* of a lane */
	float scale;
	float *sum;   /* [heads, tokens, chunks, whole quads of dv] */
	float2 *norm; /* [heads, tokens, chunks] m, z */
};

static inline __device__ __host__ bool attends(const ring_call &c)
{
	return c.y || c.log_normalizer;
}

/* The floats of a head's sums, whole quads. */
static inline __device__ __host__ int64_t sum_width(int64_t dv)
{
	return (dv + QUAD - 1) / QUAD * QUAD;
}

/* A row of the batch and one of its heads; addresses are of the head's first channel. */
struct session {
	const float *q, *k, *v;      /* of the row's first token */
	const float *key, *value;    /* of the store's first place, if it has no codes; else of memories alone */
	const int8_t *key_code, *value_code; /* of the first place of a ring of codes */
	const float *memory_k, *memory_v;
	const float *present;        /* `there` of the ring, or the steps of keys; of a source NULL: all are */
	const int32_t *mask;         /* of the row's tokens, or NULL */
	int64_t position, length;    /* position: of a source, its tokens */
	token_span tokens;
};

static __device__ __forceinline__ session session_of(const ring_call &c, unsigned row, int64_t head)
{
	const float *slot = c.pool + c.slot[row] * c.slot_floats, *state = slot + c.offset;
	const token_span tokens = tokens_of(c.start, c.rows, c.n, row);
	const int64_t from = (unsigned)head / (unsigned)c.group;
	session s = {};
	s.q = c.q + tokens.first * c.q_row + head * c.dh;
	s.key = state + from * c.dh;
	s.value = state + softmax_value(c.store, 0) + from * c.dv;
	s.key_code = (const int8_t *)state + from * c.dh;
	s.value_code = (const int8_t *)(state + softmax_value(c.store, 0)) + from * c.dv;
	s.memory_k = (c.memory_k ? c.memory_k : slot + c.stored) + from * c.dh;
	s.memory_v = (c.memory_k ? c.memory_v : slot + c.stored + c.memories * c.keys) + from * c.dv;
	s.length = c.length[row];
	s.tokens = tokens;
	if (c.k) {
		s.k = c.k + tokens.first * c.k_row + from * c.dh;
		s.v = c.v + tokens.first * c.v_row + from * c.dv;
		s.present = state + softmax_there(c.store, 0);
		s.mask = c.mask ? c.mask + tokens.first : nullptr;
		s.position = c.position[row];
	} else {
		s.position = s.length > 0 ? source_count(c.store, state) : 0;
	}
	return s;
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

/* The tokens that the query of position t sees. */
static __device__ __forceinline__ int64_t first_seen(const ring_call &c, int64_t t)
{
	if (!c.k)
		return 0;
	return max(t - c.reach + 1, stream_oldest(t, c.store.places, c.segment));
}
static __device__ __forceinline__ int64_t last_seen(const ring_call &c, const session &s, int64_t t)
{
	return c.k ? t : s.position - 1;
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

/* Keys low … high: of tokens by their positions, of memories by their numbers. */
struct reach {
	int64_t low, high;
	unsigned query, most;   /* query q stands min(query + q, most) - j behind key j, */
	unsigned limit;         /* and sees it if that is from 0 to below this */
	unsigned place, places; /* of `low` in the store; where the store begins again */
};

static __device__ __forceinline__ bool within(const reach &r, int64_t j)
{
	return j >= r.low && j <= r.high;
}

static __device__ __forceinline__ bool is_memory(const reach &r)
{
	return r.places == UINT32_MAX;
}

/* Fewer than a window lies between `low` and what is read from the ring. */
static __device__ __forceinline__ int64_t place_of(const reach &r, int64_t j)
{
	const unsigned place = r.place + (unsigned)(j - r.low);
	return place < r.places ? place : place - r.places;
}

/* Chunk `number` of what queries t … t + count - 1 of s see. Memories stand in for the store then. */
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

/* Of a query that stands at `at` where memories, or tokens, are counted from 0: where it stands with what its segment
 * hides left out, and what it sees of that. */
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

/* The key of position j, or with value = 1 its value, where it is no code. */
static __device__ __forceinline__ const float *token_at(const ring_call &c, const session &s, const reach &r, int64_t j,
                                                        int value)
{
	if (j >= s.position)
		return value ? s.v + (j - s.position) * c.v_row : s.k + (j - s.position) * c.k_row;
	return value ? s.value + place_of(r, j) * c.values : s.key + place_of(r, j) * c.keys;
}

/* Codes d … d + 3 of a head of n channels as floats, a quad. */
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
	const float there = s.present[place_of(r, j)];
	return CODES ? softmax_step_is_there(there) : there != 0.0f;
}

/* --- 1. attend ------------------------------------------------------------------------------ */

/* A warp's shared memory: its queries and their sums as quads [Q][quads][lane], a tile's scores [Q][TILE]. */
struct desk {
	float4 *query, *sum;
	float *score;
};

/* quads: of a query and its sum. */
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
template <int LANES, bool PACKED, bool CODES, int Q>
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
					k[a] = key_quad<PACKED, CODES>(c, s, r, j, d);
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

/* Scores become exponentials; what came before is to shrink. */
template <bool CODES, int Q>
static __device__ __forceinline__ void tile_exponentials(const ring_call &c, const session &s, const reach &r,
                                                         int64_t base, unsigned head, int count, const desk &w,
                                                         float m[Q], float z[Q], float shrink[Q])
{
	const int lane = threadIdx.x % WARP;
	const int64_t j = base + lane;
	const bool present = within(r, j) && present_at<CODES>(s, r, j);
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

/* sum = shrink · sum + Σ_j e_j v_j over the keys of the tile, each part of the warp its own. */
template <int LANES, bool PACKED, bool CODES, int Q>
static __device__ __forceinline__ void tile_values(const ring_call &c, const session &s, const reach &r, int64_t base,
                                                   const desk &w, const float shrink[Q])
{
	enum { PARTS = WARP / LANES };
	const int lane = threadIdx.x % WARP, part = lane / LANES, first = lane % LANES * QUAD;
	for (int64_t i = 0; i < c.value_quads; i++) {
		const int64_t d = first + i * LANES * QUAD;
		const quad none = {};
		quad sum[Q];
#pragma unroll
		for (int q = 0; q < Q; q++) {
			sum[q] = take_quad(w.sum + (q * c.value_quads + i) * WARP + lane);
			quad_merge(sum[q], shrink[q], none, 0.0f);
		}
		for (int key = part; key < TILE; key += PARTS * AT_ONCE) {
			quad v[AT_ONCE] = {};
#pragma unroll
			for (int a = 0; a < AT_ONCE; a++) {
				const int64_t j = base + key + a * PARTS;
				if (within(r, j) && d < c.dv)
					v[a] = value_quad<PACKED, CODES>(c, s, r, j, d);
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

/* The parts of the warp together, to scratch. */
template <int LANES, int Q>
static __device__ __forceinline__ void leave(const ring_call &c, int64_t head, int64_t token, int count, int64_t chunk,
                                             const desk &w, const float m[Q], const float z[Q])
{
	const int lane = threadIdx.x % WARP, first = lane % LANES * QUAD;
#pragma unroll
	for (int q = 0; q < Q; q++) {
		const int64_t at = partial_at(c, head, token + q, chunk);
		for (int64_t i = 0; i < c.value_quads; i++) {
			const int64_t d = first + i * LANES * QUAD;
			quad sum = take_quad(w.sum + (q * c.value_quads + i) * WARP + lane);
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

template <int LANES, bool PACKED, bool CODES, int Q>
__global__ void __launch_bounds__(WARPS *WARP, (Q == 1 ? 5 : 4) - CODES) softmax_attend_kernel(ring_call c)
{
	const int lane = threadIdx.x % WARP, first = lane % LANES * QUAD;
	const unsigned unit = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
	const unsigned chunk = unit % c.chunks, tile = unit / c.chunks % c.tiles, head = unit / c.chunks / c.tiles;
	if (head >= c.heads)
		return;
	const unsigned row = row_of_tile(c, tile, Q);
	session s = session_of(c, row, head);
	const int64_t query = (int64_t)(tile - first_tile(c, row, Q)) * Q;
	const int count = (int)min(s.length - query, (int64_t)Q);
	if (count <= 0)
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
		tile_scores<LANES, PACKED, CODES, Q>(c, s, r, base, w);
		__syncwarp();
		tile_exponentials<CODES, Q>(c, s, r, base, head, count, w, m, z, shrink);
		__syncwarp();
		tile_values<LANES, PACKED, CODES, Q>(c, s, r, base, w, shrink);
		__syncwarp();
	}
	leave<LANES, Q>(c, head, s.tokens.first + query, count, chunk, w, m, z);
}

/* --- 2. finish ----------------------------------------------------------------------------------- */

/* The sums of token i of a sequence and one head lie at `memory`, those of its memories, and at `token`. */
struct parts {
	int64_t memory, token;
	int memories, count; /* of both */
};

/* Q: queries of a warp of attend. */
static __device__ __forceinline__ parts parts_of(const ring_call &c, const session &s, int64_t head, int64_t i, int Q)
{
	const int64_t t = s.position + i, from = chunk_of(c, first_seen(c, t)), last = last_seen(c, s, t);
	const int64_t memory = partial_at(c, head, s.tokens.first + i, 0);
	const int64_t skipped = from - chunk_of(c, first_seen(c, t - i % Q));
	const int memories = (int)c.memory_chunks;
	return {memory, memory + skipped, memories, memories + (last < 0 ? 0 : (int)(chunk_of(c, last) - from) + 1)};
}

static __device__ __forceinline__ int64_t part_at(const parts &p, int k)
{
	return (k < p.memories ? p.memory : p.token) + k;
}

/* Token i of a sequence, one head: y [dv], and its log-normalizer. */
template <int LANES, bool PACKED>
static __device__ __forceinline__ void combine(const ring_call &c, const session &s, int64_t head, int64_t i, int Q)
{
	const int first = threadIdx.x % LANES * QUAD;
	const parts p = parts_of(c, s, head, i, Q);
	float top = -INFINITY, z = 0.0f;
	for (int k = 0; k < p.count; k++)
		top = fmaxf(top, c.norm[part_at(p, k)].x);
	for (int k = 0; k < p.count && top > -INFINITY; k++)
		z = __fmaf_rn(expf(c.norm[part_at(p, k)].x - top), c.norm[part_at(p, k)].y, z);
	const float inverse = z > 0.0f ? __fdiv_rn(1.0f, z) : 0.0f;
	if (c.log_normalizer && first == 0)
		c.log_normalizer[(s.tokens.first + i) * c.heads + head] = z > 0.0f ? top + logf(z) : -INFINITY;
	for (int64_t d = first; c.y && d < c.dv; d += LANES * QUAD) {
		quad y = {};
		for (int k = 0; k < p.count && z > 0.0f; k++) {
			const float by = __fmul_rn(expf(c.norm[part_at(p, k)].x - top), inverse);
			const quad sum = load_pack(c.sum + part_at(p, k) * sum_width(c.dv) + d);
#pragma unroll
			for (int e = 0; e < QUAD; e++)
				y.at[e] = __fmaf_rn(by, sum.at[e], y.at[e]);
		}
		store_quad<PACKED>(c.y + ((s.tokens.first + i) * c.heads + head) * c.dv, d, c.dv, y);
	}
}

/* The token into its place of the ring, where that has codes. */
template <int LANES, bool PACKED>
static __device__ __forceinline__ void finish_codes(const ring_call &c, const session &s, int64_t head, int64_t i,
                                                    int64_t place)
{
	const int first = threadIdx.x % LANES * QUAD;
	const float step = c.key_step[s.tokens.first + i];
	int8_t *key = (int8_t *)s.key_code + 4 * place * c.store.key_width,
	       *value = (int8_t *)s.value_code + 4 * place * c.store.value_width;
	for (int64_t d = first; d < c.dh; d += LANES * QUAD)
		store_codes<PACKED>(key, d, c.dh, load_quad<PACKED>(s.k + i * c.k_row, d, c.dh), step);
	for (int64_t d = first; d < c.dv; d += LANES * QUAD)
		store_codes<PACKED>(value, d, c.dv, load_quad<PACKED>(s.v + i * c.v_row, d, c.dv), c.value_step);
	if (head != 0 || first != 0)
		return;
	((float *)s.present)[place] = !s.mask || s.mask[i] != 0 ? step : SOFTMAX_MASKED_STEP;
	for (int64_t d = c.keys; d < 4 * c.store.key_width; d++) /* head 0 begins where the place does */
		key[d] = 0;
	for (int64_t d = c.values; d < 4 * c.store.value_width; d++)
		value[d] = 0;
}

template <int LANES, bool PACKED, bool CODES>
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
	const int64_t i = at - s.tokens.first, places = c.store.places;
	const quad zeros = {};
	if (i >= s.length) {
		for (int64_t d = first; c.y && d < c.dv; d += LANES * QUAD)
			store_quad<PACKED>(c.y + (at * c.heads + head) * c.dv, d, c.dv, zeros);
		if (c.log_normalizer && first == 0)
			c.log_normalizer[at * c.heads + head] = 0.0f;
		return;
	}
	if (attends(c))
		combine<LANES, PACKED>(c, s, head, i, Q);
	if (!c.k || i < s.length - places || (unsigned)head % (unsigned)c.group != 0)
		return;
	const int64_t place = (unsigned)(s.position + i) % (unsigned)places;
	if constexpr (CODES) {
		finish_codes<LANES, PACKED>(c, s, head, i, place);
		return;
	}
	float *key = (float *)s.key + place * c.store.key_width, *value = (float *)s.value + place * c.store.value_width;
	for (int64_t d = first; d < c.dh; d += LANES * QUAD)
		store_quad<PACKED>(key, d, c.dh, load_quad<PACKED>(s.k + i * c.k_row, d, c.dh));
	for (int64_t d = first; d < c.dv; d += LANES * QUAD)
		store_quad<PACKED>(value, d, c.dv, load_quad<PACKED>(s.v + i * c.v_row, d, c.dv));
	if (head == 0 && first == 0)
		((float *)s.present)[place] = !s.mask || s.mask[i] != 0 ? 1.0f : 0.0f;
}

/* --- the call -------------------------------------------------------------------------------------- */

/* Input numbers. */
enum { Q_IN, K_IN, V_IN, POOL_IN, SLOT_IN, POSITION_IN, LENGTH_IN, MASK_IN, START_IN, MEMORY_K_IN, MEMORY_V_IN, BIAS_IN,
       KEY_STEP_IN };

/* What depends on the sizes: the chunks of `longest` keys one after another. */
static void cut(ring_call *c, softmax_heads n, int64_t longest)
{
	const int64_t long_chunk = (c->store.places / MOST_CHUNKS + TILE) / TILE * TILE;
	c->heads = n.heads;
	c->group = n.heads / n.kv_heads;
	c->dh = n.key;
	c->dv = n.value;
	c->chunk = max(long_chunk, (int64_t)CHUNK);
	c->memory_chunks = (unsigned)((c->memories + c->chunk - 1) / c->chunk);
	c->chunks = c->memory_chunks + (unsigned)((longest + c->chunk - 1) / c->chunk);
}

static void set_tokens(ring_call *c, const op_call *call, int pool, int slot, int length, int start, int memory)
{
	c->q = (const float *)call->in[Q_IN].data;
	c->q_row = call->in[Q_IN].shape.dim[2];
	c->pool = (float *)call->in[pool].data;
	c->slot = (const int32_t *)call->in[slot].data;
	c->length = (const int32_t *)call->in[length].data;
	c->start = (const int32_t *)cuda_optional(call, start);
	c->memory_k = (const float *)cuda_optional(call, memory);
	c->memory_v = (const float *)cuda_optional(call, memory + 1);
	c->memories = c->memory_k ? shape_rows(call->in[memory].shape) : 0;
	c->y = (float *)call->out[0].data;
	c->rows = (unsigned)call->in[slot].shape.dim[0];
	c->n = call->in[Q_IN].shape.dim[1];
	c->tokens = call->in[Q_IN].shape.dim[0] * c->n;
	c->slot_floats = call->in[pool].shape.dim[1];
}

static ring_call ring_call_of(const op_call *call)
{
	const softmax_stream_params *p = (const softmax_stream_params *)call->params;
	const bool packed = !call->in[K_IN].data;
	const int64_t q_width = call->in[Q_IN].shape.dim[2] / (packed ? 3 : 1);
	const softmax_heads n =
	    softmax_heads_of(q_width, packed ? q_width : call->in[V_IN].shape.dim[2], p->heads, p->kv_heads);
	ring_call c = {};
	set_tokens(&c, call, POOL_IN, SLOT_IN, LENGTH_IN, START_IN, MEMORY_K_IN);
	c.key_step = (const float *)cuda_optional(call, KEY_STEP_IN);
	c.value_step = p->value_step;
	c.keys = n.kv_heads * n.key;
	c.values = n.kv_heads * n.value;
	c.store = softmax_store_of(c.keys, c.values, p->window, c.key_step);
	c.k = packed ? c.q + q_width : (const float *)call->in[K_IN].data;
	c.v = packed ? c.k + q_width : (const float *)call->in[V_IN].data;
	c.k_row = packed ? c.q_row : c.keys;
	c.v_row = packed ? c.q_row : c.values;
	c.position = (const int32_t *)call->in[POSITION_IN].data;
	c.mask = (const int32_t *)cuda_optional(call, MASK_IN);
	c.bias = (const float *)cuda_optional(call, BIAS_IN);
	c.log_normalizer = (float *)call->out[1].data;
	c.past = p->past;
	c.segment = p->segment;
	c.reach = p->past > 0 && p->past < p->window ? p->past + 1 : p->window;
	c.offset = p->offset;
	if (p->stored.count) {
		c.memories = p->stored.count;
		c.stored = p->stored.offset;
	}
	c.scale = p->scale;
	cut(&c, n, c.reach);
	c.chunks = c.memory_chunks + (unsigned)((c.reach + QUERIES - 2 + c.chunk - 1) / c.chunk + 1);
	return c;
}

static ring_call source_call_of(const op_call *call)
{
	const source_params *p = (const source_params *)call->params;
	const softmax_heads n = softmax_heads_of(call->in[Q_IN].shape.dim[2], p->value_width, p->heads, p->kv_heads);
	ring_call c = {};
	set_tokens(&c, call, 1, 2, 3, 4, 5);
	c.keys = n.kv_heads * n.key;
	c.values = p->value_width;
	c.store = {c.keys, c.values, p->capacity};
	c.reach = UINT32_MAX;
	c.offset = p->offset;
	c.scale = p->scale;
	cut(&c, n, p->capacity);
	return c;
}

/* Queries with their chunks. */
static int64_t partials(const ring_call *c)
{
	return c->heads * c->tokens * c->chunks;
}

static size_t scratch_bytes(const ring_call *c)
{
	return attends(*c) ? (size_t)partials(c) * ((size_t)sum_width(c->dv) * sizeof(float) + sizeof(float2)) : 0;
}

size_t cuda_softmax_stream_scratch(const backend *b, const op_call *call)
{
	(void)b;
	const ring_call c = ring_call_of(call);
	return scratch_bytes(&c);
}

size_t cuda_source_attention_scratch(const backend *b, const op_call *call)
{
	(void)b;
	const ring_call c = source_call_of(call);
	return scratch_bytes(&c);
}

template <int LANES, bool PACKED, bool CODES, int Q> static status attend(backend *b, ring_call c)
{
	const size_t bytes = desk_bytes(Q, c.key_quads + c.value_quads), limit = cuda_of(b)->shared_limit;
	c.tiles = c.start ? (unsigned)(c.tokens / Q) + c.rows : c.rows * tiles_of(c.n, Q);
	const int64_t units = c.heads * (int64_t)c.tiles * c.chunks;
	int warps = units < (int64_t)cuda_of(b)->processors * WARPS ? 1 : WARPS;
	while (warps > 1 && (size_t)warps * bytes > limit)
		warps /= 2;
	if (bytes > limit || c.tokens > INT32_MAX || units > UINT32_MAX) /* tiles and units are counted in 32 bits */
		return STATUS_UNSUPPORTED;
	return cuda_launch(b, softmax_attend_kernel<LANES, PACKED, CODES, Q>, cuda_parts(units, warps), warps * WARP,
	                   warps * bytes, c);
}

template <int LANES, bool PACKED, bool CODES> static status ring(backend *b, ring_call c)
{
	enum { PARTS = WARP / LANES };
	c.key_quads = (c.dh + LANES * QUAD - 1) / (LANES * QUAD);
	c.value_quads = (c.dv + LANES * QUAD - 1) / (LANES * QUAD);
	c.groups = (unsigned)((c.heads + PARTS - 1) / PARTS);
	const bool one = c.n == 1 || c.segment > 0 ||
	                 desk_bytes(QUERIES, c.key_quads + c.value_quads) > cuda_of(b)->shared_limit;
	if (attends(c))
		TRY((one ? attend<LANES, PACKED, CODES, 1>(b, c) : attend<LANES, PACKED, CODES, QUERIES>(b, c)));
	const int64_t units = c.tokens * c.groups;
	if (units > UINT32_MAX)
		return STATUS_UNSUPPORTED;
	return cuda_launch(b, softmax_finish_kernel<LANES, PACKED, CODES>, cuda_parts(units, WARPS), WARPS * WARP, 0, c,
	                   one ? 1 : QUERIES);
}

static status answer(backend *b, const op_call *call, ring_call c)
{
	c.sum = (float *)call->scratch;
	c.norm = (float2 *)(c.sum + (attends(c) ? partials(&c) * sum_width(c.dv) : 0));
	const bool packed =
	    c.dh % QUAD == 0 && c.dv % QUAD == 0 && c.slot_floats % QUAD == 0 && c.offset % QUAD == 0;
	return by_lanes(max(c.dh, c.dv), [&](auto lanes) {
		enum { LANES = decltype(lanes)::N };
		if (c.key_step)
			return packed ? ring<LANES, true, true>(b, c) : ring<LANES, false, true>(b, c);
		return packed ? ring<LANES, true, false>(b, c) : ring<LANES, false, false>(b, c);
	});
}

status cuda_softmax_stream(backend *b, const op_call *call)
{
	return shape_count(call->in[Q_IN].shape) == 0 ? STATUS_OK : answer(b, call, ring_call_of(call));
}

status cuda_source_attention(backend *b, const op_call *call)
{
	return shape_count(call->in[Q_IN].shape) == 0 || !call->out[0].data ? STATUS_OK
	                                                                 : answer(b, call, source_call_of(call));
}
