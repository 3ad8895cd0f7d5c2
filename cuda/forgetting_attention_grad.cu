/* forgetting_attention_grad: the forward's tokens and tiles from the end (forgetting_attention.cuh).
 *
 *   v, a, f?, mask?, g, l, dg, bonus? -> dv [B, N, D] real, da [B, N, H], df of f's shape, dbonus [H]
 *
 * w = e^{a - l} and keep = 1 - w = e^{l_{t-1} + f - l} are known for all tokens. With the gradients G of g_t and L of
 * l_t, from the last token on:
 *
 *   δ = w G·(v - g);  dv = w G;  da = δ + w L;  G_{t-1} = dg_{t-1} + keep G;  df = L_{t-1} = keep L - δ
 *
 * A tile is linear in what reaches it from later tiles. K is the product of its keeps, κ_t that of the keeps after t:
 *
 *   U = Σ (K / keep_t) w_t κ_t (v_t - g_t);  G' = K G + G°;  L' = K L - U·G + L°
 *
 * There are three kernels. Tiles with G = L = 0 give (K, U, G°, L°). From these, from the last to the first, come G and
 * L of each tile. Tiles from there give the results. The last kernel runs alone if one tile fills the device. L is
 * linear in the channels, so pieces of a wide head add to da and df one after another.
 *
 * With a bonus, g and l are those before each token. Then w and keep follow from the same row, v - g_t is keep (v -
 * g_{t-1}), and what the token reads adds to dv, da, G° and L° alone (ops.h).
 *
 * df [H] and dbonus are the sums of the tiles' sums, in order. Bytes per element: v, g and dg twice, dv once. */
#include "cuda/forgetting_attention.cuh"
#include "cuda/kernels.h"
#include "cuda/reduce.cuh"

enum { CHUNK = FORGETTING_CHUNK, AHEAD = 4 };

template <class T> struct forgetting_grad_call {
	forgetting_cut cut;
	const T *v, *g, *dg;
	const float *a, *f, *l, *bonus;
	const int32_t *mask;
	T *dv;
	float *da, *df; /* NULL: not requested; df: by token */
	float *total;   /* [B · tiles, H] sums of df; NULL: not requested */
	float *own;     /* [B · tiles, H] sums of dbonus; NULL: not requested */
	int64_t batch, n;
	int tile, tiles;
	bool frozen;
	/* aggregates of tiles: [B, tiles, D] G° (then G), U; [B, tiles, H] K, L°, L */
	float *tile_g, *tile_u, *tile_keep, *tile_own, *tile_l;
};

struct forgetting_factors {
	float w, keep;
};

/* Weights of token `t` of the call, the first of its sequence if `first`, in a head. */
template <class T>
static __device__ __forceinline__ forgetting_factors factors_at(const forgetting_grad_call<T> &c, int64_t t, bool first,
                                                                int head)
{
	if (c.mask && !c.mask[t])
		return {0.0f, 1.0f};
	const float *l = c.l + t * c.cut.heads + head;
	const float over = c.a[t * c.cut.heads + head] - *l, own = over > 0.0f ? 0.0f : over; /* above by rounding only */
	if (first)
		return {expf(own), -expm1f(own)};
	return {expf(own), expf(l[-c.cut.heads] - *l + (c.f ? c.f[t * c.cut.f_stride + head] : 0.0f))};
}

/* The sums that move from a token to the one before, in the thread of a head. */
struct forgetting_later {
	float l, total, keep, own;
};

/* Store da and df of a token; later.l becomes the gradient of the log-sum before it. `adds`: another piece of the head
 * has written them. */
template <class T, bool AGGREGATE>
static __device__ __forceinline__ void pull_score(const forgetting_grad_call<T> &c, int64_t t, int head, float delta,
                                                  forgetting_factors by, bool adds, forgetting_later &later)
{
	const bool skipped = c.mask && !c.mask[t];
	const float to_a = c.frozen ? 0.0f : delta + by.w * later.l, to_p = c.frozen ? 0.0f : by.keep * later.l - delta;
	const float to_f = skipped ? 0.0f : to_p;
	const int64_t at = t * c.cut.heads + head;
	if (!AGGREGATE && c.da)
		c.da[at] = adds ? c.da[at] + to_a : to_a;
	if (!AGGREGATE && c.df)
		c.df[at] = adds ? c.df[at] + to_f : to_f;
	later.total += to_f;
	later.keep *= by.keep;
	later.l = to_p;
}

/* A thread's channels: G, and for an aggregate U and κ. */
template <int HELD> struct forgetting_pull {
	float g[HELD], u[HELD], keep;
};

template <class T, int HELD> struct forgetting_row {
	forgetting_channels<T, HELD> v, g, dg;
};

template <class T, int HELD>
static __device__ __forceinline__ forgetting_row<T, HELD> load_row(const forgetting_grad_call<T> &c, int64_t at)
{
	typedef forgetting_channels<T, HELD> channels;
	return {*(const channels *)(c.v + at), *(const channels *)(c.g + at), *(const channels *)(c.dg + at)};
}

/* Store dv of a token, at element `at`. Return this thread's part of G·(v - g). */
template <class T, int HELD, bool AGGREGATE>
static __device__ __forceinline__ float pull_value(const forgetting_grad_call<T> &c, const forgetting_row<T, HELD> &row,
                                                   int64_t at, forgetting_factors by, forgetting_pull<HELD> &s)
{
	const bool counts = by.w != 0.0f; /* a token of weight 0 may have any value */
	const float reach = by.w * s.keep;
	float dv[HELD], dot = 0.0f;
#pragma unroll
	for (int e = 0; e < HELD; e++) {
		const float both = s.g[e] + load_real(&row.dg.at[e]);
		const float off = counts ? load_real(&row.v.at[e]) - load_real(&row.g.at[e]) : 0.0f;
		dot += both * off;
		dv[e] = counts ? by.w * both : 0.0f;
		if (AGGREGATE)
			s.u[e] = by.keep * s.u[e] + reach * off;
		s.g[e] = by.keep * both;
	}
	s.keep *= by.keep;
	if (!AGGREGATE && c.dv)
		forgetting_store<T, HELD>(c.dv + at, dv);
	return dot;
}

/* --- heads of one channel: a thread each ------------------------------------------------------------------------- */

template <class T, bool AGGREGATE>
static __device__ __forceinline__ void pull_own(const forgetting_grad_call<T> &c, const forgetting_part &p,
                                                int64_t start, int64_t first, int64_t end, forgetting_pull<1> &s,
                                                forgetting_later &later)
{
	for (int64_t t = end - 1; p.values && t >= first; t -= AHEAD) {
		forgetting_row<T, 1> rows[AHEAD];
		forgetting_factors by[AHEAD];
#pragma unroll
		for (int i = 0; i < AHEAD; i++)
			if (t - i >= first) {
				rows[i] = load_row<T, 1>(c, (t - i) * c.cut.d + p.channel);
				by[i] = factors_at(c, t - i, t - i == start, p.head);
			}
#pragma unroll
		for (int i = 0; i < AHEAD; i++)
			if (t - i >= first) {
				const float dot =
				    pull_value<T, 1, AGGREGATE>(c, rows[i], (t - i) * c.cut.d + p.channel, by[i], s);
				pull_score<T, AGGREGATE>(c, t - i, p.head, by[i].w * dot, by[i], false, later);
			}
	}
}

/* A token's weight in a sum of its own score and others', and theirs, from the difference of the logarithms. */
static __device__ __forceinline__ forgetting_factors factors_of(float over)
{
	const float e = expf(-fabsf(over)), part = 1.0f / (1.0f + e);
	return over > 0.0f ? forgetting_factors{e * part, part} : forgetting_factors{part, e * part};
}

/* pull_own with a bonus. */
template <class T, bool AGGREGATE>
static __device__ __forceinline__ void pull_bonus(const forgetting_grad_call<T> &c, const forgetting_part &p,
                                                  int64_t first, int64_t end, forgetting_pull<1> &s,
                                                  forgetting_later &later)
{
	if (!p.values)
		return;
	const float bonus = c.bonus[p.head], rate = c.f && !c.cut.f_stride ? c.f[p.head] : 0.0f;
#pragma unroll 1
	for (int64_t t = end - 1; t >= first; t--) {
		const int64_t at = t * c.cut.d + p.channel;
		const bool counts = !c.mask || c.mask[t];
		const float out = load_real(c.dg + at);
		forgetting_factors by = {0.0f, 1.0f}, read = by;
		float off = 0.0f;
		if (counts) {
			const float over = c.l[at] - c.a[at];
			by = factors_of(over + (c.cut.f_stride ? c.f[at] : rate));
			read = factors_of(over - bonus);
			off = load_real(c.v + at) - load_real(c.g + at);
		}
		const float free = c.frozen ? 0.0f : off;
		const float delta = by.w * by.keep * s.g[0] * free, e = read.w * read.keep * out * free;
		const float to_f = by.keep * later.l - delta;
		if (!AGGREGATE && c.dv)
			store_real(c.dv + at, by.w * s.g[0] + read.w * out);
		if (!AGGREGATE && c.da)
			c.da[at] = delta + e + by.w * later.l;
		if (!AGGREGATE && c.df)
			c.df[at] = counts ? to_f : 0.0f;
		if (AGGREGATE)
			s.u[0] = by.keep * (s.u[0] + by.w * s.keep * off);
		s.keep *= by.keep;
		s.g[0] = by.keep * s.g[0] + read.keep * out;
		later.keep *= by.keep;
		later.total += counts ? to_f : 0.0f;
		later.own += e;
		later.l = to_f - e;
	}
}

/* --- wider heads ------------------------------------------------------------------------------------------------ */

struct forgetting_pull_board {
	forgetting_factors by[CHUNK][WARP];
	float delta[CHUNK][WARP];
	float dot[1]; /* [CHUNK][threads] */
};

static size_t board_bytes(const forgetting_cut &c, int channels)
{
	return channels ? sizeof(forgetting_pull_board) + (size_t)CHUNK * (c.threads - WARP) * sizeof(float) : 0;
}

/* Tokens first … end - 1 of a sequence that begins at token `start`, from the last on; all threads of the block. */
template <class T, int HELD, bool AGGREGATE>
static __device__ __forceinline__ void pull_tokens(const forgetting_grad_call<T> &c, const forgetting_part &p,
                                                   int piece, int64_t start, int64_t first, int64_t end,
                                                   forgetting_pull<HELD> &s, forgetting_later &later)
{
	forgetting_pull_board *board = shared_memory<forgetting_pull_board>();
	const int thread = threadIdx.x, width = (int)blockDim.x - WARP, slab = p.head - thread;
	const int heads = min(c.cut.group, c.cut.heads - slab);
	const int whole = (c.cut.dh + HELD - 1) / HELD, lanes = min(whole - piece * (int)FORGETTING_THREADS, width);
	for (; end > first; end -= CHUNK) {
		const int64_t base = max(first, end - CHUNK);
		const int count = (int)(end - base);
		for (int i = thread; i < count * heads; i += blockDim.x)
			board->by[i / heads][i % heads] =
			    factors_at(c, base + i / heads, base + i / heads == start, slab + i % heads);
		__syncthreads();
		for (int t = count - 1; p.values && t >= 0; t -= AHEAD) {
			forgetting_row<T, HELD> rows[AHEAD];
#pragma unroll
			for (int i = 0; i < AHEAD; i++)
				if (t - i >= 0)
					rows[i] = load_row<T, HELD>(c, (base + t - i) * c.cut.d + p.channel);
#pragma unroll
			for (int i = 0; i < AHEAD; i++)
				if (t - i >= 0)
					board->dot[(t - i) * width + thread - WARP] = pull_value<T, HELD, AGGREGATE>(
					    c, rows[i], (base + t - i) * c.cut.d + p.channel, board->by[t - i][p.slot],
					    s);
		}
		__syncthreads();
		for (int i = thread; i < count * heads; i += blockDim.x) {
			const float *dot = board->dot + i / heads * width + i % heads * lanes;
			float sum = 0.0f;
			for (int lane = 0; lane < lanes; lane++)
				sum += dot[lane];
			board->delta[i / heads][i % heads] = board->by[i / heads][i % heads].w * sum;
		}
		__syncthreads();
		for (int t = count - 1; p.scores && t >= 0; t--)
			pull_score<T, AGGREGATE>(c, base + t, p.head, board->delta[t][thread], board->by[t][thread],
			                         piece > 0, later);
		__syncthreads();
	}
}

/* A block per slab, sequence and tile. AGGREGATE: all tiles except the first, with nothing from later ones. */
template <class T, int V, bool AGGREGATE, bool BONUS = false>
static __global__ void __launch_bounds__(WARP + FORGETTING_THREADS) forgetting_pull_kernel(forgetting_grad_call<T> c)
{
	enum { HELD = V ? V : 1 };
	const unsigned tiles = AGGREGATE ? c.tiles - 1 : c.tiles, at = blockIdx.x / (unsigned)c.cut.groups;
	const int64_t sequence = at / tiles, tile = at % tiles + AGGREGATE, entry = sequence * c.tiles + tile;
	const int64_t start = sequence * c.n, first = start + tile * c.tile, end = min(first + c.tile, start + c.n);
	float own = 0.0f, total = 0.0f, bonus = 0.0f;
	for (int piece = 0; piece < c.cut.pieces; piece++) {
		const forgetting_part p =
		    forgetting_part_of<V>(c.cut, (int)(blockIdx.x % (unsigned)c.cut.groups), piece);
		const int64_t score = entry * c.cut.heads + p.head, value = entry * c.cut.d + p.channel;
		const bool given = !AGGREGATE && tile < c.tiles - 1;
		forgetting_pull<HELD> s = {{}, {}, 1.0f};
		forgetting_later later = {p.scores && given && piece == 0 ? c.tile_l[score] : 0.0f, 0.0f, 1.0f, 0.0f};
#pragma unroll
		for (int e = 0; e < HELD; e++)
			s.g[e] = p.values && given ? c.tile_g[value + e] : 0.0f;
		if constexpr (V != 0)
			pull_tokens<T, HELD, AGGREGATE>(c, p, piece, start, first, end, s, later);
		else if constexpr (BONUS)
			pull_bonus<T, AGGREGATE>(c, p, first, end, s, later);
		else
			pull_own<T, AGGREGATE>(c, p, start, first, end, s, later);
		own += later.l;
		total += later.total;
		bonus += later.own;
		const bool last = piece == c.cut.pieces - 1;
		if (!AGGREGATE && p.scores && last && c.total)
			c.total[score] = total;
		if (BONUS && !AGGREGATE && p.scores && last && c.own)
			c.own[score] = bonus;
		if (AGGREGATE && p.scores && last) {
			c.tile_keep[score] = later.keep;
			c.tile_own[score] = own;
		}
		if (AGGREGATE && p.values) {
			forgetting_store<float, HELD>(c.tile_g + value, s.g);
			forgetting_store<float, HELD>(c.tile_u + value, s.u);
		}
	}
}

/* G and L for each tile from the aggregates of later ones; a warp per head. Each lane has a part of L, from its
 * channels. */
template <class T>
static __global__ void __launch_bounds__(FORGETTING_THREADS) forgetting_pull_carry_kernel(forgetting_grad_call<T> c)
{
	const int lane = threadIdx.x % WARP, dh = c.cut.dh;
	for (int64_t i = grid_first() / WARP; i < c.batch * c.cut.heads; i += grid_stride() / WARP) {
		const int64_t entries = i / c.cut.heads * c.tiles, head = i % c.cut.heads;
		for (int base = 0; base < dh; base += WARP) {
			const bool exists = base + lane < dh;
			float g = 0.0f, l = 0.0f;
			for (int64_t entry = entries + c.tiles - 1; entry >= entries; entry--) {
				const int64_t score = entry * c.cut.heads + head,
				              value = entry * c.cut.d + head * dh + base + lane;
				const float sum = warp_sum(l);
				if (lane == 0)
					c.tile_l[score] = base ? c.tile_l[score] + sum : sum;
				if (entry == entries) {
					if (exists)
						c.tile_g[value] = g;
					continue;
				}
				const float keep = c.tile_keep[score], own = base + lane ? 0.0f : c.tile_own[score];
				l = keep * l + own;
				if (exists) {
					const float more = c.tile_g[value];
					l -= c.tile_u[value] * g;
					c.tile_g[value] = g;
					g = keep * g + more;
				}
			}
		}
	}
}

/* --- a call --------------------------------------------------------------------------------------------------------
 */

/* The call with its tiles and memory, allocated from the scratch; *bytes: size of that memory. */
template <class T> static forgetting_grad_call<T> grad_call_of(const backend *b, const op_call *call, size_t *bytes)
{
	forgetting_grad_call<T> c = {};
	c.cut = forgetting_cut_of(call, 2);
	c.v = (const T *)call->in[0].data;
	c.a = (const float *)call->in[1].data;
	c.f = (const float *)call->in[2].data;
	c.mask = (const int32_t *)call->in[3].data;
	c.g = (const T *)call->in[4].data;
	c.l = (const float *)call->in[5].data;
	c.dg = (const T *)call->in[6].data;
	c.bonus = (const float *)cuda_optional(call, 7);
	c.dv = (T *)call->out[0].data;
	c.da = (float *)call->out[1].data;
	c.df = c.cut.f_stride ? (float *)call->out[2].data : nullptr;
	c.batch = call->in[0].shape.dim[0];
	c.n = call->in[0].shape.dim[1];
	c.frozen = ((const forgetting_params *)call->params)->frozen;
	(void)forgetting_by_width(&c.cut, [](auto) { return STATUS_OK; });
	c.tile = forgetting_tile(b, c.batch * c.cut.groups, c.n);
	c.tiles = (int)((c.n + c.tile - 1) / c.tile);
	*bytes = 0;
	auto take = [&](int64_t floats) {
		float *taken = (float *)(call->scratch ? (char *)call->scratch + *bytes : nullptr);
		*bytes += ((size_t)floats * sizeof(float) + 63) / 64 * 64;
		return taken;
	};
	const int64_t entries = c.batch * c.tiles, heads = entries * c.cut.heads;
	if (c.f && !c.cut.f_stride && call->out[2].data)
		c.total = take(heads);
	if (c.bonus && call->out[3].data)
		c.own = take(heads);
	if (c.tiles > 1) {
		c.tile_g = take(entries * c.cut.d);
		c.tile_u = take(entries * c.cut.d);
		c.tile_keep = take(heads);
		c.tile_own = take(heads);
		c.tile_l = take(heads);
	}
	return c;
}

size_t cuda_forgetting_attention_grad_scratch(const backend *b, const op_call *call)
{
	size_t bytes = 0;
	if (shape_count(call->in[0].shape))
		(void)grad_call_of<float>(b, call, &bytes);
	return bytes;
}

template <class T, int V, bool BONUS> static status pull_tiles(backend *b, const forgetting_grad_call<T> &c)
{
	const size_t shared = board_bytes(c.cut, V);
	const int64_t slabs = c.batch * c.cut.groups;
	TRY(cuda_launch(b, forgetting_pull_kernel<T, V, true, BONUS>, cuda_extent(slabs * (c.tiles - 1)), c.cut.threads,
	                shared, c));
	if (c.tiles > 1)
		TRY(cuda_launch(b, forgetting_pull_carry_kernel<T>,
		                cuda_blocks(b, c.batch * c.cut.heads, FORGETTING_THREADS / WARP), FORGETTING_THREADS, 0,
		                c));
	return cuda_launch(b, forgetting_pull_kernel<T, V, false, BONUS>, cuda_extent(slabs * c.tiles), c.cut.threads,
	                   shared, c);
}

status cuda_forgetting_attention_grad(backend *b, const op_call *call)
{
	const int64_t heads = shape_last(call->in[1].shape);
	float *df = (float *)call->out[2].data, *own = (float *)call->out[3].data;
	const bool shared = call->in[2].data && df && shape_count(call->in[2].shape) == heads;
	if (shape_count(call->in[0].shape) == 0) {
		if (own && cuda_optional(call, 7))
			TRY(cuda_sum_parts(b, &own, 1, nullptr, 0, heads, 1));
		return shared ? cuda_sum_parts(b, &df, 1, nullptr, 0, heads, 1) : STATUS_OK;
	}
	return cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		size_t bytes;
		forgetting_grad_call<T> c = grad_call_of<T>(b, call, &bytes);
		TRY(forgetting_by_width(&c.cut, [&](auto width) {
			enum { V = decltype(width)::V };
			if constexpr ((int)V == 0)
				if (c.bonus)
					return pull_tiles<T, V, true>(b, c);
			return pull_tiles<T, V, false>(b, c);
		}));
		if (c.own)
			TRY(cuda_sum_parts(b, &own, 1, c.own, c.batch * c.tiles, heads, 1));
		return c.total ? cuda_sum_parts(b, &df, 1, c.total, c.batch * c.tiles, heads, 1) : STATUS_OK;
	});
}
