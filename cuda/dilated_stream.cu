/* dilated_stream: queries against the ring of engine/tensor/ops/dilated.h and the call's own tokens.
 *
 * Attend: a block has a head of a token. The branches that keep the token have tiles of 32 kept keys, which the warps
 * take in turn, each with its own online softmax (Milakov and Gimelshein 2018). For scores, a part of the warp
 * (stream.cuh) is along the channels of a key; for exponentials, a lane has a key; for values, lanes are along the
 * channels again. The warps' results are merged in shared memory in order. The call's keys and values are read in
 * place, older ones from the ring, which this kernel does not change. A second kernel writes the call's last tokens
 * into the ring.
 *
 * The keys of a warp depend on the position alone. So y depends neither on the batch nor on how the tokens are cut into
 * calls.
 *
 * Bytes: the keys and values that a token reads (8 per channel), and 24 per channel and token for q, k, v, y and the
 * ring. */
#include "cuda/kernels.h"
#include "cuda/stream.cuh"

extern "C" {
#include "engine/tensor/ops/dilated.h"
}

enum { TILE = WARP, WARPS = 8 };

/* Arguments of the call. */
struct dilated_ring {
	dilated_pattern pattern;
	const float *q, *k, *v;
	float *pool, *y;                                        /* y may be NULL */
	const int32_t *slot, *position, *length, *mask, *start; /* the last two may be NULL */
	int64_t n, d, heads, dh, window;
	int64_t slot_floats, offset;
	int64_t tokens, rows; /* in all sequences; number of sequences */
	int64_t quads;        /* per lane */
	float scale;
};

/* Sequence of a token: the last that begins at it or before. */
static __device__ __forceinline__ int64_t dilated_stream_row_of(const dilated_ring &c, int64_t token)
{
	if (!c.start)
		return token / c.n;
	int64_t low = 0, high = c.rows;
	while (high - low > 1) {
		const int64_t middle = (low + high) / 2;
		*(c.start[middle] <= token ? &low : &high) = middle;
	}
	return low;
}

/* A sequence, from a head's first channel on. */
struct sequence_rows {
	const float *key, *value, *ring; /* the call's first token; the state */
	const float *present;
	const int32_t *mask; /* the call's tokens; may be NULL */
	int64_t position;
};

static __device__ __forceinline__ const float *row_at(const dilated_ring &c, const sequence_rows &s, int64_t j,
                                                      bool value)
{
	if (j >= s.position)
		return (value ? s.value : s.key) + (j - s.position) * c.d;
	const int64_t place = j % c.window;
	return s.ring + (value ? dilated_value(c.d, c.window, place) : dilated_key(c.d, place));
}

static __device__ __forceinline__ bool is_present(const dilated_ring &c, const sequence_rows &s, int64_t j)
{
	if (j >= s.position)
		return !s.mask || s.mask[j - s.position] != 0;
	return s.present[j % c.window] != 0.0f;
}

/* A warp's shared memory: quads [quads][lane] of the query and of its sums, and a tile's scores. */
struct dilated_desk {
	float4 *query, *sum;
	float *score;
};

static inline __device__ __host__ size_t desk_floats(int64_t quads)
{
	return 2 * (size_t)quads * WARP * QUAD + TILE;
}

static __device__ __forceinline__ quad dilated_stream_take(const float4 *from)
{
	return load_pack((const float *)from);
}

static __device__ __forceinline__ void dilated_stream_put(float4 *to, const quad &q)
{
	store_pack((float *)to, q);
}

/* One tile: the `count` ≤ TILE tokens first, first + step, … */
template <int LANES, bool PACKED>
static __device__ __forceinline__ void attend_tile(const dilated_ring &c, const sequence_rows &s, int64_t first,
                                                   int64_t step, int count, const dilated_desk &w, float &m, float &z)
{
	enum { PARTS = WARP / LANES };
	const int lane = threadIdx.x % WARP, part = lane / LANES, channel = lane % LANES * QUAD;
	for (int key = part; key < TILE; key += PARTS) {
		float sum = 0.0f;
		for (int64_t i = 0; i < c.quads && key < count; i++) {
			const int64_t d = channel + i * LANES * QUAD;
			if (d < c.dh)
				sum =
				    quad_dot(dilated_stream_take(w.query + i * WARP + lane),
				             load_quad<PACKED>(row_at(c, s, first + key * step, false), d, c.dh), sum);
		}
		sum = warp_sum<LANES>(sum);
		if (channel == 0)
			w.score[key] = __fmul_rn(c.scale, sum);
	}
	__syncwarp();
	const bool seen = lane < count && is_present(c, s, first + lane * step);
	const float score = seen ? w.score[lane] : -INFINITY, top = fmaxf(m, warp_max(score));
	const bool none = top == -INFINITY;
	const float e = none ? 0.0f : expf(score - top), shrink = none ? 1.0f : expf(m - top);
	z = __fmaf_rn(shrink, z, warp_sum(e));
	m = top;
	w.score[lane] = e;
	__syncwarp();
	for (int64_t i = 0; i < c.quads; i++) {
		const int64_t d = channel + i * LANES * QUAD;
		const quad nothing = {};
		quad sum = dilated_stream_take(w.sum + i * WARP + lane);
		quad_merge(sum, shrink, nothing, 0.0f);
		for (int key = part; key < count && d < c.dh; key += PARTS)
			if (w.score[key] > 0.0f) /* the value of a masked token may be anything */
				quad_merge(sum, 1.0f,
				           load_quad<PACKED>(row_at(c, s, first + key * step, true), d, c.dh),
				           w.score[key]);
		dilated_stream_put(w.sum + i * WARP + lane, sum);
	}
	__syncwarp();
}

/* Merge the parts of a warp: the first LANES lanes get the sums. */
template <int LANES> static __device__ __forceinline__ void fold(const dilated_ring &c, const dilated_desk &w)
{
	const int lane = threadIdx.x % WARP;
	for (int64_t i = 0; i < c.quads; i++) {
		quad sum = dilated_stream_take(w.sum + i * WARP + lane);
#pragma unroll
		for (int e = 0; e < QUAD; e++) {
#pragma unroll
			for (int flip = LANES; flip < WARP; flip *= 2)
				sum.at[e] += __shfl_xor_sync(ALL_LANES, sum.at[e], flip);
		}
		dilated_stream_put(w.sum + i * WARP + lane, sum);
	}
}

template <int LANES, bool PACKED>
__global__ void __launch_bounds__(WARPS *WARP, 1) dilated_attend_kernel(dilated_ring c)
{
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, channel = lane % LANES * QUAD;
	const int64_t token = blockIdx.x / c.heads, head = blockIdx.x % c.heads, row = dilated_stream_row_of(c, token);
	const token_span span = tokens_of(c.start, c.rows, c.n, row);
	const int64_t i = token - span.first, t = c.position[row] + i;
	float *y = c.y + token * c.d + head * c.dh;
	if (i >= c.length[row]) {
		for (int64_t d = threadIdx.x; d < c.dh; d += WARPS * WARP)
			y[d] = 0.0f;
		return;
	}
	const float *state = c.pool + c.slot[row] * c.slot_floats + c.offset;
	const int64_t first = span.first * c.d + head * c.dh;
	const sequence_rows s = {c.k + first,
	                         c.v + first,
	                         state + head * c.dh,
	                         state + dilated_there(c.d, c.window, 0),
	                         c.mask ? c.mask + span.first : nullptr,
	                         c.position[row]};
	float *memory = shared_memory<float>(), *norms = memory + WARPS * desk_floats(c.quads);
	float4 *own = (float4 *)(memory + warp * desk_floats(c.quads));
	const dilated_desk w = {own, own + c.quads * WARP, (float *)(own + 2 * c.quads * WARP)};
	float m = -INFINITY, z = 0.0f;
	for (int64_t k = 0; k < c.quads; k++) {
		const int64_t d = channel + k * LANES * QUAD;
		quad x = {};
		if (d < c.dh)
			x = load_quad<PACKED>(c.q + first + i * c.d, d, c.dh);
		dilated_stream_put(w.query + k * WARP + lane, x);
		dilated_stream_put(w.sum + k * WARP + lane, {});
	}
	for (int64_t b = 0, tile = 0; b < c.pattern.branches; b++) {
		const int64_t r = c.pattern.dilation[b], start = t / c.pattern.segment[b] * c.pattern.segment[b];
		const int64_t offset = dilated_first(&c.pattern, b, c.heads, head);
		if ((t - start) % r != offset)
			continue;
		const int64_t count = dilated_kept(t + 1 - start, offset, r);
		for (int64_t j = 0; j < count; j += TILE, tile++)
			if (tile % WARPS == warp)
				attend_tile<LANES, PACKED>(c, s, start + offset + j * r, r,
				                           (int)min(count - j, (int64_t)TILE), w, m, z);
	}
	fold<LANES>(c, w);
	if (lane == 0)
		norms[2 * warp] = m, norms[2 * warp + 1] = z;
	__syncthreads();
	float top = -INFINITY, total = 0.0f;
	for (int k = 0; k < WARPS; k++)
		top = fmaxf(top, norms[2 * k]);
	for (int k = 0; k < WARPS && top > -INFINITY; k++)
		total = __fmaf_rn(expf(norms[2 * k] - top), norms[2 * k + 1], total);
	for (int64_t d = threadIdx.x; d < c.dh; d += WARPS * WARP) {
		float sum = 0.0f;
		/* Channel d is in quad d / QUAD; a lane's next quad comes after LANES quads. */
		const int64_t at = (d / QUAD / LANES * WARP + d / QUAD % LANES) * QUAD + d % QUAD;
		for (int k = 0; k < WARPS && total > 0.0f; k++)
			sum = __fmaf_rn(expf(norms[2 * k] - top),
			                memory[k * desk_floats(c.quads) + c.quads * WARP * QUAD + at], sum);
		y[d] = total > 0.0f ? __fdiv_rn(sum, total) : 0.0f;
	}
}

/* A block for each token of the call writes it to the ring if it is among the row's last `window`. */
static __global__ void __launch_bounds__(WARPS *WARP) dilated_append_kernel(dilated_ring c)
{
	const int64_t token = blockIdx.x, row = dilated_stream_row_of(c, token);
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

status cuda_dilated_stream(backend *b, const op_call *call)
{
	dilated_ring c = dilated_ring_of(call);
	if (shape_count(call->in[0].shape) == 0)
		return STATUS_OK;
	const bool packed = c.dh % QUAD == 0 && c.slot_floats % QUAD == 0 && c.offset % QUAD == 0;
	if (c.y)
		TRY(by_lanes(c.dh, [&](auto lanes) {
			enum { LANES = decltype(lanes)::N };
			c.quads = (c.dh + LANES * QUAD - 1) / (LANES * QUAD);
			const size_t bytes = (WARPS * desk_floats(c.quads) + 2 * WARPS) * sizeof(float);
			if (bytes > cuda_of(b)->shared_limit)
				return STATUS_UNSUPPORTED;
			const unsigned blocks = cuda_extent(c.tokens * c.heads);
			return packed
			           ? cuda_launch(b, dilated_attend_kernel<LANES, true>, blocks, WARPS * WARP, bytes, c)
			           : cuda_launch(b, dilated_attend_kernel<LANES, false>, blocks, WARPS * WARP, bytes,
			                         c);
		}));
	return cuda_launch(b, dilated_append_kernel, cuda_extent(c.tokens), WARPS * WARP, 0, c);
}
