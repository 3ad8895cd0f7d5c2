/* additive_attention.cuh - the march of additive attention: forward from a sequence's first token to its last, backward
 * from the last to the first. In either case march position r sees the k positions r-k+1 … r (k >= N: all before it).
 * Tokens have scores, values and vectors, and are summed as aggregates (additive_lanes.cuh). The forward has score a,
 * value 1, vector x; the backward has -M, D, dg.
 *
 * A chain is one head of one sequence. It is cut into tiles; a block of threads works on one. Groups of L lanes hold R
 * rows each, E channels per lane: a tile is at most ROWS = THREADS / L · R tokens.
 *
 *    global     tiles follow each other; before(t) = tiles 0 … t-1
 *    k > ROWS   k tokens are cut into `tiles` equal tiles (the last may be shorter). Row by row, tile t - tiles is one
 *               window before tile t; before(t) = the tiles between the two
 *    k <= ROWS  a tile is as many whole windows (segments) as fit; scans restart in each; before(t) is empty
 *
 *    tile t - tiles           tiles between       tile t
 *    |      u ttttttttt|ttttttt|ttttttt|ttttttt|ttttttttt u     |   window of u = far tokens after u ⊕ before(t) ⊕
 *            far                before             near    ^now      near tokens up to u
 *
 * Both scans of a tile have three levels: rows of a group in registers, groups of a warp by shuffles, warps through
 * shared memory. Numbers per row (score, top, sum and weights) are computed by one lane for the group (additive_held).
 *
 * Between tiles. Merging floats is not associative, so a look-back that folds the entries published so far would give
 * different bits from run to run. Here the order is fixed. A tile publishes its own aggregate before it waits for
 * another. SUPER tiles in a row are a super, published by its last tile. A global super is the aggregate of the whole
 * chain up to there (the super before and the tiles of this one); a windowed super has its own tiles only. before(t) is
 * folded in one order, for a global chain from at most SUPER entries. So a chain waits serially once per SUPER tiles.
 *
 * By estimate a wait is a store and a load that meet in L2, 0.7 µs. In that time 4.3 TB/s move 46 tiles of 256 tokens,
 * with dh 64 in bf16 (64 kB, in and out). So two chains or more hide it for any N. Waiting for the previous tile at
 * every tile would take 46 chains to hide; three phases (aggregates, their scan, tiles) would read x twice. Windows
 * never wait serially, and windows of up to ROWS tokens do not wait at all.
 *
 * Blocks take tiles in the order of blockIdx, tile index slowest, so a block waits only for blocks of lower index. A
 * device starts the blocks of a one-dimensional grid in that order. CUDA does not promise it, but single-pass scans
 * such as CUB's DeviceScan rely on it. So each block that another waits for has ended or is resident, and itself waits
 * only for lower ones. The lowest unfinished block never waits, whatever other streams run at the same time.
 *
 * A published word has 8 bytes, a float and the launch's number, written and read whole. A reader polls until the word
 * has its launch's number, and then has the float too. So there are no flags and no fences, and nothing is cleared
 * before a launch. The words belong to the backend (cuda_exchange). Launches of other shapes use another layout, but
 * the words that they leave are floats with numbers of earlier launches.
 *
 * The number is read from the device: each block counts itself as it begins, and the last one raises the number for the
 * next launch. Launches of a backend follow each other, and none begins early, so the replay of a recording counts like
 * any other launch.
 *
 * Bytes: every row is read once from memory, near; windows read it a second time, far, from L2. Chains are processed in
 * waves, as many at a time as have their windows in L2. A tile writes an aggregate of 8 (width + 2) bytes; a global one
 * reads 16 of them on average, from L2.
 *
 * All rows of a tile are requested at once, into shared memory, each by the thread that will read it. So registers hold
 * only sums, three or four blocks fit a processor, and some have bytes in flight while others compute or wait.
 * Requesting the next tile's rows before the wait would need a second stage: BENCHMARKS.md says what that would
 * bring. */
#ifndef CUDA_ADDITIVE_ATTENTION_CUH
#define CUDA_ADDITIVE_ATTENTION_CUH

#include "cuda/additive_lanes.cuh"

enum {
	ADDITIVE_SUPER = 32, /* tiles: one per lane that waits */
	ADDITIVE_CHUNK = 256, /* channels of a wider head per block */
#ifdef __CUDACC__
	ADDITIVE_CACHE = 16 << 20, /* bytes of L2 that windows may use */
#else
	ADDITIVE_CACHE = 32 << 10, /* small, so that the emulator has waves too */
#endif
	ADDITIVE_WAVE = 16 /* least number of chains in a wave */
};

/* Division of work, the same for all blocks of a launch. Positions have 31 bits, as in every session. */
typedef struct additive_cut {
	int64_t batch, stride; /* stride: D */
	int length, heads, dh;
	int chunks;      /* pieces of a head that is wider than ADDITIVE_CHUNK */
	int window;      /* k, at most N */
	int block;       /* tokens after which tiles repeat */
	int tile, tiles; /* tokens in a tile (the last of a block: maybe fewer), tiles in a block */
	int segment;     /* tokens; 0: tiles do not consist of whole windows */
	int count;       /* tiles in a chain */
	int supers;      /* per chain; 0: not used */
	int wave;        /* chains processed at a time */
	bool global;
	bool waits;             /* tiles wait for each other */
	exchange_word *started; /* earlier launches << 32 | blocks of this launch that have started */
	exchange_word *sums;    /* [chains, count + supers, width + 2]: vector, top, sum */
} additive_cut;

static inline int64_t additive_chains(const additive_cut *c)
{
	return c->batch * c->heads * c->chunks;
}

static inline int64_t additive_parts(int64_t whole, int64_t part)
{
	return (whole + part - 1) / part;
}

/* Number of chains whose windows fit the cache, in whole sequences if possible. */
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

/* rows: the most that fit a tile; tensors: number of tensors that pass through the cache. */
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

/* Allocate the words that tiles exchange. Errors: those of cuda_exchange. */
static inline status additive_prepare(backend *b, additive_cut *c, int width)
{
	enum { HEAD = 8 }; /* words: the counter has 64 bytes to itself */
	if (!c->waits)
		return STATUS_OK;
	void *at;
	const size_t words = HEAD + (size_t)additive_entries(c) * (size_t)(width + 2);
	TRY(cuda_exchange(cuda_of(b), words * sizeof(exchange_word), &at));
	c->started = (exchange_word *)at;
	c->sums = c->started + HEAD;
	return STATUS_OK;
}

/* --- shared memory ---------------------------------------------------------------------------- */

/* Warps exchange this in one scan: the aggregate that leaves a warp, and whether a segment's border separates it from
 * earlier rows. After the scan it has what reaches a warp from those before it. */
template <int WIDTH> struct __align__(16) additive_board {
	float vector[ADDITIVE_WARPS][WIDTH];
	float top[ADDITIVE_WARPS], sum[ADDITIVE_WARPS];
	float before_top[ADDITIVE_WARPS], before_sum[ADDITIVE_WARPS];
	unsigned cut[ADDITIVE_WARPS];
};
template <int WIDTH> struct additive_entry {
	float vector[WIDTH], top, sum, spare[2]; /* padded to a multiple of 16 bytes */
};

/* Work of a block of threads. */
typedef struct additive_place {
	int64_t chain, sequence;
	int head, chunk, t;
	int first;      /* march position */
	int rows, full; /* tokens in the tile; tokens if the sequence did not end */
} additive_place;

template <int WIDTH> struct __align__(16) additive_shared {
	additive_board<WIDTH> near, far;
	additive_entry<WIDTH> own, before; /* aggregate of the tile; before(t) */
	float slice[ADDITIVE_THREADS], factor[WARP], keep;
	unsigned number; /* the launch's */
	const exchange_word *entry[WARP];
	additive_place place;
};

/* --- scans of a tile ------------------------------------------------------------------------------ */

/* Set `a` to the aggregate of its warp's groups before this one (`back`: after it). `cut`: it reaches a border, so
 * other warps add nothing to it. The aggregate that leaves the warp goes to the board. */
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
		bool other_cut = shift(by), exists = back ? place + by < C::IN_WARP : place >= by;
		a.merge(other, exists && !cut);
		cut = cut || (exists && other_cut);
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

/* Replace the aggregate that left each warp by the one that precedes it (`back`: follows it), up to the nearest border.
 * Return the total in `all` unless it is NULL. One thread per channel; `back` uses other threads if there are
 * enough. */
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
		const float warp_vector = board->vector[v][channel], warp_top = board->top[v];
		const float old = board->cut[v] ? -INFINITY : top, both = fmaxf(old, warp_top);
		const float keep = additive_exp(old - both), weight = additive_exp(warp_top - both);
		board->vector[v][channel] = vector;
		if (channel == 0) {
			board->before_top[v] = top;
			board->before_sum[v] = sum;
		}
		top = both;
		sum = keep * sum + weight * board->sum[v];
		vector = keep * vector + weight * warp_vector;
	}
	if (!all)
		return;
	all->vector[channel] = vector;
	if (channel == 0) {
		all->top = top;
		all->sum = sum;
	}
}

/* a := (top, sum, vector) ⊕ a, if `take`. */
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

/* a := the aggregate that reaches its warp ⊕ a. */
template <class C>
__device__ __forceinline__ void additive_merge_warps(additive_aggregate<C::E> &a, bool cut,
                                                     const additive_board<C::WIDTH> *board)
{
	const int warp = threadIdx.x / WARP;
	additive_merge_shared<C>(a, board->before_top[warp], board->before_sum[warp], board->vector[warp], !cut);
}

/* --- between tiles ------------------------------------------------------------------------------------ */

/* Return the launch's number, never 0. One thread of each block calls this, once. */
__device__ __forceinline__ unsigned additive_number(const additive_cut &c)
{
	const exchange_word started = atomicAdd(c.started, 1ull);
	if ((unsigned)started == gridDim.x - 1) /* every block has the number */
		atomicAdd(c.started, (1ull << 32) - gridDim.x);
	return (unsigned)(started >> 32) + 1;
}

__device__ __forceinline__ exchange_word additive_word(float x, unsigned number)
{
	return (exchange_word)number << 32 | __float_as_uint(x);
}
/* Return the float of the word at `at`, which was read as `word`; poll while it has another launch's number. */
__device__ __forceinline__ float additive_arrived(const exchange_word *at, exchange_word word, unsigned number)
{
	enum { NAP = 20 }; /* ns; a trip to L2 takes some hundreds */
	while ((unsigned)(word >> 32) != number) {
		__nanosleep(NAP);
		word = load_relaxed(at);
	}
	return __uint_as_float((unsigned)word);
}

/* Publish before ⊕ own (`inclusive`) or own as an entry of the chain. */
template <int WIDTH>
__device__ __forceinline__ void additive_publish(const additive_cut &c, const additive_shared<WIDTH> *s, int64_t entry,
                                                 bool inclusive)
{
	const int channel = threadIdx.x;
	exchange_word *to = c.sums + entry * (WIDTH + 2);
	if (channel >= WIDTH)
		return;
	const float top = inclusive ? fmaxf(s->own.top, s->before.top) : s->own.top;
	const float own = additive_exp(s->own.top - top), before = inclusive ? additive_exp(s->before.top - top) : 0.0f;
	auto put = [&](int i, float x, float its) {
		store_relaxed(to + i, additive_word(own * x + (inclusive ? before * its : 0.0f), s->number));
	};
	put(channel, s->own.vector[channel], s->before.vector[channel]);
	if (channel == 0) {
		store_relaxed(to + WIDTH, additive_word(top, s->number));
		put(WIDTH + 1, s->own.sum, s->before.sum);
	}
}

/* Entries of a chain, in this order: tiles, supers, tiles. */
typedef struct additive_span {
	int head_first, head, super_first, supers, tail_first, tail;
} additive_span;

/* Entries that aggregate tiles low … high - 1. */
__device__ __forceinline__ additive_span additive_span_of(const additive_cut &c, int low, int high)
{
	if (c.supers && c.global) {
		int super = high / ADDITIVE_SUPER; /* for a global chain, the super before includes all before it */
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

/* Wait for the tops and sums of s->entry, one warp with a lane per entry, and merge them into s->before. `first`:
 * s->before is empty so far. s->factor and s->keep are then the weights of the vectors. */
template <int WIDTH>
__device__ __forceinline__ void additive_weigh(additive_shared<WIDTH> *s, bool first, bool has_entry, unsigned number)
{
	const int lane = threadIdx.x % WARP;
	const float old_top = first ? STREAM_EMPTY : s->before.top, old_sum = first ? 0.0f : s->before.sum;
	float top = STREAM_EMPTY, sum = 0;
	if (has_entry) {
		const exchange_word *at = s->entry[lane] + WIDTH, words[2] = {load_relaxed(at), load_relaxed(at + 1)};
		top = additive_arrived(at, words[0], number);
		sum = additive_arrived(at + 1, words[1], number);
	}
	const float all = fmaxf(warp_max(top), old_top), keep = additive_exp(old_top - all);
	const float factor = has_entry ? additive_exp(top - all) : 0.0f;
	s->factor[lane] = factor;
	sum = warp_sum(factor * sum);
	__syncwarp(); /* all lanes have read s->before; a shuffle orders no memory */
	if (lane == 0) {
		s->keep = keep;
		s->before.top = all;
		s->before.sum = keep * old_sum + sum;
	}
}

/* s->before := the entries of the span, awaited and folded WARP at a time in order. A thread requests its channel of
 * the entries before one warp waits for their tops and sums. So entries that are already published take one trip to
 * L2. */
template <int AHEAD, int WIDTH>
__device__ __forceinline__ void additive_gather(const additive_cut &c, additive_shared<WIDTH> *s, int64_t chain,
                                                const additive_span &p)
{
	enum { SLICES = ADDITIVE_THREADS / WIDTH, MINE = WARP / SLICES, PART = MINE <= AHEAD ? (int)MINE : 4 };
	const int count = p.head + p.supers + p.tail, lane = threadIdx.x % WARP;
	const int channel = threadIdx.x % WIDTH, first = threadIdx.x / WIDTH;
	const unsigned number = s->number;
	for (int base = 0; base == 0 || base < count; base += WARP) {
		const int here = count - base < WARP ? count - base : WARP;
		if ((int)threadIdx.x < here)
			s->entry[lane] = c.sums + additive_entry_of(c, chain, p, base + lane) * (WIDTH + 2);
		__syncthreads();
		float vector = 0;
#pragma unroll
		for (int part = 0; part < MINE; part += PART) {
			exchange_word word[PART];
#pragma unroll
			for (int i = 0; i < PART; i++) {
				const int e = first + (part + i) * SLICES;
				word[i] = e < here ? load_relaxed(s->entry[e] + channel) : 0;
			}
			if (part == 0) {
				if (threadIdx.x < WARP)
					additive_weigh(s, base == 0, lane < here, number);
				__syncthreads();
			}
#pragma unroll
			for (int i = 0; i < PART; i++) {
				const int e = first + (part + i) * SLICES;
				if (e < here)
					vector += s->factor[e] * additive_arrived(s->entry[e] + channel, word[i], number);
			}
		}
		s->slice[threadIdx.x] = vector;
		__syncthreads();
		if (threadIdx.x < WIDTH) {
			float sum = base == 0 ? 0.0f : s->keep * s->before.vector[channel];
#pragma unroll
			for (int q = 0; q < SLICES; q++)
				sum += s->slice[q * WIDTH + channel];
			s->before.vector[channel] = sum;
		}
		__syncthreads();
	}
}

/* Publish the tile's aggregate s->own and fold before(t). */
template <int AHEAD, int WIDTH>
__device__ __forceinline__ void additive_exchange(const additive_cut &c, additive_shared<WIDTH> *s, int64_t chain,
                                                  int t)
{
	const int64_t base = chain * (c.count + c.supers);
	const int super = t / ADDITIVE_SUPER;
	const bool closes = c.supers && t % ADDITIVE_SUPER == ADDITIVE_SUPER - 1;
	additive_publish(c, s, base + t, false);
	if (closes && !c.global) {
		additive_gather<AHEAD>(c, s, chain, {t - t % ADDITIVE_SUPER, ADDITIVE_SUPER - 1, 0, 0, 0, 0});
		additive_publish(c, s, base + c.count + super, true);
	}
	int low = c.global || t < c.tiles ? 0 : t - c.tiles + 1;
	additive_gather<AHEAD>(c, s, chain, additive_span_of(c, low, t));
	if (closes && c.global)
		additive_publish(c, s, base + c.count + super, true);
}

/* --- a tile ------------------------------------------------------------------------------------------- */

/* Run by one thread, since it takes a hundred instructions. */
__device__ __forceinline__ additive_place additive_place_of(const additive_cut &c)
{
	const unsigned chains = (unsigned)(c.batch * c.heads * c.chunks), index = blockIdx.x;
	const unsigned whole = (unsigned)c.wave * (unsigned)c.count, first = index / whole * (unsigned)c.wave;
	const unsigned wave = chains - first < (unsigned)c.wave ? chains - first : (unsigned)c.wave;
	const unsigned chain = first + index % whole % wave;
	additive_place p;
	p.t = (int)(index % whole / wave);
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

/* Bits of this group's rows that begin a segment, and of those that end one. */
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
template <int R> __device__ __forceinline__ unsigned additive_present(int from, int stop)
{
	const int low = from < 0 ? -from : 0, high = stop - from < R ? stop - from : (int)R;
	return low < high ? (1u << high) - (1u << low) : 0;
}

/* Keep the bits of this lane's own rows that the mask admits. mask: that of row 0, `step` to the next; NULL: all. */
template <class C, int R>
__device__ __forceinline__ unsigned additive_seen(const int32_t *mask, int step, unsigned bits)
{
	typedef additive_held<C, R> held;
	unsigned seen = bits;
#pragma unroll
	for (int i = 0; i < held::SLOTS && mask; i++)
		if (bits >> held::row(i) & 1 && !mask[held::row(i) * step])
			seen &= ~(1u << held::row(i));
	return seen;
}

/* One tile. W defines the scores, values and vectors, and uses the windows' sums:
 *    W::C, W::R, W::WINDOW   lanes, rows of a group, whether there is a far side
 *    W::ONES                 all values are 1; without a far side, vectors of `done` are divided by their sums
 *    W::stages               stages of rows in shared memory: near, far (WINDOW), and those that W adds
 *    start(place, first, present)   first march position of this group, bits of its rows that exist
 *    fetch<FAR>(rows, present)      request the group's rows, or (FAR) those one window before
 *    arrive<FAR>(rows, present)     the rows have arrived: set their scores (-inf: absent) and values
 *    ready()                 before the sums are needed
 *    weigh(near), weigh(near, far)   tops and sums of all rows, the far ones without the row itself
 *    done(r, near), done(r, near, far)   vectors of row r, r = 0 … R - 1, whose tops and sums were given to weigh
 *    end_tile()              all threads */
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

	/* All rows are requested at once, before any other work. */
	additive_rows<C, R, W::ONES> near = {}, far = {};
	near.stage = stage;
	far.stage = stage + 1;
	const unsigned present = additive_present<R>(from, p.first + p.rows);
	const int last = p.first + p.full - c.window;
	const unsigned far_present = W::WINDOW ? additive_present<R>(from - c.window, last < c.length ? last : c.length) : 0;
	work.start(p, from, present);
	work.template fetch<false>(near, present);
	copy_commit();
	if constexpr (W::WINDOW) {
		work.template fetch<true>(far, far_present);
		copy_commit();
	}
	if (c.waits && threadIdx.x == 0)
		s->number = additive_number(c); /* while the rows arrive */
	copy_wait<W::WINDOW>();

	/* Per group: first the aggregate that leaves it to the right since its last border, then the one that precedes
	 * it. */
	work.template arrive<false>(near, present);
	additive_aggregate<C::E> before = near.fold(begin ? ~0u << (31 - __clz((int)begin)) : ~0u), after = {};
	bool before_cut = begin != 0, after_cut = end != 0;
	additive_scan_warp<C, false>(before, before_cut, &s->near);
	if constexpr (W::WINDOW) { /* in the window before: the aggregate that follows the group */
		copy_wait<0>();
		work.template arrive<true>(far, far_present);
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
		additive_exchange<W::WINDOW ? 4 : 8>(c, s, p.chain, p.t);
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
	const auto near_course = additive_course_of<false, MEAN>(near, before.top, before.sum, begin);
	additive_course<C, R> far_course;
	if constexpr (W::WINDOW) {
		far_course = additive_course_of<true, false>(far, after.top, after.sum, end);
		work.weigh(near_course, far_course);
	} else {
		work.weigh(near_course);
	}
#pragma unroll
	for (int part = 0; part < R; part += PART) { /* as many rows as registers can hold the suffixes of */
		float suffix[PART][C::E];
		__syncwarp(); /* as in fold */
		if constexpr (W::WINDOW) {
			float sum[C::E];
#pragma unroll
			for (int e = 0; e < C::E; e++)
				sum[e] = after.vector[e];
#pragma unroll
			for (int r = R - 1; r >= part; r--) {
#pragma unroll
				for (int e = 0; e < C::E && r < part + PART; e++)
					suffix[r - part][e] = sum[e];
				if (r > part)
					additive_add<C>(sum, far_course.keep.get(r), far_course.weight.get(r), far.stage->get(r));
			}
		}
#pragma unroll
		for (int r = part; r < part + PART; r++) {
			additive_add<C>(before.vector, near_course.keep.get(r), near_course.weight.get(r), near.stage->get(r));
			if constexpr (W::WINDOW)
				work.done(r, before.vector, suffix[r - part]);
			else
				work.done(r, before.vector);
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
