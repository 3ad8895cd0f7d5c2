/* dilated_stream: queries against a ring and the call's own tokens (dilated_stream.cuh).
 *
 * Attend: a block has a head of a token. Lane b of each warp finds the rows that branch b keeps for the query, and the
 * warps take their tiles in turn. For scores, a part of the warp (stream.cuh) is along the channels of a key; for
 * exponentials, a lane has a key; for values, lanes are along the channels again. Each tile leaves its sums in shared
 * memory. All threads merge them in order.
 *
 * Bytes: the keys and values that a token reads (8 per channel), and 24 per channel and token for q, k, v, y and the
 * ring. */
#include "cuda/dilated_stream.cuh"

enum {
	WARPS = 8,
	MOST_TILES = 4 * WARPS, /* tiles whose sums a block keeps at once */
	LOAD = 48               /* queries of all heads per processor from which a call is split */
};

/* Floats of a tile's sums. */
static inline __device__ __host__ int64_t sum_width(const dilated_ring &c)
{
	return (c.dh + QUAD - 1) / QUAD * QUAD;
}

/* Shared memory of a block; the scores are a warp's. */
struct dilated_desk {
	float *query; /* [sum_width] */
	float *sum;   /* [places][sum_width] */
	float *total; /* [sum_width] merged tiles of earlier rounds */
	float2 *norm; /* [places] m and z */
	float *score; /* [TILE] */
};

static size_t attend_bytes(const dilated_ring &c, int64_t places)
{
	return (size_t)((places + 2) * sum_width(c) + 2 * places + WARPS * TILE) * sizeof(float);
}

static __device__ __forceinline__ dilated_desk desk_of(const dilated_ring &c)
{
	const int64_t width = sum_width(c);
	dilated_desk w;
	w.query = shared_memory<float>();
	w.sum = w.query + width;
	w.total = w.sum + c.places * width;
	w.norm = (float2 *)(w.total + width);
	w.score = (float *)(w.norm + c.places) + threadIdx.x / WARP * TILE;
	return w;
}

/* The rows of a branch that a query sees: tokens first, first + step, … */
struct kept_rows {
	unsigned first, step, count;
};

static __device__ __forceinline__ kept_rows kept_rows_of(const dilated_ring &c, int64_t branch, int64_t head, unsigned t)
{
	const unsigned segment = (unsigned)c.pattern.segment[branch], step = (unsigned)c.pattern.dilation[branch];
	const unsigned start = t / segment * segment, own = t - start;
	const unsigned offset = (unsigned)dilated_first(&c.pattern, branch, c.heads, head);
	return {start + offset, step, own % step == offset ? own / step + 1 : 0};
}

/* Leave the sums of a tile of `rows` at `place`. */
template <int LANES, bool PACKED>
static __device__ __forceinline__ void attend_tile(const dilated_ring &c, const sequence_rows &s, const kept_rows &rows,
                                                   const dilated_desk &w, unsigned place)
{
	enum { PARTS = WARP / LANES };
	const int lane = threadIdx.x % WARP, part = lane / LANES, channel = lane % LANES * QUAD;
	const int quads = LANES < WARP ? 1 : (int)c.quads;
	const bool some = (unsigned)lane < rows.count;
	const unsigned j = rows.first + lane * rows.step;
	const float *own = some ? row_at(c, s, j, false) : nullptr;
#pragma unroll 4
	for (int key = part; key < TILE; key += PARTS) {
		const float *from = (const float *)__shfl_sync(ALL_LANES, (unsigned long long)own, key);
		float sum = 0.0f;
		for (int i = 0; i < quads && from; i++) {
			const int d = channel + i * LANES * QUAD;
			if (d < c.dh)
				sum = quad_dot(load_pack(w.query + d), load_quad<PACKED>(from, d, c.dh), sum);
		}
		sum = warp_sum<LANES>(sum);
		if (channel == 0)
			w.score[key] = __fmul_rn(c.scale, sum);
	}
	__syncwarp();
	const float score = some && is_present(c, s, j) ? w.score[lane] : -INFINITY, top = warp_max(score);
	const float e = top == -INFINITY ? 0.0f : expf(score - top), z = warp_sum(e);
	if (lane == 0)
		w.norm[place] = make_float2(top, z);
	own = e > 0.0f ? row_at(c, s, j, true) : nullptr; /* the value of a masked token may be anything */
	for (int i = 0; i < quads; i++) {
		const int d = channel + i * LANES * QUAD;
		quad sum = {};
#pragma unroll 4
		for (int key = part; key < TILE; key += PARTS) {
			const float *from = (const float *)__shfl_sync(ALL_LANES, (unsigned long long)own, key);
			const float weight = __shfl_sync(ALL_LANES, e, key);
			if (!from || d >= c.dh)
				continue;
			const quad v = load_quad<PACKED>(from, d, c.dh);
#pragma unroll
			for (int k = 0; k < QUAD; k++)
				sum.at[k] = __fmaf_rn(weight, v.at[k], sum.at[k]);
		}
		add_parts<LANES>(sum);
		if (part == 0 && d < c.dh)
			store_pack(w.sum + place * sum_width(c) + d, sum);
	}
	__syncwarp();
}

/* Merge the sums of `count` tiles into `all` and the totals, or with `last` into y. */
static __device__ __forceinline__ void merge_tiles(const dilated_ring &c, const dilated_desk &w, unsigned count,
                                                   bool last, merged &all, float *y)
{
	merged after = all;
	for (int64_t d = threadIdx.x; d < c.dh; d += WARPS * WARP) {
		float total = all.top == -INFINITY ? 0.0f : w.total[d];
		after = all;
#pragma unroll 4
		for (unsigned k = 0; k < count; k++) {
			const float2 by = merge_chunk(after, w.norm[k]);
			if (by.y > 0.0f)
				total = __fmaf_rn(by.y, w.sum[k * sum_width(c) + d], __fmul_rn(by.x, total));
		}
		const float inverse = inverse_of(after);
		if (last)
			y[d] = inverse > 0.0f ? __fmul_rn(total, inverse) : 0.0f;
		else
			w.total[d] = total;
	}
	all = after;
}

template <int LANES, bool PACKED>
__global__ void __launch_bounds__(WARPS *WARP, LANES < WARP ? 4 : 3) dilated_attend_kernel(dilated_ring c)
{
	const int lane = threadIdx.x % WARP;
	const unsigned warp = threadIdx.x / WARP, heads = (unsigned)c.heads, unit = blockIdx.x / heads;
	const int64_t head = blockIdx.x % heads, row = c.split ? unit / FEW : sequence_of(c.start, c.rows, c.n, unit);
	const sequence_rows s = sequence_rows_of(c, row, head);
	const unsigned i = c.split ? unit % FEW : unit - (unsigned)s.tokens.first, t = s.position + i;
	float *y = c.y + (s.tokens.first + i) * c.d + head * c.dh;
	if (is_long(c, s) || (c.split && i >= s.length))
		return;
	if (i >= s.length) {
		for (int64_t d = threadIdx.x; d < c.dh; d += WARPS * WARP)
			y[d] = 0.0f;
		return;
	}
	const dilated_desk w = desk_of(c);
	for (int64_t d = threadIdx.x; d < sum_width(c); d += WARPS * WARP)
		w.query[d] = d < c.dh ? s.query[(int64_t)i * c.d + d] : 0.0f;
	kept_rows own = {};
	if (lane < c.pattern.branches)
		own = kept_rows_of(c, lane, head, t);
	const unsigned tiles = (own.count + TILE - 1) / TILE;
	unsigned end = tiles; /* tiles of this branch and those before */
#pragma unroll
	for (int up = 1; up < WARP; up *= 2) {
		const unsigned before = __shfl_up_sync(ALL_LANES, end, up);
		end += lane >= up ? before : 0;
	}
	const unsigned all_tiles = __shfl_sync(ALL_LANES, end, WARP - 1);
	merged all = NOTHING_MERGED;
	__syncthreads();
	for (unsigned first = 0; first == 0 || first < all_tiles; first += c.places) {
		const unsigned count = min(all_tiles - first, c.places);
		for (unsigned place = warp; place < count; place += WARPS) {
			const unsigned tile = first + place, branch = __popc(__ballot_sync(ALL_LANES, end <= tile));
			kept_rows rows = {__shfl_sync(ALL_LANES, own.first, branch),
			                  __shfl_sync(ALL_LANES, own.step, branch),
			                  __shfl_sync(ALL_LANES, own.count, branch)};
			const unsigned skipped = (tile - __shfl_sync(ALL_LANES, end - tiles, branch)) * TILE;
			rows.first += skipped * rows.step;
			rows.count = min(rows.count - skipped, (unsigned)TILE);
			attend_tile<LANES, PACKED>(c, s, rows, w, place);
		}
		__syncthreads();
		merge_tiles(c, w, count, first + count == all_tiles, all, y);
		if (first + count < all_tiles)
			__syncthreads();
	}
}

/* A block for each token of the call writes it to the ring if it is among the row's last `window`. */
static __global__ void __launch_bounds__(WARPS *WARP) dilated_append_kernel(dilated_ring c)
{
	const int64_t token = blockIdx.x, row = sequence_of(c.start, c.rows, c.n, token);
	const int64_t i = token - tokens_of(c.start, c.rows, c.n, row).first, length = c.length[row];
	if (i >= length || i < length - c.window)
		return;
	const int64_t place = (c.position[row] + i) % c.window;
	float *state = c.pool + c.slot[row] * c.slot_floats + c.offset;
	for (int64_t d = threadIdx.x; d < c.d; d += blockDim.x) {
		state[dilated_key(c.d, place) + d] = c.k[token * c.d + d];
		state[dilated_value(c.d, c.window, place) + d] = c.v[token * c.d + d];
	}
	if (threadIdx.x == 0)
		state[dilated_there(c.d, c.window, place)] = !c.mask || c.mask[token] != 0 ? 1.0f : 0.0f;
}

/* --- the call -------------------------------------------------------------------------------------- */

static dilated_ring dilated_ring_of(const op_call *call)
{
	const dilated_stream_params *p = (const dilated_stream_params *)call->params;
	const shape q = call->in[0].shape;
	dilated_ring c = {};
	c.pattern = p->pattern;
	c.q = (const float *)call->in[0].data;
	c.k = (const float *)call->in[1].data;
	c.v = (const float *)call->in[2].data;
	c.pool = (float *)call->in[3].data;
	c.slot = (const int32_t *)call->in[4].data;
	c.position = (const int32_t *)call->in[5].data;
	c.length = (const int32_t *)call->in[6].data;
	c.mask = (const int32_t *)cuda_optional(call, 7);
	c.start = (const int32_t *)cuda_optional(call, 8);
	c.y = (float *)call->out[0].data;
	c.n = q.dim[1];
	c.d = q.dim[2];
	c.heads = p->heads;
	c.dh = c.d / c.heads;
	c.window = dilated_window(&p->pattern);
	c.slot_floats = call->in[3].shape.dim[1];
	c.offset = p->offset;
	c.tokens = q.dim[0] * q.dim[1];
	c.rows = call->in[4].shape.dim[0];
	c.scale = p->scale;
	return c;
}

static status attend(backend *b, dilated_ring c, bool packed)
{
	const int64_t limit = cuda_of(b)->shared_limit, blocks = (c.split ? c.rows * FEW : c.tokens) * c.heads;
	int64_t tiles = 0, places;
	for (int64_t i = 0; i < c.pattern.branches; i++) {
		const int64_t r = c.pattern.dilation[i], kept = (c.pattern.segment[i] + r - 1) / r;
		tiles += (kept + TILE - 1) / TILE;
	}
	for (places = max(min(tiles, (int64_t)MOST_TILES), (int64_t)1); places > 1 && (int64_t)attend_bytes(c, places) > limit;)
		places /= 2;
	if ((int64_t)attend_bytes(c, places) > limit || blocks > INT32_MAX)
		return STATUS_UNSUPPORTED;
	c.places = (unsigned)places;
	return by_lanes(c.dh, [&](auto lanes) {
		enum { LANES = decltype(lanes)::N };
		c.quads = (c.dh + LANES * QUAD - 1) / (LANES * QUAD);
		const auto run = [&](auto kernel) {
			return cuda_launch(b, kernel, cuda_extent(blocks), WARPS * WARP, attend_bytes(c, places), c);
		};
		return packed ? run(dilated_attend_kernel<LANES, true>) : run(dilated_attend_kernel<LANES, false>);
	});
}

status cuda_dilated_stream(backend *b, const op_call *call)
{
	dilated_ring c = dilated_ring_of(call);
	if (shape_count(call->in[0].shape) == 0)
		return STATUS_OK;
	const bool packed = c.dh % QUAD == 0 && c.slot_floats % QUAD == 0 && c.offset % QUAD == 0;
	c.split = c.y && packed && c.tokens > FEW * c.rows && c.tokens * c.heads >= LOAD * (int64_t)cuda_of(b)->processors &&
	          cuda_dilated_long_fits(b, &c);
	if (c.split)
		TRY(cuda_dilated_long(b, &c));
	if (c.y)
		TRY(attend(b, c, packed));
	return cuda_launch(b, dilated_append_kernel, cuda_extent(c.tokens), WARPS * WARP, 0, c);
}
