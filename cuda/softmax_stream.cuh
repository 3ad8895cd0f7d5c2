/* softmax_stream.cuh - the call of softmax_stream and source_attention as their kernels see it, and the partial sums
 * between them.
 *
 * Memories and positions are cut into chunks whose size depends on the window alone. Attend (softmax_stream_attend.cu)
 * leaves m, z and Σ e^{s-m} v of every chunk in scratch. Finish (softmax_stream_finish.cu) merges the chunks into y in
 * order and writes the call's last tokens into the ring. In a call of prompts, sequences with more than QUERIES tokens
 * are left to the kernel of softmax_stream_long.cu, which reads keys for 64 queries at once and writes y itself. The
 * call's keys and values are read from its inputs, older ones from the ring. Only finish changes the ring, so no token
 * overwrites one that an earlier query still needs.
 *
 * Tiles and chunks begin at multiples of their sizes, and keys that a query does not see leave its sums unchanged. So y
 * depends on the tokens and the position alone: not on the batch, nor on how the tokens are cut into calls.
 *
 * Both forms therefore have one order of sums: that of softmax_tile.cuh, then the chunks in order. */
#ifndef CUDA_SOFTMAX_STREAM_CUH
#define CUDA_SOFTMAX_STREAM_CUH

#include "cuda/kernels.h"
#include "cuda/softmax_tile.cuh"

extern "C" {
#include "engine/tensor/ops/softmax_stream.h"
}

enum {
	QUERIES = 4, /* most queries for which a warp reads keys together */
	WARPS = 4    /* per block */
};

/* Arguments of the call. */
struct ring_call {
	const float *q, *k, *v; /* the first token's; k and v NULL: queries to a source */
	int64_t q_row, k_row, v_row;
	float *pool, *y, *log_normalizer;                       /* the last two may be NULL */
	const int32_t *slot, *position, *length, *mask, *start; /* the last two may be NULL */
	const float *memory_k, *memory_v, *bias;                /* bias may be NULL */
	const float *key_step; /* the first token's; NULL: no ring of codes */
	float value_step;
	softmax_store store;
	int64_t channel_bytes;           /* bytes of a channel in the store */
	int64_t keys, values;            /* channels of a token's keys and of its values */
	int64_t n, heads, group, dh, dv; /* group: query heads per key head */
	int64_t reach, memories, past;   /* reach: tokens that a query sees, including its own */
	int64_t segment;                 /* 0: no segments */
	int64_t slot_floats, offset;
	int64_t stored; /* memory_k NULL: offset of the memories in a slot */
	int64_t tokens;                       /* in all sequences */
	unsigned rows, chunks, memory_chunks; /* rows: sequences; chunks: of memories first, then of tokens */
	bool split;                           /* sequences of more than QUERIES tokens have the kernel of long runs */
	int64_t sum_tokens;                   /* tokens that have sums in scratch */
	int queries;                          /* per warp of attend, which chooses the number */
	unsigned tiles;                       /* tiles of queries in all sequences, or more */
	int members, spans;                   /* long runs: heads of a block, and tiles of queries for each */
	unsigned groups;                      /* groups of heads, for finish */
	int64_t chunk;
	int64_t key_quads, value_quads; /* per lane */
	float scale;
	float *sum;   /* [heads, sum_tokens, chunks, whole quads of dv] */
	float2 *norm; /* [heads, sum_tokens, chunks] m, z */
};

static inline __device__ __host__ bool attends(const ring_call &c)
{
	return c.y || c.log_normalizer;
}

/* Floats of a head's sums, in whole quads. */
static inline __device__ __host__ int64_t sum_width(int64_t dv)
{
	return (dv + QUAD - 1) / QUAD * QUAD;
}

/* A row of the batch and one of its heads; addresses are of the head's first channel. */
struct session {
	const float *q, *k, *v;      /* the row's first token's */
	const char *key, *value;     /* first place of the store, in its format, or of memories */
	const float *memory_k, *memory_v;
	const float *present;        /* the ring's marks, or steps of keys; NULL for a source: all are present */
	const int32_t *mask;         /* the row's tokens'; may be NULL */
	int64_t position, length;    /* position: for a source, its number of tokens */
	int64_t sums;                /* index of the first token among those with sums */
	token_span tokens;
};

static __device__ __forceinline__ session session_of(const ring_call &c, unsigned row, int64_t head)
{
	const float *slot = c.pool + c.slot[row] * c.slot_floats, *state = slot + c.offset;
	const token_span tokens = tokens_of(c.start, c.rows, c.n, row);
	const int64_t from = (unsigned)head / (unsigned)c.group;
	session s = {};
	s.q = c.q + tokens.first * c.q_row + head * c.dh;
	s.key = (const char *)state + from * c.dh * c.channel_bytes;
	s.value = (const char *)(state + softmax_value(c.store, 0)) + from * c.dv * c.channel_bytes;
	s.memory_k = (c.memory_k ? c.memory_k : slot + c.stored) + from * c.dh;
	s.memory_v = (c.memory_k ? c.memory_v : slot + c.stored + c.memories * c.keys) + from * c.dv;
	s.length = c.length[row];
	s.tokens = tokens;
	s.sums = c.split ? (int64_t)row * QUERIES : tokens.first;
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

/* First token that the query of position t sees. */
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

/* Chunk of a position; positions are below 2^32. */
static __device__ __forceinline__ int64_t chunk_of(const ring_call &c, int64_t position)
{
	return (unsigned)position / (unsigned)c.chunk;
}

/* Number of chunks of tokens that queries of positions t … last see together. */
static __device__ __forceinline__ int token_chunks(const ring_call &c, const session &s, int64_t t, int64_t last)
{
	const int64_t seen = last_seen(c, s, last);
	return seen < 0 ? 0 : (int)(chunk_of(c, seen) - chunk_of(c, first_seen(c, t))) + 1;
}

/* Index in scratch of the sums that token i of s has for a chunk. */
static __device__ __forceinline__ int64_t partial_at(const ring_call &c, const session &s, int64_t head, int64_t i,
                                                     int64_t chunk)
{
	return (head * c.sum_tokens + s.sums + i) * c.chunks + chunk;
}

/* True if the kernel of long runs has the sequence. */
static __device__ __forceinline__ bool is_long(const ring_call &c, const session &s)
{
	return c.split && s.length > QUERIES;
}

/* Tiles of Q queries that a sequence of `queries` has. */
static inline __device__ __host__ unsigned tiles_of(int64_t queries, int Q)
{
	return (unsigned)((queries + Q - 1) / Q);
}

/* Tiles of Q queries in all sequences, or more. */
static inline unsigned all_tiles(const ring_call &c, int Q)
{
	return c.start ? (unsigned)(c.tokens / Q) + c.rows : c.rows * tiles_of(c.n, Q);
}

/* Index of the sequence's first tile of Q queries. With `start` a sequence has at least as many tiles as it needs,
 * ⌊start[s+1] / Q⌋ - ⌊start[s] / Q⌋ + 1, so that no tile has queries of two sequences. */
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
		const bool before = first_tile(c, middle, Q) <= tile;
		low = before ? middle : low;
		high = before ? high : middle;
	}
	return low;
}

/* Template parameters of the kernels: LANES and PACKED as in stream.cuh, and the format of the ring. */
template <int lanes, bool packed, softmax_format format> struct ring_layout {
	enum { LANES = lanes };
	static constexpr bool PACKED = packed;
	static constexpr softmax_format FORMAT = format;
};

static inline bool is_packed(const ring_call &c)
{
	return c.dh % QUAD == 0 && c.dv % QUAD == 0 && c.slot_floats % QUAD == 0 && c.offset % QUAD == 0 &&
	       c.stored % QUAD == 0;
}

template <softmax_format FORMAT, class F> status by_layout_of(const ring_call &c, F f)
{
	const bool packed = is_packed(c);
	return by_lanes(max(c.dh, c.dv), [&](auto lanes) {
		enum { LANES = decltype(lanes)::N };
		return packed ? f(ring_layout<LANES, true, FORMAT>()) : f(ring_layout<LANES, false, FORMAT>());
	});
}

/* Call f with the layout of a call. */
template <class F> status by_layout(const ring_call &c, F f)
{
	return c.store.format == SOFTMAX_CODES  ? by_layout_of<SOFTMAX_CODES>(c, f)
	       : c.store.format == SOFTMAX_BF16 ? by_layout_of<SOFTMAX_BF16>(c, f)
	                                        : by_layout_of<SOFTMAX_F32>(c, f);
}

/* The kernels. Attend sets c->queries. If no result is requested (`attends`), finish runs alone; without `split`, there
 * is no kernel of long runs. */
status cuda_softmax_long(backend *b, const ring_call *c);
status cuda_softmax_attend(backend *b, ring_call *c);
status cuda_softmax_finish(backend *b, const ring_call *c);

#endif
