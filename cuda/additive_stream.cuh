/* additive_stream.cuh - additive_stream of one token per session: one round of additive attention on the state of
 * engine/tensor/ops/additive_stream.h. Several tokens are in additive_prompt.cuh.
 *
 * A warp owns a few neighbouring heads of one session, a part of a warp (stream.cuh) each head. Warps do not
 * communicate, so the grid, and with it the batch, changes no bit. A token takes three passes:
 *   1. score, lanes along the channels: a = scale · w·x;
 *   2. scalars: maxima, sums and exponentials of the merges (steps 1 to 4 of the header), one merge on each of the first
 *      lanes of a head. They leave eight factors per head in shared memory;
 *   3. channels: every lane applies the factors.
 *
 * A lane reads and writes only its own channels, so nothing waits for another thread. Products and sums are spelled as
 * instructions, since the compiler could otherwise fuse them differently in different places.
 *
 * With few sessions the kernel may normalise x and gate g too (stream_chain). All warps of a block then have the same
 * row and share its sums, in the order of layernorm.cuh, and g is not stored.
 *
 * Bytes per token, round and channel: in a window 24 are read (P, Q, three slots, x) and 20 written (P, Q, two slots,
 * g); globally 8 and 8. */
#ifndef CUDA_ADDITIVE_STREAM_CUH
#define CUDA_ADDITIVE_STREAM_CUH

#include "cuda/layernorm.cuh"
#include "cuda/stream.cuh"

extern "C" {
#include "engine/tensor/ops/additive_stream.h"
}

enum { STREAM_WARPS = 4 /* the most of a block */ };

/* Arguments of the call. */
struct stream_call {
	const float *x, *w;
	float *pool, *g, *score, *log_normalizer;               /* the last three may be NULL */
	const int32_t *slot, *position, *length, *mask, *start; /* the last two may be NULL */
	int64_t rows, n, d, heads, dh, groups;                  /* groups: warps per row */
	int64_t padded_groups;                                  /* chained: with the idle warps of the last block */
	int64_t window, block, width, aggregates;
	int64_t slot_floats, offset;
	float scale;
	int warps;                   /* per block */
	unsigned stretch, stretches; /* tokens, 0: not cut; stretches of all rows, of which the first ones begin rows */
	float *copies;               /* [stretches - rows][state_floats]: states of the others */
	int64_t state_floats;
	row_norm norm; /* chained: layernorm of x */
	const float *base, *factor;
	float *y;      /* base + g ⊙ factor */
	float *normed; /* program_rounds.cuh: the address of x, which is layernorm(base) */
};

/* A lane's part of a session. */
struct part {
	float *state;
	int64_t row, head, first; /* first: of its channels in the head */
	int64_t token;            /* first token of its sequence in the call */
	bool present, leads;      /* the head exists; this is its first lane */
	float mean, rstd;         /* chained: statistics of the row */
};

/* A lane's part of group `group` of a row's heads. */
template <int LANES>
static __device__ __forceinline__ part stream_part_of(const stream_call &c, int64_t row, int64_t group)
{
	const int lane = threadIdx.x % WARP;
	part u = {};
	u.row = row;
	u.head = group * (WARP / LANES) + lane / LANES;
	u.first = lane % LANES * QUAD;
	u.present = u.head < c.heads;
	u.leads = lane % LANES == 0;
	return u;
}

/* Factors of one token's merges in one head. */
struct __align__(16) factors
{
	float turned, before;            /* turned := turned ⊕ before */
	float prefix, prefix_x;          /* P := P ⊕ token */
	float running, running_x;        /* Q := Q ⊕ token */
	float from_running, from_suffix; /* g */
};

/* --- layout of the state ----------------------------------------------------------------------- */

/* Offset p in block j; 0, 0 without blocks. */
struct place {
	int64_t j, p;
};

/* The place of a position. Positions fit 32 bits, and so do blocks. */
static __device__ __forceinline__ place place_at(const stream_call &c, int64_t position)
{
	if (c.block == 0)
		return {};
	const unsigned at = (unsigned)position, block = (unsigned)c.block;
	return {at / block, at % block};
}

static __device__ __forceinline__ bool turns(place t)
{
	return t.j >= 1 && t.p >= 1;
}

/* First suffix of block j-2 in the window, as stream_first(). */
static __device__ __forceinline__ int64_t first_suffix(const stream_call &c, place t)
{
	return c.window % 2 ? t.p : t.p + 1;
}

static __device__ __forceinline__ bool reaches(const stream_call &c, place t)
{
	return t.j >= 2 && first_suffix(c, t) < c.block;
}

/* One head of an aggregate in the state. */
struct aggregate {
	float *m, *z, *s;
};

static __device__ __forceinline__ aggregate aggregate_at(const stream_call &c, const part &u, int64_t index)
{
	float *first = u.state + index * c.width;
	return {first + u.head, first + c.heads + u.head, first + 2 * c.heads + u.head * c.dh};
}

static __device__ __forceinline__ aggregate prefix_at(const stream_call &c, const part &u)
{
	return aggregate_at(c, u, 0);
}

static __device__ __forceinline__ aggregate running_at(const stream_call &c, const part &u)
{
	return aggregate_at(c, u, 1);
}

/* Slot `index` of block j. */
static __device__ __forceinline__ aggregate slot_at(const stream_call &c, const part &u, int64_t j, int64_t index)
{
	return aggregate_at(c, u, 2 + (j & 1) * c.block + index);
}

static __device__ __forceinline__ aggregate turned_at(const stream_call &c, const part &u, place t)
{
	return slot_at(c, u, t.j - 1, c.block - 1 - t.p);
}

/* Chained: one token per row. */
template <bool CHAINED> static __device__ __forceinline__ token_span tokens_at(const stream_call &c, int64_t row)
{
	if constexpr (CHAINED)
		return {row, 1};
	else
		return tokens_of(c.start, c.rows, c.n, row);
}

static __device__ __forceinline__ bool token_present(const stream_call &c, const part &u, int64_t token)
{
	return !c.mask || c.mask[u.token + token] != 0;
}

/* --- x and g ------------------------------------------------------------------------------------ */

/* Sums of a block's row by its warps, one after another. */
struct row_sums {
	float sum[NORM_LIMIT / WARP], squares[NORM_LIMIT / WARP];
};

template <bool SQUARES>
static __device__ __forceinline__ float row_sum(const stream_call &c, const float *x, float *sums, float mean)
{
	const int at = threadIdx.x % WARP % c.norm.group, warps = row_warps(c.norm);
#pragma unroll 1
	for (int i = threadIdx.x / WARP; i < warps; i += blockDim.x / WARP) {
		const float share = warp_share<SQUARES>(c.norm, x, at + i * WARP, mean);
		if (threadIdx.x % WARP == 0)
			sums[i] = share;
	}
	__syncthreads();
	return sum_of_warps(sums, warps);
}

/* Find mean and rstd of the row. Chained only; all threads of a block call this, with a call of one token. */
static __device__ __forceinline__ void find_statistics(const stream_call &c, part &u, row_sums *s)
{
	const float *x = c.x + u.row * c.d;
	u.mean = mean_of(row_sum<false>(c, x, s->sum, 0.0f), c.norm.share);
	u.rstd = rstd_of(row_sum<true>(c, x, s->squares, u.mean), c.norm);
}

template <bool PACKED, bool CHAINED>
static __device__ __forceinline__ quad load_x(const stream_call &c, const part &u, int64_t d)
{
	const int64_t head = u.head * c.dh;
	quad x = load_quad<PACKED>(c.x + u.token * c.d + head, d, c.dh);
	if constexpr (CHAINED) {
		const quad weight = load_quad<PACKED>(c.norm.weight + head, d, c.dh),
		           bias = load_quad<PACKED>(c.norm.bias + head, d, c.dh);
#pragma unroll
		for (int i = 0; i < QUAD; i++)
			x.at[i] = __fmaf_rn(weight.at[i], normalised(x.at[i], u.mean, u.rstd), bias.at[i]);
	}
	return x;
}

/* Store channels d … d + 3 of g at `at`; chained: of y = base + g ⊙ factor. */
template <bool PACKED, bool CHAINED>
static __device__ __forceinline__ void store_g(const stream_call &c, int64_t at, int64_t d, quad g, const quad &base,
                                               const quad &factor)
{
	if constexpr (CHAINED) {
#pragma unroll
		for (int i = 0; i < QUAD; i++)
			g.at[i] = __fmaf_rn(g.at[i], factor.at[i], base.at[i]);
		store_quad<PACKED>(c.y + at, d, c.dh, g);
	} else if (c.g) {
		store_quad<PACKED>(c.g + at, d, c.dh, g);
	}
}

/* --- 1. scores ---------------------------------------------------------------------------------- */

template <int LANES, bool PACKED, bool CHAINED>
static __device__ __forceinline__ float score_of(const stream_call &c, const part &u)
{
	const float *w = c.w + u.head * c.dh;
	float sum = 0.0f;
	for (int64_t d = u.first; u.present && d < c.dh; d += LANES * QUAD)
		sum = quad_dot(load_quad<PACKED>(w, d, c.dh), load_x<PACKED, CHAINED>(c, u, d), sum);
	return __fmul_rn(c.scale, warp_sum<LANES>(sum));
}

/* --- 2. scalars ------------------------------------------------------------------------------------ */

struct scalars {
	float m, z;
};

static __device__ __forceinline__ scalars load_scalars(const aggregate &a)
{
	return {*a.m, *a.z};
}

static __device__ __forceinline__ void store_scalars(const aggregate &a, scalars x)
{
	*a.m = x.m;
	*a.z = x.z;
}

/* a := a ⊕ b with the factors of either side. */
static __device__ __forceinline__ void merge(scalars &a, scalars b, float &fa, float &fb)
{
	const float top = fmaxf(a.m, b.m);
	fa = expf(a.m - top);
	fb = expf(b.m - top);
	a.z = __fmaf_rn(fa, a.z, __fmul_rn(fb, b.z));
	a.m = top;
}

/* Convert the factors to those of g; return M. */
static __device__ __forceinline__ float finish(scalars total, float &from_running, float &from_suffix)
{
	const bool empty = !(total.z > 0.0f);
	const float inverse = empty ? 0.0f : __frcp_rn(total.z);
	from_running = __fmul_rn(from_running, inverse);
	from_suffix = __fmul_rn(from_suffix, inverse);
	return empty ? -INFINITY : __fadd_rn(total.m, logf(total.z));
}

/* Merge the scalars of the token, by all lanes of the warp. */
template <int LANES>
static __device__ __forceinline__ void scalars_of_token(const stream_call &c, const part &u, place t, float score,
                                                        factors *f)
{
	enum { TURNED, PREFIX, RUNNING, MERGES };
	const int which = threadIdx.x % LANES;
	const bool begins = c.block > 0 && t.p == 0; /* the prefix becomes the running aggregate and is emptied */
	const bool merges = which == TURNED    ? turns(t)
	                    : which == PREFIX  ? c.aggregates > 0
	                    : which == RUNNING ? c.block > 0
	                                       : false;
	const bool mine = u.present && merges, ends = u.present && which == (c.block > 0 ? RUNNING : PREFIX);
	const scalars token = u.present && token_present(c, u, 0) ? scalars{score, 1.0f} : scalars{STREAM_EMPTY, 0.0f};
	const bool from_slots = ends && c.block > 0 && reaches(c, t);
	const int64_t to_turn =
	    2 + ((t.j - 1) & 1) * c.block + c.block - t.p; /* slot_at; the turned slot precedes it */
	scalars a = {STREAM_EMPTY, 0.0f}, b = token, suffix = {};
	float fa = 0.0f, fb = 0.0f;
	if (mine && (which != PREFIX || !begins))
		a = load_scalars(aggregate_at(c, u, which == TURNED ? to_turn - 1 : which == RUNNING && !begins));
	if (mine && which == TURNED)
		b = load_scalars(aggregate_at(c, u, to_turn));
	if (from_slots)
		suffix = load_scalars(slot_at(c, u, t.j, first_suffix(c, t)));
	__syncwarp(); /* the prefix has been read by both lanes that need it */
	if (mine) {
		merge(a, b, fa, fb);
		store_scalars(aggregate_at(c, u, which == TURNED ? to_turn - 1 : which == RUNNING), a);
	}
	if (u.present && which < MERGES)
		((float2 *)f)[which] =
		    make_float2(fa, fb); /* turned and before; prefix and prefix_x; running and running_x */
	if (!ends)
		return;
	scalars total = mine ? a : token;
	float from_running = 1.0f, from_suffix = 0.0f;
	if (from_slots)
		merge(total, suffix, from_running, from_suffix);
	if (c.block > 0)
		store_scalars(slot_at(c, u, t.j, t.p), token);
	const float normalizer = finish(total, from_running, from_suffix);
	f->from_running = from_running;
	f->from_suffix = from_suffix;
	const int64_t of_head = u.token * c.heads + u.head;
	if (c.score)
		c.score[of_head] = score;
	if (c.log_normalizer)
		c.log_normalizer[of_head] = normalizer;
}

/* --- 3. channels ------------------------------------------------------------------------------------ */

/* A quad of what the token reads. */
struct channels {
	quad P, Q, turned, before, suffix;
	quad base, factor; /* chained */
};

/* Chained: load the operands that gate g. */
template <bool PACKED>
static __device__ __forceinline__ void read_operands(const stream_call &c, const part &u, int64_t d, channels &s)
{
	const int64_t at = u.row * c.d + u.head * c.dh;
	s.base = load_quad<PACKED>(c.base + at, d, c.dh);
	s.factor = load_quad<PACKED>(c.factor + at, d, c.dh);
}

template <bool PACKED, bool CHAINED>
static __device__ __forceinline__ void open_channels(const stream_call &c, const part &u, place t, int64_t d,
                                                     channels &s)
{
	auto get = [&](const aggregate &a) { return load_quad<PACKED>(a.s, d, c.dh); };
	s = {};
	if constexpr (CHAINED)
		read_operands<PACKED>(c, u, d, s);
	if (c.aggregates > 0)
		s.P = get(prefix_at(c, u));
	if (c.block > 0)
		s.Q = get(running_at(c, u));
	if (turns(t)) {
		s.turned = get(turned_at(c, u, t));
		s.before = get(slot_at(c, u, t.j - 1, c.block - t.p));
	}
	if (reaches(c, t))
		s.suffix = get(slot_at(c, u, t.j, first_suffix(c, t)));
}

/* Channels d … d + 3 of the token. */
template <bool PACKED, bool CHAINED>
static __device__ __forceinline__ void channels_of(const stream_call &c, const part &u, place t, const factors &by,
                                                   int64_t d, channels &s)
{
	quad x = {}, g;
	if (token_present(c, u, 0))
		x = load_x<PACKED, CHAINED>(c, u, d);
	if (turns(t)) {
		quad_merge(s.turned, by.turned, s.before, by.before);
		store_quad<PACKED>(turned_at(c, u, t).s, d, c.dh, s.turned);
	}
	if (c.block > 0 && t.p == 0) {
		s.Q = s.P;
		s.P = {};
	}
	quad_merge(s.P, by.prefix, x, by.prefix_x);
	g = c.aggregates > 0 ? s.P : x;
	if (c.block > 0) {
		quad_merge(s.Q, by.running, x, by.running_x);
		g = s.Q;
		store_quad<PACKED>(slot_at(c, u, t.j, t.p).s, d, c.dh, x);
	}
	quad_merge(g, by.from_running, s.suffix, by.from_suffix);
	store_g<PACKED, CHAINED>(c, u.token * c.d + u.head * c.dh, d, g, s.base, s.factor);
	if (c.aggregates > 0)
		store_quad<PACKED>(prefix_at(c, u).s, d, c.dh, s.P);
	if (c.block > 0)
		store_quad<PACKED>(running_at(c, u).s, d, c.dh, s.Q);
}

/* --- sessions ------------------------------------------------------------------------------------- */

/* Write the state before position 0: this warp's share of the aggregates, every `warps`-th from `warp` on. */
template <int LANES, bool PACKED>
static __device__ __forceinline__ void restart(const stream_call &c, const part &u, int warp, int warps)
{
	const quad zeros = {};
	const int count = u.present ? (int)c.aggregates : 0;
#pragma unroll 4
	for (int i = warp; i < count; i += warps) {
		const aggregate a = aggregate_at(c, u, i);
		const bool running = i == 0 || (i == 1 && c.block > 0);
		if (u.leads)
			store_scalars(a, {running ? STREAM_EMPTY : 0.0f, 0.0f});
		for (int64_t d = u.first; d < c.dh; d += LANES * QUAD)
			store_quad<PACKED>(a.s, d, c.dh, zeros);
	}
}

/* Write zeros after the last token. */
template <int LANES, bool PACKED, bool CHAINED>
static __device__ __forceinline__ void blank(const stream_call &c, const part &u, int64_t length)
{
	const quad zeros = {};
	channels s = {};
	const token_span tokens = tokens_at<CHAINED>(c, u.row);
	const int64_t end = tokens.first + tokens.room;
	for (int64_t i = tokens.first + length; u.present && i < end; i++) {
		if (u.leads && c.score)
			c.score[i * c.heads + u.head] = 0.0f;
		if (u.leads && c.log_normalizer)
			c.log_normalizer[i * c.heads + u.head] = 0.0f;
		for (int64_t d = u.first; d < c.dh; d += LANES * QUAD) {
			if constexpr (CHAINED)
				read_operands<PACKED>(c, u, d, s);
			store_g<PACKED, CHAINED>(c, i * c.d + u.head * c.dh, d, zeros, s.base, s.factor);
		}
	}
}

/* The token. f: factors of the lane's head. */
template <int LANES, bool PACKED, bool CHAINED>
static __device__ __forceinline__ void token_of(const stream_call &c, part &u, int64_t position, factors *f,
                                                row_sums *sums)
{
	const place t = place_at(c, position);
	channels s;
	if (u.present && u.first < c.dh) /* loaded before the scalars, which wait for memory too */
		open_channels<PACKED, CHAINED>(c, u, t, u.first, s);
	if constexpr (CHAINED)
		find_statistics(c, u, sums);
	scalars_of_token<LANES>(c, u, t, score_of<LANES, PACKED, CHAINED>(c, u), f);
	__syncwarp();
	for (int64_t d = u.first; u.present && d < c.dh; d += LANES * QUAD) {
		if (d != u.first)
			open_channels<PACKED, CHAINED>(c, u, t, d, s);
		channels_of<PACKED, CHAINED>(c, u, t, *f, d, s);
	}
}

/* Bytes of shared memory per warp: factors of its heads. */
static inline __device__ __host__ size_t warp_bytes(int heads)
{
	return heads * sizeof(factors);
}

/* Prefetch the weights of channels first … first + count - 1 into the L2 cache. */
static __device__ __forceinline__ void prefetch_weights(const stream_call &c, int64_t first, int64_t count, int lane,
                                                        bool chained)
{
	enum { LINE = 128 / sizeof(float) };
	for (int64_t i = first + lane * LINE; i < min(first + count, c.d); i += WARP * LINE) {
		prefetch(c.w + i);
		if (chained) {
			prefetch(c.norm.weight + i);
			prefetch(c.norm.bias + i);
		}
	}
}

template <int LANES, bool PACKED, bool CHAINED>
static __device__ __forceinline__ void stream_block(const stream_call &c, unsigned block)
{
	enum { HEADS = WARP / LANES };
	const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
	const unsigned unit = block * c.warps + warp, groups = (unsigned)c.padded_groups;
	prefetch_weights(c, unit % groups * HEADS * c.dh, HEADS * c.dh, lane, CHAINED);
	wait_for_previous();
	let_next_begin();
	if (unit >= c.rows * groups)
		return;
	part u = stream_part_of<LANES>(c, unit / groups, unit % groups);
	u.state = c.pool + c.slot[u.row] * c.slot_floats + c.offset;
	u.token = tokens_at<CHAINED>(c, u.row).first;
	row_sums *sums = shared_memory<row_sums>(c.warps * warp_bytes(HEADS));
	factors *f = shared_memory<factors>(warp * warp_bytes(HEADS)) + lane / LANES;
	const int64_t position = c.position[u.row], length = c.length[u.row];
	if (position == 0 && length > 0) {
		restart<LANES, PACKED>(c, u, 0, 1);
		__syncwarp(); /* other lanes read its scalars */
	}
	if (length > 0)
		token_of<LANES, PACKED, CHAINED>(c, u, position, f, sums);
	blank<LANES, PACKED, CHAINED>(c, u, length);
}

#endif
