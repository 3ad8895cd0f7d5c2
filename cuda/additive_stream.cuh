/* additive_stream.cuh - additive_stream: one round of additive attention, token by token, on the state of
 * engine/tensor/ops/additive_stream.h.
 *
 * A warp owns a few neighbouring heads of one session, a part of a warp (stream.cuh) each head. Warps do not
 * communicate, so the grid, and with it the batch, changes no bit. Tokens are read up to STREAM_TILE at a time, in
 * three passes:
 *   1. scores, a token at a time, lanes along the channels: a = scale · w·x;
 *   2. scalars: maxima, sums and exponentials of the merges (steps 1 to 4 of the header), which leave eight factors per
 *      token and head in shared memory. The first lane of each head does the merges that follow from those of the token
 *      before, then all its lanes do the rest, a token each;
 *   3. channels: every lane applies the factors, token after token. P, Q and the aggregate turned last stay in
 *      registers.
 *
 * A lane reads and writes only its own channels, so nothing waits for another thread. Decode is the same with a tile of
 * one token, so cutting the tokens into calls changes no bit either. Products and sums are spelled as instructions,
 * since the compiler could otherwise fuse them differently in different places.
 *
 * The state that the next token needs is loaded while a token is computed. The load comes after the store of the turned
 * aggregate, which may be the next token's suffix, and before the other stores, which the next token does not read.
 *
 * With a single token its merges run in parallel, one on each of the first lanes of a head.
 *
 * The prompt of a windowed round is cut into stretches of whole blocks, which warps read side by side. A block depends
 * on the two before it alone. So a stretch other than the first begins two blocks earlier, with an empty state of its
 * own and without output. At its first token the state has the bits that the tokens before would have left. A second
 * kernel copies the last stretch's state to the slot.
 *
 * In decode of few sessions the kernel may normalise x and gate g too (stream_chain). All warps of a block then have
 * the same row and share its sums, in the order of layernorm.cuh, and g is not stored.
 *
 * Bytes per token, round and channel in decode: in a window 24 are read (P, Q, three slots, x) and 20 written (P, Q,
 * two slots, g); globally 8 and 8. In a prompt P and Q move once per tile, and the slots of short windows stay in the
 * caches. */
#ifndef CUDA_ADDITIVE_STREAM_CUH
#define CUDA_ADDITIVE_STREAM_CUH

#include "cuda/layernorm.cuh"
#include "cuda/stream.cuh"

extern "C" {
#include "engine/tensor/ops/additive_stream.h"
}

enum { STREAM_TILE = 16, STREAM_WARPS = 4 /* the most of a block */ };

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
	int tile, warps;             /* warps: per block */
	unsigned stretch, stretches; /* tokens, 0: not cut; stretches of all rows, of which the first ones begin rows */
	float *copies;               /* [stretches - rows][state_floats]: states of the others */
	int64_t state_floats;
	row_norm norm; /* chained: layernorm of x */
	const float *base, *factor;
	float *y; /* base + g ⊙ factor */
};

/* A lane's part of a session. */
struct part {
	float *state;
	int64_t row, head, first; /* first: of its channels in the head */
	int64_t token;            /* first token of its sequence in the call */
	bool present, leads;      /* the head exists; this is its first lane */
	bool silent;              /* tokens have no output */
	float mean, rstd;         /* chained: statistics of the row */
};

/* Factors of one token's merges in one head. */
struct __align__(16) factors
{
	float turned, before;            /* turned := turned ⊕ before */
	float prefix, prefix_x;          /* P := P ⊕ token */
	float running, running_x;        /* Q := Q ⊕ token */
	float from_running, from_suffix; /* g; before finish_tokens the running m and z */
	float suffix_m, suffix_z;        /* for finish_tokens */
};

/* --- layout of the state ----------------------------------------------------------------------- */

/* Offset p in block j; 0, 0 without blocks. */
struct place {
	int64_t j, p;
};

static __device__ __forceinline__ place next_place(const stream_call &c, place t)
{
	if (c.block == 0)
		return t;
	return t.p + 1 < c.block ? place{t.j, t.p + 1} : place{t.j + 1, 0};
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

/* Slot data that a token reads, as scalars or as channels. `before` is the aggregate that the previous token turned,
 * except at the first turn of a block and of a call. */
template <class T> struct slots_read {
	T turned, before, suffix;
};

template <class T, class Get>
static __device__ __forceinline__ void look(const stream_call &c, const part &u, place t, bool fresh, Get get,
                                            slots_read<T> &r)
{
	if (turns(t)) {
		r.turned = get(turned_at(c, u, t));
		if (fresh || t.p == 1)
			r.before = get(slot_at(c, u, t.j - 1, c.block - t.p));
	}
	if (reaches(c, t))
		r.suffix = get(slot_at(c, u, t.j, first_suffix(c, t)));
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

/* --- stretches ---------------------------------------------------------------------------------- */

/* Tokens first … stop - 1 of a row's call, none if first ≥ stop. index: of the stretch in its row. */
struct stretch {
	unsigned row, index, first, stop;
};

/* Stretches after the first begin at multiples of c.stretch, at least c.stretch after the row. So a row of n tokens has
 * at most n / c.stretch of them. Those of all rows have numbers in this order. */
static __device__ __forceinline__ unsigned stretches_before(const stream_call &c, unsigned row)
{
	return (unsigned)tokens_of(c.start, c.rows, c.n, row).first / c.stretch;
}
template <bool CHAINED> static __device__ __forceinline__ stretch stretch_at(const stream_call &c, unsigned number)
{
	stretch s = {number, 0, 0, 0};
	if (!CHAINED && number >= c.rows) {
		const unsigned of_others = number - (unsigned)c.rows, token = of_others * c.stretch + c.stretch - 1;
		s.row = (unsigned)sequence_of(c.start, c.rows, c.n, token);
		s.index = of_others - stretches_before(c, s.row) + 1;
	}
	s.stop = (unsigned)c.length[s.row];
	if (!CHAINED && c.stretch > 0) {
		const unsigned position = (unsigned)c.position[s.row];
		const unsigned border =
		    (position + 2 * c.stretch - 1) / c.stretch * c.stretch - position + s.index * c.stretch;
		s.first = s.index > 0 ? border - c.stretch : 0;
		s.stop = min(s.stop, border);
	}
	return s;
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
static __device__ __forceinline__ quad load_x(const stream_call &c, const part &u, int64_t token, int64_t d)
{
	const int64_t head = u.head * c.dh;
	quad x = load_quad<PACKED>(c.x + (u.token + token) * c.d + head, d, c.dh);
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
static __device__ __forceinline__ void store_g(const stream_call &c, bool silent, int64_t at, int64_t d, quad g,
                                               const quad &base, const quad &factor)
{
	if constexpr (CHAINED) {
#pragma unroll
		for (int i = 0; i < QUAD; i++)
			g.at[i] = __fmaf_rn(g.at[i], factor.at[i], base.at[i]);
		store_quad<PACKED>(c.y + at, d, c.dh, g);
	} else if (c.g && !silent) {
		store_quad<PACKED>(c.g + at, d, c.dh, g);
	}
}

/* --- 1. scores ---------------------------------------------------------------------------------- */

template <int LANES, bool PACKED, bool CHAINED>
static __device__ __forceinline__ float score_of(const stream_call &c, const part &u, int64_t token)
{
	const float *w = c.w + u.head * c.dh;
	float sum = 0.0f;
	for (int64_t d = u.first; u.present && d < c.dh; d += LANES * QUAD)
		sum = quad_dot(load_quad<PACKED>(w, d, c.dh), load_x<PACKED, CHAINED>(c, u, token, d), sum);
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

/* Merge the scalars of tokens first … first + count - 1 of one head. score, f: arrays of the tile, `step` from token to
 * token. */
static __device__ __forceinline__ void merge_tokens(const stream_call &c, const part &u, place t, int64_t first,
                                                    int count, const float *score, factors *f, int step)
{
	slots_read<scalars> r = {};
	scalars P = {STREAM_EMPTY, 0.0f}, Q = P;
	if (c.aggregates > 0)
		P = load_scalars(prefix_at(c, u));
	if (c.block > 0)
		Q = load_scalars(running_at(c, u));
	look(c, u, t, true, load_scalars, r);
	for (int i = 0; i < count; i++) {
		const bool present = token_present(c, u, first + i);
		const scalars token = present ? scalars{score[i * step], 1.0f} : scalars{STREAM_EMPTY, 0.0f};
		const scalars suffix = reaches(c, t) ? r.suffix : scalars{STREAM_EMPTY, 0.0f};
		const place next = next_place(c, t);
		scalars total = token;
		factors to = {};
		if (turns(t)) {
			merge(r.turned, r.before, to.turned, to.before);
			store_scalars(turned_at(c, u, t), r.turned);
			r.before = r.turned;
		}
		if (i + 1 < count)
			look(c, u, next, false, load_scalars, r);
		if (c.block > 0 && t.p == 0) {
			Q = P;
			P = {STREAM_EMPTY, 0.0f};
		}
		if (c.aggregates > 0) {
			merge(P, token, to.prefix, to.prefix_x);
			total = P;
		}
		if (c.block > 0) {
			merge(Q, token, to.running, to.running_x);
			total = Q;
			store_scalars(slot_at(c, u, t.j, t.p), token);
		}
		to.from_running = total.m;
		to.from_suffix = total.z;
		to.suffix_m = suffix.m;
		to.suffix_z = suffix.z;
		f[i * step] = to;
		t = next;
	}
	if (c.aggregates > 0)
		store_scalars(prefix_at(c, u), P);
	if (c.block > 0)
		store_scalars(running_at(c, u), Q);
}

/* Merge each token's running aggregate with its suffix, a lane of the head for each token. */
template <int LANES>
static __device__ __forceinline__ void finish_tokens(const stream_call &c, const part &u, int64_t first, int count,
                                                     const float *score, factors *f, int step)
{
	for (int i = threadIdx.x % LANES; u.present && i < count; i += LANES) {
		factors &to = f[i * step];
		scalars total = {to.from_running, to.from_suffix};
		float from_running = 1.0f, from_suffix = 0.0f;
		if (to.suffix_m != STREAM_EMPTY)
			merge(total, {to.suffix_m, to.suffix_z}, from_running, from_suffix);
		const float normalizer = finish(total, from_running, from_suffix);
		to.from_running = from_running;
		to.from_suffix = from_suffix;
		const int64_t at = (u.token + first + i) * c.heads + u.head;
		if (c.score && !u.silent)
			c.score[at] = score[i * step];
		if (c.log_normalizer && !u.silent)
			c.log_normalizer[at] = normalizer;
	}
}

/* Both of these for one token, by all lanes of the warp. */
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

/* A quad of the aggregates that a lane keeps. */
struct channels {
	quad P, Q;
	slots_read<quad> r;
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
	look(c, u, t, true, get, s.r);
}

/* Channels d … d + 3 of tokens first … first + count - 1. */
template <bool PACKED, bool CHAINED>
static __device__ __forceinline__ void channels_of(const stream_call &c, const part &u, place t, int64_t first,
                                                   int count, const factors *f, int step, int64_t d, channels &s)
{
	auto get = [&](const aggregate &a) { return load_quad<PACKED>(a.s, d, c.dh); };
	quad ahead = load_x<PACKED, CHAINED>(c, u, first, d);
	for (int i = 0; i < count; i++) {
		const int64_t at = (u.token + first + i) * c.d + u.head * c.dh;
		const factors by = f[i * step];
		const quad suffix = s.r.suffix;
		const place next = next_place(c, t);
		quad x = {}, g, none = {};
		if (token_present(c, u, first + i))
			x = ahead;
		if (i + 1 < count)
			ahead = load_x<PACKED, CHAINED>(c, u, first + i + 1, d);
		if (turns(t)) {
			quad_merge(s.r.turned, by.turned, s.r.before, by.before);
			store_quad<PACKED>(turned_at(c, u, t).s, d, c.dh, s.r.turned);
			s.r.before = s.r.turned;
		}
		if (i + 1 < count)
			look(c, u, next, false, get, s.r);
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
		quad_merge(g, by.from_running, reaches(c, t) ? suffix : none, by.from_suffix);
		store_g<PACKED, CHAINED>(c, u.silent, at, d, g, s.base, s.factor);
		t = next;
	}
	if (c.aggregates > 0)
		store_quad<PACKED>(prefix_at(c, u).s, d, c.dh, s.P);
	if (c.block > 0)
		store_quad<PACKED>(running_at(c, u).s, d, c.dh, s.Q);
}

/* --- sessions ------------------------------------------------------------------------------------- */

/* Write the state before position 0. */
template <int LANES, bool PACKED> static __device__ __forceinline__ void restart(const stream_call &c, const part &u)
{
	const quad zeros = {};
	for (int64_t i = 0; u.present && i < c.aggregates; i++) {
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
			store_g<PACKED, CHAINED>(c, false, i * c.d + u.head * c.dh, d, zeros, s.base, s.factor);
		}
	}
}

/* One tile of tokens. f, score: [tile][heads of the warp], from the lane's head on. */
template <int LANES, bool PACKED, bool CHAINED>
static __device__ __forceinline__ void tile_of(const stream_call &c, part &u, int64_t position, int64_t first,
                                               int count, float *score, factors *f, row_sums *sums)
{
	enum { HEADS = WARP / LANES };
	place t = {};
	if (c.block > 0) { /* positions fit 32 bits, and so do blocks */
		const unsigned at = (unsigned)(position + first), block = (unsigned)c.block;
		t = {at / block, at % block};
	}
	channels s;
	if (u.present && u.first < c.dh) /* loaded before the scalars, which wait for memory too */
		open_channels<PACKED, CHAINED>(c, u, t, u.first, s);
	if constexpr (CHAINED)
		find_statistics(c, u, sums);
	if (CHAINED || c.tile == 1) {
		scalars_of_token<LANES>(c, u, t, score_of<LANES, PACKED, CHAINED>(c, u, first), f);
	} else {
#pragma unroll 4
		for (int i = 0; i < count; i++) {
			const float a = score_of<LANES, PACKED, CHAINED>(c, u, first + i);
			if (u.leads)
				score[i * HEADS] = a;
		}
		if (u.present && u.leads)
			merge_tokens(c, u, t, first, count, score, f, HEADS);
		__syncwarp();
		finish_tokens<LANES>(c, u, first, count, score, f, HEADS);
	}
	__syncwarp();
	for (int64_t d = u.first; u.present && d < c.dh; d += LANES * QUAD) {
		if (d != u.first)
			open_channels<PACKED, CHAINED>(c, u, t, d, s);
		channels_of<PACKED, CHAINED>(c, u, t, first, count, f, HEADS, d, s);
	}
	__syncwarp();
}

/* Bytes of shared memory per warp: factors [tile][heads], scores [tile][heads]. */
static inline __device__ __host__ size_t warp_bytes(int tile, int heads)
{
	return ((size_t)(tile * heads) * (sizeof(factors) + sizeof(float)) + 15) / 16 * 16;
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
	if (unit >= c.stretches * groups)
		return;
	const stretch s = stretch_at<CHAINED>(c, unit / groups);
	if (s.index > 0 && s.first >= s.stop)
		return;
	part u;
	u.row = s.row;
	u.head = (int64_t)(unit % groups) * HEADS + lane / LANES;
	u.first = lane % LANES * QUAD;
	u.present = u.head < c.heads;
	u.leads = lane % LANES == 0;
	u.state = s.index > 0 ? c.copies + (unit / groups - (unsigned)c.rows) * c.state_floats
	                      : c.pool + c.slot[u.row] * c.slot_floats + c.offset;
	u.token = tokens_at<CHAINED>(c, u.row).first;
	row_sums *sums = shared_memory<row_sums>(c.warps * warp_bytes(c.tile, HEADS));
	factors *f = shared_memory<factors>(warp * warp_bytes(c.tile, HEADS));
	float *score = (float *)(f + c.tile * HEADS);
	const int64_t position = c.position[u.row];
	if (s.index > 0 || (position == 0 && s.stop > 0)) {
		restart<LANES, PACKED>(c, u);
		__syncwarp(); /* other lanes read its scalars */
	}
	for (unsigned first = s.index > 0 ? s.first - 2 * (unsigned)c.block : 0, count; first < s.stop;
	     first += count) {
		u.silent = first < s.first;
		count = CHAINED ? 1 : min((u.silent ? s.first : s.stop) - first, (unsigned)c.tile);
		tile_of<LANES, PACKED, CHAINED>(c, u, position, first, (int)count, score + lane / LANES,
		                                f + lane / LANES, sums);
	}
	if (s.index == 0)
		blank<LANES, PACKED, CHAINED>(c, u, c.stretch > 0 ? c.length[u.row] : s.stop);
}

#endif
