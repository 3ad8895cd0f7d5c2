/* additive_attention.cuh - the march of additive attention: forward from a sequence's first token to its last,
 * backward from the last to the first. March position r sees the k positions r-k+1 … r in either case (k >= N: all
 * before it). Tokens have scores, values and vectors, and are summed as aggregates (additive_lanes.cuh): the forward
 * has score a, value 1, vector x, the backward -M, D, dg.
 *
 * A chain is one head of one sequence. It is cut into tiles; a block of threads works on one. Groups of L lanes hold
 * R rows each, E channels per lane: a tile is at most ROWS = THREADS / L · R tokens.
 *
 *   global     tiles follow each other; before(t) = tiles 0 … t-1
 *   k > ROWS   k tokens are cut into `tiles` equal tiles (the last may be shorter), so what lies one window before
 *              tile t is tile t - tiles, row by row; before(t) = the tiles between the two
 *   k <= ROWS  a tile is as many whole windows (segments) as fit; scans begin anew in each; before(t) is empty
 *
 *   tile t - tiles           tiles between       tile t
 *   |      u ttttttttt|ttttttt|ttttttt|ttttttt|ttttttttt u     |   window of u = far tokens after u ⊕ before(t) ⊕
 *           far                before             near    ^now      near tokens up to u
 *
 * Both scans of a tile are: rows of a group in registers, groups of a warp by shuffles, warps through shared memory.
 *
 * Between tiles. Merging is not associative in floats, so a look-back that folds whatever it finds published would
 * differ from run to run. Here the shape is fixed. A tile publishes its own aggregate before it waits for another;
 * SUPER tiles in a row are a super, published by its last tile: global, all of the chain up to there (the super before
 * and the tiles of this one); windowed, those tiles alone. before(t) is folded from at most SUPER entries (global), in
 * one order. So a chain waits serially once per SUPER tiles. By estimate a wait is two trips to L2, 1.5 µs, in which
 * 4.3 TB/s move 98 tiles of 256 tokens of dh 64 in bf16 (64 kB, in and out): from 4 chains on that is hidden, be N a
 * thousand or a million. Waiting for the tile before, at every tile, would take 98 chains; three phases (aggregates,
 * their scan, tiles) read x twice. Windows never wait serially, and those of up to ROWS tokens not at all.
 *
 * Blocks take their tile from a counter, tile index slowest, so a block waits only for blocks that run already. Flags
 * and counter are cleared before each launch, by the same stream.
 *
 * Bytes: every row once from memory, near; windows read it a second time, far, from L2: chains are worked on in waves,
 * so many at a time as have their windows there. A tile writes an aggregate of 4 (width + 2) bytes.
 *
 * A tile's rows are asked for all at once, into shared memory, each by the thread that will read it. So registers hold
 * sums alone, three or four blocks fit a processor where there is no far side, and some have bytes in flight while
 * others compute or wait. */
#ifndef CUDA_ADDITIVE_ATTENTION_CUH
#define CUDA_ADDITIVE_ATTENTION_CUH

#include "cuda/additive_lanes.cuh"

enum {
	ADDITIVE_SUPER = 32, /* tiles: one per lane that waits */
	ADDITIVE_CHUNK = 256, /* channels of a wider head that one block takes */
#ifdef __CUDACC__
	ADDITIVE_CACHE = 16 << 20, /* bytes of L2 that windows may count on */
#else
	ADDITIVE_CACHE = 32 << 10, /* small calls have waves too when there is no device */
#endif
	ADDITIVE_WAVE = 16 /* chains at least, to work on at a time */
};

/* How work is cut; all blocks of a launch share it. Positions have 31 bits, as they have in every session. */
typedef struct additive_cut {
	int64_t batch, stride; /* stride: D */
	int length, heads, dh;
	int chunks;      /* pieces of a head that is wider than ADDITIVE_CHUNK */
	int window;      /* k, at most N */
	int block;       /* tokens after which tiles repeat */
	int tile, tiles; /* tokens in a tile (the last of a block: maybe fewer), tiles in a block */
	int segment;     /* tokens; 0: a tile is no multiple of windows */
	int count;       /* tiles in a chain */
	int supers;      /* of a chain; 0: not used */
	int wave;        /* chains worked on at a time */
	bool global;
	bool waits;           /* do tiles need each other? */
	float *sums;          /* [chains, count + supers, width + 2]: vector, top, sum */
	unsigned *flags;      /* [chains, count + supers], then the ticket */
} additive_cut;

static inline int64_t additive_chains(const additive_cut *c)
{
	return c->batch * c->heads * c->chunks;
}

static inline int64_t additive_parts(int64_t whole, int64_t part)
{
	return (whole + part - 1) / part;
}

/* As many chains as have their windows in the cache, whole sequences if possible. */
static inline int additive_wave(const additive_cut *c, int tensors, size_t real)
{
	const int64_t chains = additive_chains(c), heads = (int64_t)c->heads * c->chunks;
	const int64_t bytes = ((int64_t)c->window + c->tile) * c->dh / c->chunks * tensors * (int64_t)real;
	int64_t wave = ADDITIVE_CACHE / bytes;
	if (wave > heads)
		wave -= wave % heads;
	if (wave < ADDITIVE_WAVE)
		wave = ADDITIVE_WAVE;
	return (int)(c->global || wave > chains ? chains : wave);
}

/* rows: the most that fit a tile; tensors: how many pass through the cache. */
static inline additive_cut additive_cut_of(const op_call *call, int rows, int tensors)
{
	const additive_attention_params *p = (const additive_attention_params *)call->params;
	additive_cut c = {};
	c.batch = call->in[0].shape.dim[0];
	c.length = (int)call->in[0].shape.dim[1];
	c.stride = call->in[0].shape.dim[2];
	c.heads = (int)p->heads;
	c.dh = (int)(c.stride / p->heads);
	c.chunks = (int)additive_parts(c.dh, ADDITIVE_CHUNK);
	c.global = p->window <= 0 || p->window >= c.length;
	c.window = c.global ? c.length : (int)p->window;
	if (c.length == 0)
		return c;
	if (c.global) {
		c.block = c.length;
		c.tile = rows;
	} else if (c.window > rows) {
		c.block = c.window;
		c.tile = (int)additive_parts(c.block, additive_parts(c.block, rows));
	} else {
		c.segment = (int)c.window;
		c.tile = rows / c.segment * c.segment;
		c.block = c.tile;
	}
	c.tiles = (int)additive_parts(c.block, c.tile);
	c.count = c.length / c.block * c.tiles + (int)additive_parts(c.length % c.block, c.tile);
	c.waits = !c.segment && c.count > 1;
	if (c.waits && (c.global || c.tiles > 2 * ADDITIVE_SUPER))
		c.supers = c.count / ADDITIVE_SUPER;
	c.wave = additive_wave(&c, tensors, dtype_bytes(call->in[0].type));
	return c;
}

/* --- memory between tiles -------------------------------------------------------------- */

static inline int64_t additive_entries(const additive_cut *c)
{
	return c->waits ? additive_chains(c) * (c->count + c->supers) : 0;
}
static inline size_t additive_sums_bytes(const additive_cut *c, int width)
{
	return ((size_t)additive_entries(c) * (size_t)(width + 2) * sizeof(float) + 63) / 64 * 64;
}
static inline size_t additive_flags_bytes(const additive_cut *c)
{
	return c->waits ? ((size_t)(additive_entries(c) + 1) * sizeof(unsigned) + 63) / 64 * 64 : 0;
}
static inline size_t additive_cut_bytes(const additive_cut *c, int width)
{
	return additive_sums_bytes(c, width) + additive_flags_bytes(c);
}

/* Give the cut its memory at `at`, flags cleared. */
static inline status additive_prepare(backend *b, additive_cut *c, int width, void *at)
{
	if (!c->waits)
		return STATUS_OK;
	c->sums = (float *)at;
	c->flags = (unsigned *)((char *)at + additive_sums_bytes(c, width));
	TRY(cuda_program_end(cuda_of(b)));
	cuda_of(b)->after_kernel = false;
	return cuda_status(cuda_of(b), cudaMemsetAsync(c->flags, 0, additive_flags_bytes(c), cuda_of(b)->stream));
}

/* --- shared memory ---------------------------------------------------------------------------- */

/* What warps exchange in one scan: the aggregate that leaves a warp, and whether a segment's border cuts it off
 * from what came before. Then: what reaches a warp from those before it. */
template <int WIDTH> struct __align__(16) additive_board {
	float vector[ADDITIVE_WARPS][WIDTH];
	float top[ADDITIVE_WARPS], sum[ADDITIVE_WARPS];
	float before_top[ADDITIVE_WARPS], before_sum[ADDITIVE_WARPS];
	unsigned cut[ADDITIVE_WARPS];
};
template <int WIDTH> struct additive_entry {
	float vector[WIDTH], top, sum, spare[2]; /* whole 16 bytes */
};

/* Where a block of threads works. */
typedef struct additive_place {
	int64_t chain, sequence;
	int head, chunk, t;
	int first;      /* march position */
	int rows, full; /* tokens that are there; that there would be if the sequence went on */
} additive_place;

template <int WIDTH> struct __align__(16) additive_shared {
	additive_board<WIDTH> near, far;
	additive_entry<WIDTH> own, before; /* of the tile; before(t) */
	float slice[ADDITIVE_THREADS], factor[WARP], keep;
	const float *entry[WARP];
	additive_place place;
};

/* --- scans of a tile ------------------------------------------------------------------------------ */

/* `a` becomes the aggregate of its warp's groups before this one, `back`: after it; `cut`: it reaches a border, so that
 * other warps have no part in it. What leaves the warp goes on the board. */
template <class C, bool back>
__device__ __forceinline__ void additive_scan_warp(additive_aggregate<C::E> &a, bool &cut,
                                                   additive_board<C::WIDTH> *board)
{
	const int place = C::group() % C::IN_WARP, warp = threadIdx.x / WARP;
	additive_aggregate<C::E> other;
	auto shift = [&](int by) {
		auto from = [&](float x) {
			return back ? __shfl_down_sync(ALL_LANES, x, by * C::L)
			            : __shfl_up_sync(ALL_LANES, x, by * C::L);
		};
		other.top = from(a.top);
		other.sum = from(a.sum);
#pragma unroll
		for (int e = 0; e < C::E; e++)
			other.vector[e] = from(a.vector[e]);
		return from(cut ? 1.0f : 0.0f) != 0.0f;
	};
#pragma unroll
	for (int by = 1; by < C::IN_WARP; by *= 2) {
		bool other_cut = shift(by), there = back ? place + by < C::IN_WARP : place >= by;
		a.merge(other, there && !cut);
		cut = cut || (there && other_cut);
	}
	if (place == (back ? 0 : C::IN_WARP - 1)) {
#pragma unroll
		for (int e = 0; e < C::E; e++)
			board->vector[warp][C::channel(e)] = a.vector[e];
		if (C::lane() == 0) {
			board->top[warp] = a.top;
			board->sum[warp] = a.sum;
			board->cut[warp] = cut;
		}
	}
	const bool edge = place == (back ? C::IN_WARP - 1 : 0);
	if (C::IN_WARP > 1) {
		cut = shift(1) && !edge;
		a = other;
	} else {
		cut = false;
	}
	a.clear(edge);
}

/* What left each warp becomes what lies before it (`back`: after it), up to the nearest border; returns all of it in
 * `all`, if that is there. A thread per channel; `back` takes other threads, if there are enough. */
template <int WIDTH, bool back>
__device__ __forceinline__ void additive_scan_board(additive_board<WIDTH> *board, additive_entry<WIDTH> *all)
{
	const int channel = (int)threadIdx.x - (back && WIDTH <= ADDITIVE_THREADS / 2 ? ADDITIVE_THREADS / 2 : 0);
	if (channel < 0 || channel >= WIDTH)
		return;
	float top = STREAM_EMPTY, sum = 0, vector = 0;
#pragma unroll
	for (int i = 0; i < ADDITIVE_WARPS; i++) {
		const int v = back ? ADDITIVE_WARPS - 1 - i : i;
		const float its = board->vector[v][channel], there = board->top[v];
		const float old = board->cut[v] ? -INFINITY : top, both = fmaxf(old, there);
		const float keep = additive_exp(old - both), weight = additive_exp(there - both);
		board->vector[v][channel] = vector;
		if (channel == 0) {
			board->before_top[v] = top;
			board->before_sum[v] = sum;
		}
		top = both;
		sum = keep * sum + weight * board->sum[v];
		vector = keep * vector + weight * its;
	}
	if (!all)
		return;
	all->vector[channel] = vector;
	if (channel == 0) {
		all->top = top;
		all->sum = sum;
	}
}

/* a := these ⊕ a, if `take`. */
template <class C>
__device__ __forceinline__ void additive_merge_shared(additive_aggregate<C::E> &a, float top, float sum,
                                                      const float *vector, bool take)
{
	additive_aggregate<C::E> other = {top, sum, {}};
#pragma unroll
	for (int e = 0; e < C::E; e++)
		other.vector[e] = vector[C::channel(e)];
	a.merge(other, take);
}

/* a := what reaches its warp ⊕ a. */
template <class C>
__device__ __forceinline__ void additive_merge_warps(additive_aggregate<C::E> &a, bool cut,
                                                     const additive_board<C::WIDTH> *board)
{
	const int warp = threadIdx.x / WARP;
	additive_merge_shared<C>(a, board->before_top[warp], board->before_sum[warp], board->vector[warp], !cut);
}

/* --- between tiles ------------------------------------------------------------------------------------ */

/* Publish before ⊕ own (`inclusive`) or own as an entry of the chain. */
template <int WIDTH>
__device__ __forceinline__ void additive_publish(const additive_cut &c, const additive_shared<WIDTH> *s, int64_t entry,
                                                 bool inclusive)
{
	const int channel = threadIdx.x;
	float *to = c.sums + entry * (WIDTH + 2);
	if (channel < WIDTH) {
		float top = inclusive ? fmaxf(s->own.top, s->before.top) : s->own.top;
		float own = additive_exp(s->own.top - top), before = inclusive ? additive_exp(s->before.top - top) : 0.0f;
		to[channel] = own * s->own.vector[channel] + (inclusive ? before * s->before.vector[channel] : 0.0f);
		if (channel == 0) {
			to[WIDTH] = top;
			to[WIDTH + 1] = own * s->own.sum + (inclusive ? before * s->before.sum : 0.0f);
		}
	}
	__syncthreads();
	if (threadIdx.x == 0)
		store_release(c.flags + entry, 1);
}

/* Entries of a chain, in this order: tiles, supers, tiles. */
typedef struct additive_span {
	int head_first, head, super_first, supers, tail_first, tail;
} additive_span;

/* Of tiles low … high - 1. */
__device__ __forceinline__ additive_span additive_span_of(const additive_cut &c, int low, int high)
{
	if (c.supers && c.global) {
		int super = high / ADDITIVE_SUPER; /* the one before stands for all before it */
		return {0, 0, super - 1, super > 0, super * ADDITIVE_SUPER, high - super * ADDITIVE_SUPER};
	}
	int first = (low + ADDITIVE_SUPER - 1) / ADDITIVE_SUPER, last = high / ADDITIVE_SUPER;
	if (!c.supers || first >= last)
		return {low, high > low ? high - low : 0, 0, 0, 0, 0};
	return {low, first * ADDITIVE_SUPER - low, first, last - first, last * ADDITIVE_SUPER,
	        high - last * ADDITIVE_SUPER};
}

__device__ __forceinline__ int64_t additive_entry_of(const additive_cut &c, int64_t chain, const additive_span &p,
                                                     int i)
{
	int64_t base = chain * (c.count + c.supers);
	if (i < p.head)
		return base + p.head_first + i;
	i -= p.head;
	if (i < p.supers)
		return base + c.count + p.super_first + i;
	return base + p.tail_first + i - p.supers;
}

/* s->before := the entries of the span, waited for, folded WARP at a time in order. */
template <int WIDTH>
__device__ __forceinline__ void additive_gather(const additive_cut &c, additive_shared<WIDTH> *s, int64_t chain,
                                                const additive_span &p)
{
	const int count = p.head + p.supers + p.tail, lane = threadIdx.x % WARP;
	const int channel = threadIdx.x % WIDTH, first = threadIdx.x / WIDTH, slices = ADDITIVE_THREADS / WIDTH;
	if (threadIdx.x < WIDTH)
		s->before.vector[channel] = 0;
	if (threadIdx.x == 0) {
		s->before.top = STREAM_EMPTY;
		s->before.sum = 0;
	}
	__syncthreads();
	for (int base = 0; base < count; base += WARP) {
		const int here = count - base < WARP ? count - base : WARP;
		if (threadIdx.x < WARP) {
			float top = STREAM_EMPTY, sum = 0;
			if (lane < here) {
				const int64_t entry = additive_entry_of(c, chain, p, base + lane);
				const float *at = c.sums + entry * (WIDTH + 2);
				while (!load_acquire(c.flags + entry))
					;
				top = __ldcg(at + WIDTH);
				sum = __ldcg(at + WIDTH + 1);
				s->entry[lane] = at;
			}
			const float all = fmaxf(warp_max(top), s->before.top), keep = additive_exp(s->before.top - all);
			const float factor = lane < here ? additive_exp(top - all) : 0.0f;
			s->factor[lane] = factor;
			sum = warp_sum(factor * sum);
			__syncwarp(); /* all lanes have read before.top; a shuffle orders no memory */
			if (lane == 0) {
				s->keep = keep;
				s->before.top = all;
				s->before.sum = keep * s->before.sum + sum;
			}
		}
		__syncthreads();
		float vector = 0;
#pragma unroll 4
		for (int i = first; i < here; i += slices)
			vector += s->factor[i] * __ldcg(s->entry[i] + channel);
		s->slice[threadIdx.x] = vector;
		__syncthreads();
		if (threadIdx.x < WIDTH) {
			float sum = s->keep * s->before.vector[channel];
			for (int q = 0; q < slices; q++)
				sum += s->slice[q * WIDTH + channel];
			s->before.vector[channel] = sum;
		}
		__syncthreads();
	}
}

/* Publish the tile, s->own, and fold before(t). */
template <int WIDTH>
__device__ __forceinline__ void additive_exchange(const additive_cut &c, additive_shared<WIDTH> *s, int64_t chain,
                                                  int t)
{
	const int64_t base = chain * (c.count + c.supers);
	const int super = t / ADDITIVE_SUPER;
	const bool closes = c.supers && t % ADDITIVE_SUPER == ADDITIVE_SUPER - 1;
	additive_publish(c, s, base + t, false);
	if (closes && !c.global) {
		additive_gather(c, s, chain, {t - t % ADDITIVE_SUPER, ADDITIVE_SUPER - 1, 0, 0, 0, 0});
		additive_publish(c, s, base + c.count + super, true);
	}
	int low = c.global || t < c.tiles ? 0 : t - c.tiles + 1;
	additive_gather(c, s, chain, additive_span_of(c, low, t));
	if (closes && c.global)
		additive_publish(c, s, base + c.count + super, true);
}

/* --- a tile ------------------------------------------------------------------------------------------- */

/* One thread's work: it is a hundred instructions. */
__device__ __forceinline__ additive_place additive_place_of(const additive_cut &c)
{
	const unsigned chains = (unsigned)(c.batch * c.heads * c.chunks);
	const unsigned ticket = c.waits ? atomicAdd(c.flags + (int64_t)chains * (c.count + c.supers), 1u) : blockIdx.x;
	const unsigned whole = (unsigned)c.wave * (unsigned)c.count, first = ticket / whole * (unsigned)c.wave;
	const unsigned wave = chains - first < (unsigned)c.wave ? chains - first : (unsigned)c.wave;
	const unsigned chain = first + ticket % whole % wave;
	additive_place p;
	p.t = (int)(ticket % whole / wave);
	p.chain = chain;
	p.chunk = (int)(chain % c.chunks);
	p.head = (int)(chain / c.chunks % c.heads);
	p.sequence = chain / c.chunks / c.heads;
	const int offset = p.t % c.tiles * c.tile;
	p.first = p.t / c.tiles * c.block + offset;
	p.full = c.block - offset < c.tile ? c.block - offset : c.tile;
	p.rows = c.length - p.first < p.full ? c.length - p.first : p.full;
	return p;
}

/* Bits of this group's rows that begin a segment, and that end one. */
template <int R>
__device__ __forceinline__ void additive_borders(const additive_cut &c, int u, unsigned *begin, unsigned *end)
{
	*begin = *end = 0;
	if (!c.segment)
		return;
	int phase = u % c.segment;
#pragma unroll
	for (int r = 0; r < R; r++) {
		*begin |= (unsigned)(phase == 0) << r;
		phase = phase + 1 == c.segment ? 0 : phase + 1;
		*end |= (unsigned)(phase == 0) << r;
	}
}

/* Bits of rows r with 0 <= from + r < stop. */
template <int R> __device__ __forceinline__ unsigned additive_there(int from, int stop)
{
	const int low = from < 0 ? -from : 0, high = stop - from < R ? stop - from : (int)R;
	return low < high ? (1u << high) - (1u << low) : 0;
}

/* Those of `bits` whose token the mask lets in; mask: of row 0, the next one `step` on; NULL: all. */
template <int R> __device__ __forceinline__ unsigned additive_seen(const int32_t *mask, int step, unsigned bits)
{
	unsigned seen = bits;
#pragma unroll
	for (int r = 0; r < R && mask; r++)
		if (bits >> r & 1 && !mask[r * step])
			seen &= ~(1u << r);
	return seen;
}

/* One tile. W says what the scores, values and vectors are, and what becomes of the windows' sums:
 *   W::C, W::R, W::WINDOW   lanes, rows of a group, is there a far side?
 *   W::ONES                 are all values 1? With no far side, `near` of `done` has its vector divided by the sum
 *   W::stages               of rows in shared memory: near, far (WINDOW), what W wants
 *   start(place, first, there)     first march position of this group, bits of its rows that are there
 *   fetch<FAR>(rows, there)        ask for the group's rows, or (FAR) those one window before
 *   arrive<FAR>(rows, there)       these have come: their scores (-inf: not there) and values
 *   ready()                 before the sums come
 *   done(r, near), done(r, near, far)   the sums of row r, r = 0 … R - 1; near and far ones are still to be merged
 *   end_tile()              all threads */
template <class W> __device__ __forceinline__ void additive_march(const additive_cut &c, W &work)
{
	typedef typename W::C C;
	enum { MEAN = W::ONES && !W::WINDOW, R = W::R, PART = R < 4 ? (int)R : 4 };
	typedef additive_shared<C::WIDTH> space;
	space *s = shared_memory<space>();
	additive_stage<C, R> *stage = shared_memory<additive_stage<C, R>>(sizeof(space));
	if (threadIdx.x == 0)
		s->place = additive_place_of(c);
	__syncthreads();
	const additive_place p = s->place;
	const int u = C::group() * R, from = p.first + u;
	unsigned begin = 0, end = 0;
	if constexpr (W::WINDOW)
		additive_borders<R>(c, u, &begin, &end);

	/* Everything is asked for at once, and there before anything else is done. */
	additive_rows<C, R, W::ONES> near = {}, far = {};
	near.stage = stage;
	far.stage = stage + 1;
	const unsigned there = additive_there<R>(from, p.first + p.rows);
	const int last = p.first + p.full - c.window;
	const unsigned far_there = W::WINDOW ? additive_there<R>(from - c.window, last < c.length ? last : c.length) : 0;
	work.start(p, from, there);
	work.template fetch<false>(near, there);
	copy_commit();
	if constexpr (W::WINDOW) {
		work.template fetch<true>(far, far_there);
		copy_commit();
	}
	copy_wait<W::WINDOW>();

	/* Of the group: what leaves it to the right, since its last border; then what lies before it. */
	work.template arrive<false>(near, there);
	additive_aggregate<C::E> before = near.fold(begin ? ~0u << (31 - __clz((int)begin)) : ~0u), after;
	bool before_cut = begin != 0, after_cut = end != 0;
	additive_scan_warp<C, false>(before, before_cut, &s->near);
	if constexpr (W::WINDOW) { /* of the window before: what comes after the group */
		copy_wait<0>();
		work.template arrive<true>(far, far_there);
		after = far.fold(end ? (2u << (__ffs((int)end) - 1)) - 1 : ~0u);
		additive_scan_warp<C, true>(after, after_cut, &s->far);
	}
	__syncthreads();
	additive_scan_board<C::WIDTH, false>(&s->near, &s->own);
	if constexpr (W::WINDOW)
		additive_scan_board<C::WIDTH, true>(&s->far, nullptr);
	__syncthreads();
	work.ready();
	if (c.waits) {
		additive_exchange(c, s, p.chain, p.t);
		additive_merge_shared<C>(before, s->before.top, s->before.sum, s->before.vector, true);
	}
	additive_merge_warps<C>(before, before_cut, &s->near);
	if constexpr (W::WINDOW)
		additive_merge_warps<C>(after, after_cut, &s->far);
	if (MEAN) {
		const float share = additive_share(before.sum);
#pragma unroll
		for (int e = 0; e < C::E; e++)
			before.vector[e] *= share;
	}
#pragma unroll
	for (int part = 0; part < R; part += PART) { /* as many as registers hold the suffixes of */
		additive_aggregate<C::E> suffix[PART], sum = after;
		__syncwarp();
#pragma unroll
		for (int r = R - 1; W::WINDOW && r >= part; r--) {
			sum.clear(end >> r & 1);
			if (r < part + PART)
				suffix[r - part] = sum;
			if (r > part)
				additive_append<false>(sum, far, r);
		}
#pragma unroll
		for (int r = part; r < part + PART; r++) {
			if (W::WINDOW)
				before.clear(begin >> r & 1);
			additive_append<MEAN>(before, near, r);
			if constexpr (W::WINDOW)
				work.done(r, before, suffix[r - part]);
			else
				work.done(r, before);
		}
	}
	work.end_tile();
}

/* Bytes of shared memory for a tile of W. */
template <class W> static constexpr size_t additive_shared_bytes(void)
{
	return sizeof(additive_shared<W::C::WIDTH>) + W::stages * sizeof(additive_stage<typename W::C, W::R>);
}

#endif
