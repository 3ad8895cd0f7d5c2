/* The kernel of long runs of queries of dilated_stream.cuh. A block has the queries of one head at 64 positions, from a
 * multiple of 64 on, so that they seldom are in two segments. In each branch the rows that the head keeps of a segment
 * are a dense attention. All of the block's queries among them see the same keys up to their own; they are a pass. For
 * each tile of 32 kept keys, the block copies keys and values into shared memory once, and a warp computes 16 queries of
 * the pass. It merges the tile's sums into the totals of its queries. All warps share these: each branch that keeps a
 * query has it in one pass. The warps take turns to be the first of a pass, since most passes have work for one or two.
 *
 * Keys are copied while values are added, and values while scores are computed. Bytes: for a branch of dilation r, up to
 * r / 64 of the reads of attend. Instructions of a warp for a tile of 64 channels: those of softmax_stream_long.cu. */
#include "cuda/dilated_stream.cuh"

enum {
	POSITIONS = 64, /* per block */
	WARPS = POSITIONS / ROWS,
	WIDEST = 128 /* channels of a head */
};

/* Shared memory: a tile's keys and values, and the totals of the queries; the rest for each warp. */
struct block_desk {
	float *key, *value; /* [TILE][ROW], [TILE][LANES · QUAD] */
	float *total;       /* [POSITIONS][LANES · QUAD] merged tiles */
	merged *all;        /* [POSITIONS] */
	float *query;       /* [ROWS][ROW] in the order of query_row */
	float *exponential; /* [TILE][EXPONENTIAL_ROW] */
	float2 *norm;       /* [ROWS] m and z of a tile, then the factors that merge it */
};

template <int LANES>
static constexpr size_t block_floats = TILE * (ROW<LANES> + LANES * QUAD) + POSITIONS * (LANES * QUAD + 2);
template <int LANES> static constexpr size_t warp_floats = ROWS *(ROW<LANES> + 2) + TILE * EXPONENTIAL_ROW;
template <int LANES>
static constexpr size_t block_bytes = (block_floats<LANES> + WARPS * warp_floats<LANES>) * sizeof(float);

template <int LANES> static __device__ __forceinline__ block_desk desk_of(int warp)
{
	block_desk w;
	w.key = shared_memory<float>();
	w.value = w.key + TILE * ROW<LANES>;
	w.total = w.value + TILE * LANES * QUAD;
	w.all = (merged *)(w.total + POSITIONS * LANES * QUAD);
	w.query = w.key + block_floats<LANES> + warp * warp_floats<LANES>;
	w.exponential = w.query + ROWS * ROW<LANES>;
	w.norm = (float2 *)(w.exponential + TILE * EXPONENTIAL_ROW);
	return w;
}

/* Tiles of POSITIONS positions that a sequence with room for n tokens has, at any position, or more. */
static inline __device__ __host__ unsigned tiles_of(int64_t n)
{
	return (unsigned)((n + POSITIONS - 2) / POSITIONS + 1);
}

/* Index of the sequence's first tile. With `start` a sequence has ⌊start[s+1] / 64⌋ - ⌊start[s] / 64⌋ + 2 tiles, which
 * are not fewer than tiles_of its room. */
static __device__ __forceinline__ unsigned first_tile(const dilated_ring &c, unsigned row)
{
	return c.start ? (unsigned)c.start[row] / POSITIONS + 2 * row : row * tiles_of(c.n);
}

static __device__ __forceinline__ unsigned row_of_tile(const dilated_ring &c, unsigned tile)
{
	if (!c.start)
		return tile / tiles_of(c.n);
	unsigned low = 0, high = (unsigned)c.rows;
	while (high - low > 1) {
		const unsigned middle = (low + high) / 2;
		const bool before = first_tile(c, middle) <= tile;
		low = before ? middle : low;
		high = before ? high : middle;
	}
	return low;
}

/* The kept rows of one segment of a branch, row a being token first + a · step, and a tile of them. The block's queries
 * are rows row … end - 1. */
struct pass {
	unsigned first, step, row, end, base;
	unsigned turn;  /* the warp of the first queries */
	unsigned start; /* first token of the next segment */
	int branch;
};

/* First token of the segment of position t. */
static __device__ __forceinline__ unsigned segment_of(const dilated_ring &c, int branch, unsigned t)
{
	const unsigned segment = (unsigned)c.pattern.segment[branch];
	return t / segment * segment;
}

/* Go to the first pass from p.start in p.branch on with queries at positions begin … end - 1. Return false if there is
 * none. */
static __device__ __forceinline__ bool find_pass(const dilated_ring &c, unsigned head, unsigned begin, unsigned end,
                                                 pass &p)
{
	while (p.branch < c.pattern.branches) {
		const unsigned segment = (unsigned)c.pattern.segment[p.branch];
		if (p.start >= end) {
			if (++p.branch < c.pattern.branches)
				p.start = segment_of(c, p.branch, begin);
			continue;
		}
		const unsigned offset = (unsigned)dilated_first(&c.pattern, p.branch, c.heads, head);
		p.step = (unsigned)c.pattern.dilation[p.branch];
		p.first = p.start + offset;
		p.row = (unsigned)dilated_kept(max(begin, p.start) - p.start, offset, p.step);
		p.end = (unsigned)dilated_kept(min(end - p.start, segment), offset, p.step);
		p.base = 0;
		p.start += segment;
		if (p.row < p.end)
			return true;
	}
	return false;
}

/* The queries of a warp in a pass: `count` rows, row `row` first. */
struct queries {
	unsigned row;
	int count;
};

static __device__ __forceinline__ queries queries_of(const pass &p, unsigned warp)
{
	const unsigned row = p.row + (warp - p.turn) % WARPS * ROWS;
	return {row, row < p.end ? (int)min(p.end - row, (unsigned)ROWS) : 0};
}

/* Start to copy the keys of a tile, or its values; before the first keys of a pass, also each warp's queries. */
template <int LANES>
static __device__ __forceinline__ void copy_tile(const dilated_ring &c, const sequence_rows &s, const pass &p,
                                                 bool value, const block_desk &desk)
{
	const unsigned lane = threadIdx.x % WARP, a = p.base + lane;
	if (!value && p.base == 0) {
		const queries own = queries_of(p, threadIdx.x / WARP);
#pragma unroll 1
		for (int i = lane; i < ROWS * LANES && own.count > 0; i += WARP) {
			const int q = i / LANES, d = i % LANES * QUAD;
			const bool some = q < own.count && d < c.dh;
			const unsigned token = p.first + (own.row + q) * p.step - s.position;
			copy_async(desk.query + query_row(q) * ROW<LANES> + d, some ? s.query + (int64_t)token * c.d + d : c.q,
			           some ? (int)sizeof(quad) : 0);
		}
	}
	copy_rows<LANES>(a < p.end ? row_at(c, s, p.first + a * p.step, value) : nullptr, (int)c.dh, c.q,
	                 value ? desk.value : desk.key, value ? LANES * QUAD : ROW<LANES>);
}

/* The exponentials of a tile, and m and z of each query. present: bit j: key `base` + j is present. */
static __device__ __forceinline__ void tile_exponentials(const dilated_ring &c, unsigned base, unsigned present,
                                                         const queries &own, float score[OWN][KEYS],
                                                         const block_desk &desk)
{
	const int lane = threadIdx.x % WARP, group = lane / KEY_LANES, own_key = lane % KEY_LANES;
	const unsigned bits = present >> own_key;
#pragma unroll
	for (int b = 0; b < OWN; b++) {
		const int i = group * OWN + b, last = i < own.count ? (int)(own.row + i - base) - own_key : -1;
#pragma unroll
		for (int a = 0; a < KEYS; a++)
			score[b][a] = (a * KEY_LANES <= last) & ((bits >> a * KEY_LANES & 1) != 0)
			                  ? __fmul_rn(c.scale, score[b][a])
			                  : -INFINITY;
		float from;
		const float2 norm = soften(score[b], -INFINITY, from);
		if (own_key == 0)
			desk.norm[i] = norm;
	}
	store_exponentials(score, desk.exponential);
}

/* Merge a tile's sums into the totals of the queries. place: the first query's; part p of the warp has queries p,
 * p + PARTS, … */
template <int LANES>
static __device__ __forceinline__ void merge_tile(const block_desk &desk, quad sum[ROWS], unsigned place, unsigned step,
                                                  int count)
{
	enum { PARTS = WARP / LANES };
	const int lane = threadIdx.x % WARP, part = lane / LANES, d = lane % LANES * QUAD;
	if (lane < count)
		desk.norm[lane] = merge_chunk(desk.all[place + lane * step], desk.norm[lane]);
	__syncwarp();
#pragma unroll
	for (int q = 0; q < ROWS; q++) {
		if (q >= count)
			break;
		add_parts<LANES>(sum[q]);
		if (q % PARTS == part) {
			float *to = desk.total + (place + q * step) * LANES * QUAD + d;
			quad total = load_pack(to);
			merge_sums(total, sum[q], desk.norm[q]);
			store_pack(to, total);
		}
	}
}

template <int LANES>
__global__ void __launch_bounds__(WARPS *WARP, LANES < WARP ? 3 : 2) dilated_long_kernel(dilated_ring c)
{
	const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, heads = (unsigned)c.heads;
	const unsigned tile = blockIdx.x / heads, head = blockIdx.x % heads, row = row_of_tile(c, tile);
	const sequence_rows s = sequence_rows_of(c, row, head);
	/* The tile's first position, and its tokens in the sequence's room. */
	const unsigned origin = (s.position / POSITIONS + tile - first_tile(c, row)) * POSITIONS;
	const unsigned begin = max(origin, s.position);
	const unsigned room = min(origin + POSITIONS, s.position + (unsigned)s.tokens.room);
	const unsigned end = min(room, s.position + s.length);
	float *y = c.y + s.tokens.first * c.d + head * c.dh;
	for (unsigned i = threadIdx.x; i < POSITIONS * LANES; i += WARPS * WARP) {
		const unsigned t = origin + i / LANES, d = i % LANES * QUAD;
		if (t >= max(begin, end) && t < room && d < c.dh)
			store_pack(y + (int64_t)(t - s.position) * c.d + d, quad{}); /* a token that is not read */
	}
	if (!is_long(c, s) || begin >= end)
		return;
	const block_desk desk = desk_of<LANES>(warp);
	for (unsigned i = threadIdx.x; i < POSITIONS * LANES; i += WARPS * WARP)
		store_pack(desk.total + i * QUAD, quad{});
	if (threadIdx.x < POSITIONS)
		desk.all[threadIdx.x] = NOTHING_MERGED;
	pass p = {};
	p.start = segment_of(c, 0, begin);
	bool some = find_pass(c, head, begin, end, p);
	if (some)
		copy_tile<LANES>(c, s, p, false, desk);
	while (some) {
		const queries own = queries_of(p, warp);
		const bool busy = own.count > 0 && p.base < own.row + own.count;
		const unsigned a = p.base + lane, place = p.first + own.row * p.step - origin, step = p.step;
		const bool present = a < p.end && is_present(c, s, p.first + a * p.step);
		copy_wait<0>();
		__syncthreads(); /* all keys are copied, and every warp is done with the previous values */
		copy_tile<LANES>(c, s, p, true, desk);
		__syncwarp(); /* as in add_scores */
		if (busy) {
			float score[OWN][KEYS];
			add_scores<LANES, 0, 1>(desk.query + lane / KEY_LANES * ROW<LANES>,
			                        desk.key + lane % KEY_LANES * ROW<LANES>, score);
			__syncwarp();
			tile_exponentials(c, p.base, __ballot_sync(ALL_LANES, present), own, score, desk);
		}
		copy_wait<0>();
		__syncthreads(); /* all values are copied, and every warp is done with the keys */
		p.base += TILE;
		if (p.base >= p.end) {
			p.turn += (p.end - p.row + ROWS - 1) / ROWS;
			some = find_pass(c, head, begin, end, p);
		}
		if (some)
			copy_tile<LANES>(c, s, p, false, desk);
		if (busy) {
			quad sum[ROWS] = {};
			add_values<LANES>(desk.exponential, desk.value, sum);
			merge_tile<LANES>(desk, sum, place, step, own.count);
		}
	}
	__syncthreads();
	for (unsigned i = threadIdx.x; i < POSITIONS * LANES; i += WARPS * WARP) {
		const unsigned t = origin + i / LANES, d = i % LANES * QUAD;
		if (t >= begin && t < end && d < c.dh)
			store_pack(y + (int64_t)(t - s.position) * c.d + d,
			           answer_of(load_pack(desk.total + i * QUAD), inverse_of(desk.all[i / LANES])));
	}
}

/* --- the call -------------------------------------------------------------------------------------- */

static int64_t blocks_of(const dilated_ring *c)
{
	return c->heads * (c->start ? c->tokens / POSITIONS + 2 * c->rows : c->rows * (int64_t)tiles_of(c->n));
}

bool cuda_dilated_long_fits(const backend *b, const dilated_ring *c)
{
	const size_t bytes = c->dh <= 16 * QUAD ? block_bytes<16> : block_bytes<32>;
	return c->dh <= WIDEST && blocks_of(c) <= INT32_MAX && bytes <= cuda_of(b)->shared_limit;
}

status cuda_dilated_long(backend *b, const dilated_ring *c)
{
	return by_lanes(c->dh, [&](auto lanes) {
		enum { LANES = decltype(lanes)::N };
		return cuda_launch(b, dilated_long_kernel<LANES>, cuda_extent(blocks_of(c)), WARPS * WARP,
		                   block_bytes<LANES>, *c);
	});
}
