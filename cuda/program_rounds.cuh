/* program_rounds.cuh - rounds of additive attention that each block of a product computes itself (program.cuh).
 *
 * A part of a warp has a head, as in additive_stream.cuh, and every lane computes the head's scalars. The result needs
 * one running aggregate and at most one suffix. That is two merges instead of four, and 12 bytes of state and x per
 * channel instead of 24 (globally 8). The state is not written: later a PROGRAM_STREAM phase repeats the round for it.
 * The operations of what is common, and their order, are those of additive_stream.cuh. */
#ifndef CUDA_PROGRAM_ROUNDS_CUH
#define CUDA_PROGRAM_ROUNDS_CUH

#include "cuda/linear_narrow.cuh"
#include "cuda/program.cuh"

/* A head of a row's token, as its lanes see it. */
struct round_head {
	part u;
	int64_t at, end;    /* index of its first channel in x; channels, 0 if there is no such head */
	bool reads, counts; /* the row reads the token; it is not masked */
	bool runs, reaches; /* these aggregates exist */
	aggregate running, suffix;
	scalars of_running, of_suffix;
};

/* A quad of what earlier phases do not write. */
struct round_quads {
	quad w, running, suffix;
	quad weight, bias; /* gated: of layernorm */
};

/* Head `unit` of all rows' heads. */
template <int LANES> static __device__ __forceinline__ round_head round_head_of(const stream_call &c, unsigned unit)
{
	const unsigned heads = (unsigned)c.heads;
	round_head h = {};
	if (unit >= c.rows * heads)
		return h;
	part &u = h.u;
	u.row = u.token = unit / heads;
	u.head = unit % heads;
	u.first = threadIdx.x % LANES * QUAD;
	u.state = c.pool + c.slot[u.row] * c.slot_floats + c.offset;
	h.at = u.row * c.d + u.head * c.dh;
	h.end = c.dh;
	h.reads = c.length[u.row] > 0;
	h.counts = h.reads && token_present(c, u, 0);
	const int64_t position = h.reads ? c.position[u.row] : 0;
	const place t = place_at(c, position);
	h.runs = c.aggregates > 0 && position > 0;
	h.reaches = reaches(c, t);
	h.running = aggregate_at(c, u, c.block > 0 && t.p > 0); /* at p = 0 the prefix becomes the running aggregate */
	h.suffix = slot_at(c, u, t.j, first_suffix(c, t));
	h.of_running = h.runs ? load_scalars(h.running) : scalars{STREAM_EMPTY, 0.0f};
	if (h.reaches)
		h.of_suffix = load_scalars(h.suffix);
	return h;
}

template <bool GATED>
static __device__ __forceinline__ round_quads open_quads(const stream_call &c, const round_head &h, int64_t d)
{
	const int64_t head = h.u.head * c.dh;
	round_quads s = {};
	s.w = load_quad<true>(c.w + head, d, c.dh);
	if (GATED) {
		s.weight = load_quad<true>(c.norm.weight + head, d, c.dh);
		s.bias = load_quad<true>(c.norm.bias + head, d, c.dh);
	}
	if (h.runs)
		s.running = load_quad<true>(h.running.s, d, c.dh);
	if (h.reaches)
		s.suffix = load_quad<true>(h.suffix.s, d, c.dh);
	return s;
}

/* x, or gated, layernorm of base. */
template <bool GATED>
static __device__ __forceinline__ quad x_of(const stream_call &c, const round_head &h, const round_quads &s, int64_t d)
{
	quad x = load_quad<true>((GATED ? c.base : c.x) + h.at, d, c.dh);
#pragma unroll
	for (int i = 0; GATED && i < QUAD; i++)
		x.at[i] = __fmaf_rn(s.weight.at[i], normalised(x.at[i], h.u.mean, h.u.rstd), s.bias.at[i]);
	return x;
}

/* Compute a head's channels in `out` [rows, d]: what it pools, or gated, base + pooled ⊙ factor. s: the lane's first
 * quad. `stores`: also write the gated result, and x, to memory. */
template <int LANES, bool GATED>
static __device__ __forceinline__ void pool_head(const stream_call &c, const round_head &h, round_quads s, bool stores,
                                                 float *out)
{
	enum { ONE = LANES < WARP }; /* a lane has at most one quad */
	const int64_t first = h.u.first;
	quad x = {}, factor = {};
	float score = 0.0f, by_running = 0.0f, by_x = 0.0f, from_running = 1.0f, from_suffix = 0.0f;
	if (GATED && first < h.end)
		factor = load_quad<true>(c.factor + h.at, first, c.dh);
	for (int64_t d = first; d < h.end; d += LANES * QUAD) {
		const round_quads quads = d == first ? s : open_quads<GATED>(c, h, d);
		const quad part = x_of<GATED>(c, h, quads, d);
		score = quad_dot(quads.w, part, score);
		x = d == first ? part : x;
		if (ONE)
			break;
	}
	score = __fmul_rn(c.scale, warp_sum<LANES>(score));
	scalars total = h.counts ? scalars{score, 1.0f} : scalars{STREAM_EMPTY, 0.0f};
	if (c.aggregates > 0) {
		scalars running = h.of_running;
		merge(running, total, by_running, by_x);
		total = running;
	}
	if (h.reaches)
		merge(total, h.of_suffix, from_running, from_suffix);
	(void)finish(total, from_running, from_suffix);
	for (int64_t d = first; d < h.end; d += LANES * QUAD) {
		if (d != first) {
			s = open_quads<GATED>(c, h, d);
			x = x_of<GATED>(c, h, s, d);
			if (GATED)
				factor = load_quad<true>(c.factor + h.at, d, c.dh);
		}
		quad g = h.counts ? x : quad{};
		if (c.aggregates > 0) {
			quad_merge(s.running, by_running, g, by_x);
			g = s.running;
		}
		quad_merge(g, from_running, s.suffix, from_suffix);
		if (!h.reads)
			g = {};
		if constexpr (GATED) {
			const quad base = load_quad<true>(c.base + h.at, d, c.dh);
#pragma unroll
			for (int i = 0; i < QUAD; i++)
				g.at[i] = __fmaf_rn(g.at[i], factor.at[i], base.at[i]);
			if (stores) {
				store_quad<true>(c.normed + h.at, d, c.dh, x);
				store_quad<true>(c.y + h.at, d, c.dh, g);
			}
		}
		store_quad<true>(out + h.at, d, c.dh, g);
		if (ONE)
			break;
	}
}

/* Floats that make_round needs besides x, with a layernorm. */
static inline __device__ __host__ int64_t round_space(int64_t rows, const row_norm &o)
{
	return 2 * rows * row_warps(o);
}

/* Compute the round of all heads of all rows in `out`. What earlier phases do not write is loaded before wait()
 * returns. All threads of the block call this. */
template <int LANES, bool GATED, class WAIT>
static __device__ __forceinline__ void make_round(const stream_call &c, const WAIT &wait, bool stores, float *out,
                                                  float *space)
{
	/* Heads per thread: one if a lane has several quads, since two would spill registers. */
	enum { HELD_HEADS = LANES < WARP ? 2 : 1, EACH = PROGRAM_THREADS / LANES };
	const int warps = row_warps(c.norm), rows = (int)c.rows;
	const unsigned all = (unsigned)(c.rows * c.heads);
	narrow_space sums = {};
	sums.sums = space;
	sums.squares = space + rows * warps;
	for (unsigned first = 0; first < all; first += HELD_HEADS * EACH) {
		round_head h[HELD_HEADS];
		round_quads s[HELD_HEADS] = {};
#pragma unroll
		for (int i = 0; i < HELD_HEADS; i++) {
			h[i] = round_head_of<LANES>(c, first + i * EACH + threadIdx.x / LANES);
			if (h[i].u.first < h[i].end)
				s[i] = open_quads<GATED>(c, h[i], h[i].u.first);
		}
		if (first == 0) {
			wait();
			if (GATED) {
				sum_rows<false>(c.norm, sums, c.base, rows);
				sum_rows<true>(c.norm, sums, c.base, rows);
			}
		}
#pragma unroll
		for (int i = 0; i < HELD_HEADS; i++) {
			if (first + i * EACH >= all)
				break;
			if (GATED) {
				const int row = (int)h[i].u.row * warps;
				h[i].u.mean = mean_of(sum_of_warps(sums.sums + row, warps), c.norm.share);
				h[i].u.rstd = rstd_of(sum_of_warps(sums.squares + row, warps), c.norm);
			}
			pool_head<LANES, GATED>(c, h[i], s[i], stores, out);
		}
	}
}

#endif
