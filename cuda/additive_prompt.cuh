/* additive_prompt.cuh - additive_stream of several tokens: the operations of additive_stream.cuh in the same order, so
 * cutting the tokens into calls changes no bit.
 *
 * A block reads neighbouring heads of one sequence in tiles, at most PROMPT_TILE tokens of one block of the window. Its
 * four warps are stages, each a tile after the one before, with a barrier for each tile:
 *   0. scores, lanes along the channels: a = scale · w·x;
 *   1. scalars: a lane has a token of its head. Maxima are scans, exact in any order, and exponentials depend on maxima
 *      alone. So all merges of a tile compute their exponentials at once, and only their sums z, a fused multiply-add
 *      each, are one after another. This warp alone accesses m and z of the state;
 *   2. the factors of g and the log-normalizers, a lane for each token and head;
 *   3. channels: every lane applies the factors, token after token. This warp alone accesses the vectors of the state.
 *      P, Q and the aggregate turned last stay in registers. What a token reads is loaded PROMPT_AHEAD tokens before,
 *      within its block of the window: there no token reads what another one stores in a slot, except the aggregate
 *      turned last.
 *
 * The prompt of a windowed round is cut into stretches of whole blocks, which blocks of threads read side by side. A
 * block of the window depends on the two before it alone. So a stretch other than the first begins two blocks earlier,
 * with an empty state of its own and without output. The first of these blocks only fills its slots. The second one
 * turns them and sums P. At the stretch's first token the state has the bits that the tokens before would have left. A
 * second kernel copies the last stretch's state to the slot.
 *
 * Bytes: x twice and g once, and in a window the slots (12 read, 8 written per token and channel), mostly in the
 * caches. */
#ifndef CUDA_ADDITIVE_PROMPT_CUH
#define CUDA_ADDITIVE_PROMPT_CUH

#include "cuda/additive_lanes.cuh"
#include "cuda/additive_stream.cuh"

enum { PROMPT_TILE = 16, PROMPT_AHEAD = 4 /* divides a tile */, PROMPT_WARPS = 4, PROMPT_THREADS = PROMPT_WARPS * WARP };

/* --- stretches ---------------------------------------------------------------------------------- */

/* Tokens first … stop - 1 of a row's call, none if first ≥ stop. index: of the stretch in its row. */
struct stretch {
	unsigned row, index, first, stop;
};

/* Stretches after the first begin at multiples of c.stretch, and at least c.stretch and two blocks after the row. So a
 * row of n tokens has at most n / c.stretch of them. Those of all rows have numbers in this order. */
static __device__ __forceinline__ unsigned stretches_before(const stream_call &c, unsigned row)
{
	return (unsigned)tokens_of(c.start, c.rows, c.n, row).first / c.stretch;
}

static __device__ __forceinline__ stretch stretch_at(const stream_call &c, unsigned number)
{
	stretch s = {number, 0, 0, 0};
	if (number >= c.rows) {
		const unsigned of_others = number - (unsigned)c.rows, token = of_others * c.stretch + c.stretch - 1;
		s.row = (unsigned)sequence_of(c.start, c.rows, c.n, token);
		s.index = of_others - stretches_before(c, s.row) + 1;
	}
	s.stop = (unsigned)c.length[s.row];
	if (c.stretch > 0) {
		const unsigned position = (unsigned)c.position[s.row], lead = max(c.stretch, 2 * (unsigned)c.block);
		const unsigned border =
		    (position + lead + c.stretch - 1) / c.stretch * c.stretch - position + s.index * c.stretch;
		s.first = s.index > 0 ? border - c.stretch : 0;
		s.stop = min(s.stop, border);
	}
	return s;
}

/* Tokens first … first + count - 1 of a row's call, in one block of the window. */
struct tile {
	unsigned first, j, p;
	int count, left; /* left: tokens to the end of the block or stretch, at least count */
	bool silent;     /* before the stretch: no output */
	bool turns;      /* false in a stretch's first block; the block before a sequence has zeros, which stay so */
	bool reaches;    /* up to the last suffix */
	unsigned present; /* bits of the tokens that are not masked */
};

/* Find what follows from the tile's first token. All lanes of a warp. */
static __device__ __forceinline__ void bound_tile(const stream_call &c, const part &u, const stretch &s, tile &k)
{
	const unsigned block = (unsigned)c.block;
	k.silent = k.first < s.first;
	const unsigned stop = k.silent ? s.first : s.stop, left = stop > k.first ? stop - k.first : 0;
	k.left = (int)(block > 0 ? min(left, block - k.p) : left);
	k.count = min(k.left, (int)PROMPT_TILE);
	k.turns = k.first + block >= s.first;
	k.reaches = k.j >= 2 && !k.silent;
	k.present = ~0u;
	if (c.mask) {
		const int lane = threadIdx.x % WARP;
		k.present = __ballot_sync(ALL_LANES, lane < k.count && c.mask[u.token + k.first + lane] != 0);
	}
}

static __device__ __forceinline__ tile first_tile(const stream_call &c, const part &u, const stretch &s,
                                                  unsigned position)
{
	tile k = {};
	k.first = s.index > 0 ? s.first - 2 * (unsigned)c.block : 0;
	const place at = place_at(c, position + k.first);
	k.j = (unsigned)at.j;
	k.p = (unsigned)at.p;
	bound_tile(c, u, s, k);
	return k;
}

static __device__ __forceinline__ void next_tile(const stream_call &c, const part &u, const stretch &s, tile &k)
{
	k.first += (unsigned)k.count;
	k.p += (unsigned)k.count;
	if (c.block > 0 && k.p == (unsigned)c.block) {
		k.p = 0;
		k.j++;
	}
	bound_tile(c, u, s, k);
}

/* First suffix of block j-2 in the window, at most one past the last. */
static __device__ __forceinline__ int first_suffix(const stream_call &c, const tile &k)
{
	return (int)first_suffix(c, place{k.j, k.p});
}

/* m of slot `index` of block j, of the lane's head; 32-bit factors, since a state has at most 2^31 + 1 aggregates. */
static __device__ __forceinline__ float *slot_m(const stream_call &c, const part &u, unsigned j, unsigned index)
{
	const unsigned number = 2 + (j & 1) * (unsigned)c.block + index;
	return u.state + u.head + (uint64_t)number * (unsigned)c.width;
}

/* m of the slot that the tile's token `row` turns; the one before it is that of row - 1. */
static __device__ __forceinline__ float *turned_m(const stream_call &c, const part &u, const tile &k, int row)
{
	return slot_m(c, u, k.j - 1, (unsigned)c.block - 1 - k.p - (unsigned)row);
}

/* From a head's m to its vector. */
static __device__ __forceinline__ int64_t vector_offset(const stream_call &c, const part &u)
{
	return 2 * c.heads + u.head * (c.dh - 1);
}

/* A tile between two stages; for each token and head. */
template <int HEADS> struct prompt_tile {
	factors by[PROMPT_TILE][HEADS];
	float4 total[PROMPT_TILE][HEADS]; /* m and z of all but the suffix, then of the suffix */
	float score[PROMPT_TILE][HEADS];
};

/* Shared memory of a block. */
template <int HEADS> struct prompt_board {
	prompt_tile<HEADS> tiles[PROMPT_WARPS]; /* tile i is in i % PROMPT_WARPS */
	float2 own[PROMPT_TILE][HEADS];         /* stage 1: z of a token, and of the slot that it turns */
	float4 sums[PROMPT_TILE][HEADS];        /* stage 1: z after it, turned, P and Q */
};

/* --- 0. scores ---------------------------------------------------------------------------------- */

template <int LANES> struct prompt_lanes {
	enum { L = LANES };
};
template <int LANES> using prompt_held = additive_held<prompt_lanes<LANES>, PROMPT_TILE>;

/* Rows past the tile have the scores of its last one, so that no load has a condition. */
template <int LANES, bool PACKED>
static __device__ __forceinline__ void score_tile(const stream_call &c, const part &u, const tile &k,
                                                  prompt_tile<WARP / LANES> &to)
{
	typedef prompt_held<LANES> held;
	const int slot = threadIdx.x % WARP / LANES, dh = (int)c.dh, d = (int)c.d;
	const float *x = c.x + (u.token + k.first) * c.d + u.head * c.dh, *w = c.w + u.head * c.dh;
	float sum[PROMPT_TILE] = {};
	for (int at = (int)u.first; u.present && at < dh; at += LANES * QUAD) {
		const quad weight = load_quad<PACKED>(w, at, dh);
		quad row[PROMPT_TILE];
#pragma unroll
		for (int i = 0; i < PROMPT_TILE; i++)
			row[i] = load_quad<PACKED>(x + (int64_t)min(i, k.count - 1) * d, at, dh);
#pragma unroll
		for (int i = 0; i < PROMPT_TILE; i++)
			sum[i] = quad_dot(weight, row[i], sum[i]);
	}
	const held sums = additive_sums<prompt_lanes<LANES>, PROMPT_TILE>(sum);
#pragma unroll
	for (int n = 0; n < held::SLOTS; n++)
		if (threadIdx.x % LANES < held::ROWS)
			to.score[held::row(n)][slot] = __fmul_rn(c.scale, sums.slot[n]);
}

/* --- 1. scalars --------------------------------------------------------------------------------- */

/* Maxima of an aggregate that the tokens of a tile are merged into, one after another. */
template <int LANES> struct merged_maxima {
	typedef prompt_held<LANES> held;
	float before[held::SLOTS], after[held::SLOTS]; /* before and after this lane's tokens */

	/* m: the tokens'. last: before the tile, then after it. */
	__device__ __forceinline__ void find(const float (&m)[held::SLOTS], float &last)
	{
		enum { ROWS = held::ROWS };
#pragma unroll
		for (int n = 0; n < held::SLOTS; n++) {
			after[n] = m[n];
#pragma unroll
			for (int by = 1; by < ROWS; by *= 2) {
				const float other = __shfl_up_sync(ALL_LANES, after[n], by, ROWS);
				after[n] = by <= held::place() ? fmaxf(after[n], other) : after[n];
			}
		}
#pragma unroll
		for (int n = 0; n < held::SLOTS; n++) {
			after[n] = fmaxf(after[n], last);
			const float other = __shfl_up_sync(ALL_LANES, after[n], 1, ROWS);
			before[n] = held::place() == 0 ? last : other;
			last = __shfl_sync(ALL_LANES, after[n], ROWS - 1, ROWS);
		}
	}
};

/* Sum z of a tile's tokens for a head, in its first lane: the turned aggregate, P and Q. */
template <bool WINDOW, int HEADS>
static __device__ __forceinline__ void sum_tokens(const prompt_tile<HEADS> &t, prompt_board<HEADS> &board, int slot,
                                                  float turned, float prefix, float running)
{
	enum { AT_ONCE = 8 }; /* loaded before any is stored */
#pragma unroll
	for (int r = 0; r < PROMPT_TILE; r += AT_ONCE) {
		factors f[AT_ONCE];
		float2 z[AT_ONCE];
#pragma unroll
		for (int i = 0; i < AT_ONCE; i++) {
			f[i] = t.by[r + i][slot];
			z[i] = board.own[r + i][slot];
		}
#pragma unroll
		for (int i = 0; i < AT_ONCE; i++) {
			if (WINDOW) {
				turned = __fmaf_rn(f[i].turned, z[i].y, __fmul_rn(f[i].before, turned));
				running = __fmaf_rn(f[i].running, running, __fmul_rn(f[i].running_x, z[i].x));
			}
			prefix = __fmaf_rn(f[i].prefix, prefix, __fmul_rn(f[i].prefix_x, z[i].x));
			board.sums[r + i][slot] = make_float4(turned, prefix, running, 0.0f);
		}
	}
}

/* Scalars from tile to tile; turned: the aggregate turned last. */
struct prompt_scalars {
	scalars P, Q, turned;
};

static __device__ __forceinline__ scalars scalars_at(const stream_call &c, const float *m)
{
	return {m[0], m[(int)c.heads]};
}

static __device__ __forceinline__ void put_scalars(const stream_call &c, float *m, scalars x)
{
	m[0] = x.m;
	m[(int)c.heads] = x.z;
}

/* Merge the scalars of a tile. */
template <int LANES, bool WINDOW>
static __device__ __forceinline__ void merge_tile(const stream_call &c, const part &u, const tile &k,
                                                  prompt_scalars &s, prompt_tile<WARP / LANES> &t,
                                                  prompt_board<WARP / LANES> &board)
{
	typedef prompt_held<LANES> held;
	enum { ROWS = held::ROWS, SLOTS = held::SLOTS };
	const scalars nothing = {STREAM_EMPTY, 0.0f};
	const bool has_row = threadIdx.x % LANES < ROWS;
	const int slot = threadIdx.x % WARP / LANES, first = first_suffix(c, k);
	scalars token[SLOTS], turns[SLOTS], suffix[SLOTS];
#pragma unroll
	for (int n = 0; n < SLOTS; n++) {
		const int row = held::row(n);
		const bool exists = u.present && row < k.count;
		token[n] = turns[n] = suffix[n] = nothing;
		if (WINDOW && exists && k.turns)
			turns[n] = scalars_at(c, turned_m(c, u, k, row));
		if (WINDOW && exists && k.reaches && first + row < c.block)
			suffix[n] = scalars_at(c, slot_m(c, u, k.j, first + row));
		if (exists && k.present >> row & 1)
			token[n] = {t.score[row][slot], 1.0f};
	}
	__syncwarp(); /* all slots have been read before tokens replace them */
	merged_maxima<LANES> prefix, running, later;
	float m[SLOTS], turns_m[SLOTS];
	if (WINDOW && k.p == 0) {
		s.Q = s.P;
		s.P = s.turned = nothing;
	}
#pragma unroll
	for (int n = 0; n < SLOTS; n++) {
		m[n] = token[n].m;
		turns_m[n] = turns[n].m;
	}
	prefix.find(m, s.P.m);
	if (WINDOW) {
		running.find(m, s.Q.m);
		later.find(turns_m, s.turned.m);
	}
#pragma unroll
	for (int n = 0; n < SLOTS; n++) {
		factors f = {};
		f.prefix = expf(prefix.before[n] - prefix.after[n]);
		f.prefix_x = expf(m[n] - prefix.after[n]);
		if (WINDOW) {
			f.running = expf(running.before[n] - running.after[n]);
			f.running_x = expf(m[n] - running.after[n]);
			f.turned = expf(turns_m[n] - later.after[n]);
			f.before = expf(later.before[n] - later.after[n]);
		}
		if (has_row) {
			t.by[held::row(n)][slot] = f;
			board.own[held::row(n)][slot] = make_float2(token[n].z, turns[n].z);
		}
	}
	__syncwarp();
	if (u.leads)
		sum_tokens<WINDOW>(t, board, slot, s.turned.z, s.P.z, s.Q.z);
	__syncwarp();
	const float4 last = board.sums[PROMPT_TILE - 1][slot];
	s.turned.z = last.x;
	s.P.z = last.y;
	s.Q.z = last.z;
#pragma unroll
	for (int n = 0; n < SLOTS; n++) {
		const int row = held::row(n);
		const float4 sum = board.sums[row][slot];
		scalars total = token[n];
		if (c.aggregates > 0)
			total = WINDOW ? scalars{running.after[n], sum.z} : scalars{prefix.after[n], sum.y};
		if (has_row)
			t.total[row][slot] = make_float4(total.m, total.z, suffix[n].m, suffix[n].z);
		if (!WINDOW || !has_row || !u.present || row >= k.count)
			continue;
		put_scalars(c, slot_m(c, u, k.j, k.p + row), token[n]);
		if (k.turns && k.p + row > 0)
			put_scalars(c, turned_m(c, u, k, row), {later.after[n], sum.x});
	}
	__syncwarp(); /* the next tile's lanes read what others have stored */
}

/* --- 2. factors of g ---------------------------------------------------------------------------- */

template <int HEADS>
static __device__ __forceinline__ void finish_tile(const stream_call &c, const part &u, const tile &k,
                                                   prompt_tile<HEADS> &t)
{
	const int64_t head = u.head - threadIdx.x % WARP / (WARP / HEADS); /* the first one of the block */
#pragma unroll
	for (int i = threadIdx.x % WARP; i < PROMPT_TILE * HEADS; i += WARP) {
		const int row = i / HEADS, slot = i % HEADS;
		if (k.silent || row >= k.count || head + slot >= c.heads)
			continue;
		const float4 sums = t.total[row][slot];
		scalars total = {sums.x, sums.y};
		float from_running = 1.0f, from_suffix = 0.0f;
		if (sums.z != STREAM_EMPTY)
			merge(total, {sums.z, sums.w}, from_running, from_suffix);
		const float normalizer = finish(total, from_running, from_suffix);
		t.by[row][slot].from_running = from_running;
		t.by[row][slot].from_suffix = from_suffix;
		const int64_t at = (u.token + k.first + row) * c.heads + head + slot;
		if (c.score)
			c.score[at] = t.score[row][slot];
		if (c.log_normalizer)
			c.log_normalizer[at] = normalizer;
	}
}

/* --- 3. channels -------------------------------------------------------------------------------- */

/* A quad of what a token reads. */
struct token_quads {
	quad x, turned, suffix;
};

/* Store a quad, as 16 bytes where the compiler would make four stores of it. */
template <bool PACKED>
static __device__ __forceinline__ void put_quad(float *to, int d, int dh, const quad &q)
{
	if constexpr (PACKED)
		__stwb((float4 *)(to + d), make_float4(q.at[0], q.at[1], q.at[2], q.at[3]));
	else
		store_quad<false>(to, d, dh, q);
}

/* q, or zeros. Selected channel by channel, so that it stays in registers. */
static __device__ __forceinline__ quad quad_if(bool take, const quad &q)
{
	quad to;
#pragma unroll
	for (int i = 0; i < QUAD; i++)
		to.at[i] = take ? q.at[i] : 0.0f;
	return to;
}

/* Loads a head's quads, token by token, up to the end of the block or stretch and then the last ones again. Where a
 * token has no suffix, it loads some other slot. */
template <bool PACKED, bool WINDOW, bool TURNS, bool WRITES> struct prompt_reader {
	const float *x, *turned, *suffix;
	int left, suffixes, d, width, channel, dh; /* left: tokens, including the next one */

	__device__ __forceinline__ prompt_reader(const stream_call &c, const part &u, const tile &k, int from, int channel)
	    : d((int)c.d), width((int)c.width), channel(channel), dh((int)c.dh)
	{
		const int row = min(from, k.left - 1);
		x = c.x + (u.token + k.first + row) * c.d + u.head * c.dh;
		left = k.left - row;
		if (TURNS)
			turned = turned_m(c, u, k, row) + vector_offset(c, u);
		if (WINDOW && WRITES) {
			const int first = min(first_suffix(c, k) + row, (int)c.block - 1);
			suffix = slot_m(c, u, k.j, first) + vector_offset(c, u);
			suffixes = (int)c.block - first;
		}
	}
	__device__ __forceinline__ void next(token_quads &to)
	{
		const int row = --left > 0;
		to.x = load_quad<PACKED>(x, channel, dh);
		x += row ? d : 0;
		if (TURNS) {
			to.turned = load_quad<PACKED>(turned, channel, dh);
			turned -= row ? width : 0;
		}
		if (WINDOW && WRITES) {
			to.suffix = load_quad<PACKED>(suffix, channel, dh);
			suffix += row && --suffixes > 0 ? width : 0;
		}
	}
};

/* Quads of aggregates before and after a token. */
struct prompt_quads {
	quad P, Q, turned;
};

/* Applies factors to a head's quads, token by token. */
template <bool PACKED, bool WINDOW, bool TURNS, bool WRITES> struct prompt_writer {
	float *g, *turned, *slot;
	int suffixes, d, width, channel, dh; /* suffixes: tokens of the tile that have one */
	bool pools;

	__device__ __forceinline__ prompt_writer(const stream_call &c, const part &u, const tile &k, int channel)
	    : d((int)c.d), width((int)c.width), channel(channel), dh((int)c.dh), pools(c.aggregates > 0)
	{
		if (WRITES)
			g = c.g + (u.token + k.first) * c.d + u.head * c.dh;
		if (TURNS)
			turned = turned_m(c, u, k, 0) + vector_offset(c, u);
		if (WINDOW)
			slot = slot_m(c, u, k.j, k.p) + vector_offset(c, u);
		suffixes = WINDOW && k.reaches ? (int)c.block - first_suffix(c, k) : 0;
	}
	__device__ __forceinline__ void next(const factors &f, bool present, bool reaches, const token_quads &now,
	                                     prompt_quads &s)
	{
		const quad x = quad_if(present, now.x), suffix = quad_if(WINDOW && reaches, now.suffix);
		if (TURNS) {
			quad to = now.turned;
			quad_merge(to, f.turned, s.turned, f.before);
			put_quad<PACKED>(turned, channel, dh, to);
			turned -= width;
			s.turned = to;
		}
		quad_merge(s.P, f.prefix, x, f.prefix_x);
		if (WINDOW) {
			quad_merge(s.Q, f.running, x, f.running_x);
			put_quad<PACKED>(slot, channel, dh, x);
			slot += width;
		}
		if (WRITES) {
			quad to;
#pragma unroll
			for (int i = 0; i < QUAD; i++)
				to.at[i] = WINDOW ? s.Q.at[i] : pools ? s.P.at[i] : x.at[i];
			quad_merge(to, f.from_running, suffix, f.from_suffix);
			put_quad<PACKED>(g, channel, dh, to);
			g += d;
		}
	}
};

/* Apply the factors of a tile to a quad. `ahead`: the next tokens, to be loaded if `begins`; again those after it. */
template <bool PACKED, bool WINDOW, bool TURNS, bool WRITES, int HEADS>
static __device__ __forceinline__ void apply_tile(const stream_call &c, const part &u, const tile &k,
                                                  const prompt_tile<HEADS> &tile, int slot, int d, bool begins,
                                                  token_quads (&ahead)[PROMPT_AHEAD], prompt_quads &s)
{
	prompt_reader<PACKED, WINDOW, TURNS, WRITES> reader(c, u, k, begins ? 0 : (int)PROMPT_AHEAD, d);
	prompt_writer<PACKED, WINDOW, TURNS, WRITES> writer(c, u, k, d);
	if (begins) {
#pragma unroll
		for (int e = 0; e < PROMPT_AHEAD; e++)
			reader.next(ahead[e]);
	}
	if (WINDOW && k.p == 0) {
		s.Q = s.P;
		s.P = {};
#pragma unroll
		for (int i = 0; i < QUAD; i++)
			s.turned.at[i] = -0.0f; /* the block's last slot is its own suffix, and -0 adds nothing to any bits */
	}
	int i = 0;
#pragma unroll 1
	for (; i + PROMPT_AHEAD <= k.count; i += PROMPT_AHEAD) {
#pragma unroll
		for (int e = 0; e < PROMPT_AHEAD; e++) {
			writer.next(tile.by[i + e][slot], k.present >> (i + e) & 1, i + e < writer.suffixes, ahead[e], s);
			reader.next(ahead[e]);
		}
	}
#pragma unroll
	for (int e = 0; e < PROMPT_AHEAD; e++) /* the end of the block or stretch */
		if (i + e < k.count)
			writer.next(tile.by[i + e][slot], k.present >> (i + e) & 1, i + e < writer.suffixes, ahead[e], s);
}

/* Load the aggregates before a tile. */
template <bool PACKED, bool WINDOW>
static __device__ __forceinline__ void load_quads(const stream_call &c, const part &u, const tile &k, int64_t d,
                                                  prompt_quads &s)
{
	if (c.aggregates > 0)
		s.P = load_quad<PACKED>(prefix_at(c, u).s, d, c.dh);
	if (WINDOW)
		s.Q = load_quad<PACKED>(running_at(c, u).s, d, c.dh);
	if (WINDOW && k.turns && k.p > 0)
		s.turned = load_quad<PACKED>(turned_m(c, u, k, -1) + vector_offset(c, u), d, c.dh);
}

template <bool PACKED, bool WINDOW>
static __device__ __forceinline__ void store_quads(const stream_call &c, const part &u, int64_t d, const prompt_quads &s)
{
	if (c.aggregates > 0)
		store_quad<PACKED>(prefix_at(c, u).s, d, c.dh, s.P);
	if (WINDOW)
		store_quad<PACKED>(running_at(c, u).s, d, c.dh, s.Q);
}

/* A lane's first quad, from tile to tile. */
struct prompt_channels {
	prompt_quads first;
	token_quads ahead[PROMPT_AHEAD];
	bool begins; /* nothing is ahead */
};

template <int LANES, bool PACKED, bool WINDOW, bool TURNS, bool WRITES>
static __device__ __forceinline__ void channels_of_tile(const stream_call &c, const part &u, const tile &k,
                                                        const prompt_tile<WARP / LANES> &tile, prompt_channels &s)
{
	const int slot = threadIdx.x % WARP / LANES;
	const bool many = LANES == WARP && c.dh > WARP * QUAD; /* quads per lane */
	apply_tile<PACKED, WINDOW, TURNS, WRITES>(c, u, k, tile, slot, (int)u.first, s.begins, s.ahead, s.first);
	for (int64_t d = u.first + WARP * QUAD; many && d < c.dh; d += WARP * QUAD) {
		prompt_quads other = {};
		load_quads<PACKED, WINDOW>(c, u, k, d, other);
		apply_tile<PACKED, WINDOW, TURNS, WRITES>(c, u, k, tile, slot, (int)d, true, s.ahead, other);
		store_quads<PACKED, WINDOW>(c, u, d, other);
	}
	s.begins = many || k.count == k.left;
}

/* --- a stretch ---------------------------------------------------------------------------------- */

/* A block has a stretch of a group of heads. */
template <int LANES, bool PACKED, bool WINDOW>
static __device__ __forceinline__ void prompt_block(const stream_call &c)
{
	enum { HEADS = WARP / LANES };
	const unsigned groups = (unsigned)c.groups, number = blockIdx.x / groups;
	const unsigned stage = threadIdx.x / WARP;
	prompt_board<HEADS> &board = *shared_memory<prompt_board<HEADS>>();
	prefetch_weights(c, blockIdx.x % groups * HEADS * c.dh, HEADS * c.dh, threadIdx.x % WARP, false);
	wait_for_previous();
	let_next_begin();
	const stretch s = stretch_at(c, number);
	if (s.index > 0 && s.first >= s.stop)
		return;
	part u = stream_part_of<LANES>(c, s.row, blockIdx.x % groups);
	u.state = s.index > 0 ? c.copies + (number - c.rows) * c.state_floats
	                      : c.pool + c.slot[u.row] * c.slot_floats + c.offset;
	u.token = tokens_of(c.start, c.rows, c.n, u.row).first;
	const unsigned position = (unsigned)c.position[u.row];
	tile k = first_tile(c, u, s, position);
	const bool reads = k.count > 0, has_channels = u.present && u.first < c.dh;
	if (s.index == 0 && position == 0 && reads) {
		restart<LANES, PACKED>(c, u, stage, PROMPT_WARPS);
		__syncthreads(); /* other lanes read it */
	}
	const scalars nothing = {STREAM_EMPTY, 0.0f};
	prompt_scalars sums = {nothing, nothing, nothing};
	prompt_channels channels = {};
	channels.begins = true;
	if (s.index == 0 && reads && u.present && c.aggregates > 0)
		sums.P = load_scalars(prefix_at(c, u));
	if (s.index == 0 && reads && u.present && WINDOW)
		sums.Q = load_scalars(running_at(c, u));
	if (s.index == 0 && reads && u.present && WINDOW && k.p > 0)
		sums.turned = scalars_at(c, turned_m(c, u, k, -1));
	if (s.index == 0 && reads && has_channels)
		load_quads<PACKED, WINDOW>(c, u, k, u.first, channels.first);
	int idle = reads ? PROMPT_WARPS - 1 - (int)stage : 0; /* steps of the stages after this one's last tile */
	for (unsigned step = 0; k.count > 0 || idle-- > 0; step++) {
		__syncthreads();
		prompt_tile<HEADS> &t = board.tiles[(step - stage) % PROMPT_WARPS];
		if (step < stage || k.count == 0)
			continue;
		if (stage == 0)
			score_tile<LANES, PACKED>(c, u, k, t);
		else if (stage == 1)
			merge_tile<LANES, WINDOW>(c, u, k, sums, t, board);
		else if (stage == 2)
			finish_tile<HEADS>(c, u, k, t);
		else if (has_channels && !k.silent && c.g)
			channels_of_tile<LANES, PACKED, WINDOW, WINDOW, true>(c, u, k, t, channels);
		else if (has_channels && k.turns)
			channels_of_tile<LANES, PACKED, WINDOW, WINDOW, false>(c, u, k, t, channels);
		else if (has_channels)
			channels_of_tile<LANES, PACKED, WINDOW, false, false>(c, u, k, t, channels);
		next_tile(c, u, s, k);
	}
	if (stage == 1 && reads && u.present && u.leads && c.aggregates > 0)
		store_scalars(prefix_at(c, u), sums.P);
	if (stage == 1 && reads && u.present && u.leads && WINDOW)
		store_scalars(running_at(c, u), sums.Q);
	if (stage == 3 && reads && has_channels)
		store_quads<PACKED, WINDOW>(c, u, u.first, channels.first);
	if (stage == 0 && s.index == 0)
		blank<LANES, PACKED, false>(c, u, c.length[u.row]);
}

#endif
