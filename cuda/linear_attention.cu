/* linear_attention and its gradient: weights φ(q)·φ(k) in chunks of TILE tokens.
 *
 * Every result is a row-wise product with a state of all tokens before (or after) its chunk and, if causal, with the
 * tokens of its chunk themselves:
 *
 *   out_t = c_t T + Σ_s (c_t·a_s) b_s     T: [dh, dh] sums of aᵀb over the other chunks, s: in the chunk, up to t
 *
 *   out     c        a        b       T          extra channel of c and a
 *   y       φ(q)     φ(k)     v       S
 *   dφ(q)   G        v        φ(k)    Sᵀ         c_t and 1, T: z
 *   dφ(k)   v        G        φ(q)    Rᵀ         1 and c_s, T: r     from the last token to the first
 *   dv      φ(k)     φ(q)     G       R                              from the last token to the first
 *
 * with S = Σ φ(k) vᵀ, z = Σ φ(k), R = Σ φ(q) Gᵀ, r = Σ c φ(q), G_t = Z_t dy_t, c_t = -Z_t dy_t·y_t. Three launches
 * compute the states: sums of each chunk (bidirectional: of a few long parts), then prefixes, suffixes or the total in
 * the order of the chunks, in place. So states take N dh / TILE floats per channel, and nothing is summed twice.
 *
 * A block of 256 threads computes 64 by 64 of a result, 4 by 4 each thread (softmax_attention.cuh, "plain"), in f32
 * whatever the type of the activations. Bytes per token and channel, f32, dh 64, forward: 28 (q twice where the head is
 * wide, k and v twice, y, states written, scanned and read). */
#include "cuda/kernels.h"
#include "cuda/softmax_attention.cuh"

enum {
	TILE = ATTENTION_TILE,
	WHOLE = 6, /* 2^WHOLE = TILE */
	PARTS = 16, /* maximum parts of a bidirectional sum */
	TILE_FLOATS = TILE * PLAIN_WIDE,
	SPACE = 2 * TILE_FLOATS * (int)sizeof(float),
	SUM_SPACE = SPACE + TILE * (int)sizeof(float)
};

/* The rows of a token: φ(q), φ(k), v and G. */
enum source { QUERY, KEY, VALUE, GRAD };
/* The result that is computed. */
enum result { POOLED, DQUERY, DKEY, DVALUE };

template <class T> struct linear_call {
	const T *query, *key, *value, *y, *dy;
	const int32_t *mask;     /* may be NULL */
	const float *normalizer; /* input of the gradient */
	float2 *scale;           /* gradient: Z and c of a token and head */
	float *sums, *back_sums; /* states S, z and R, r: [B·H, parts, dh · (dh + 1)] */
	T *out[3];
	float *out_normalizer; /* may be NULL */
	int64_t d, batch;
	int queries, keys, heads, dh;
	int parts, part, back_parts, back_part; /* for keys and for queries: number of chunks; tokens of each */
	bool causal;
	float eps;
};

/* --- rows ------------------------------------------------------------------------------------- */

__device__ __forceinline__ float feature(float x)
{
	return x > 0.0f ? x + 1.0f : expf(x);
}

/* A head of a sequence. */
struct chain {
	int64_t sequence, index; /* index: in [B·H] */
	int head;
};

template <source FROM, class T> __device__ __forceinline__ int length_of(const linear_call<T> &c)
{
	return FROM == KEY || FROM == VALUE ? c.keys : c.queries;
}

template <class T> __device__ __forceinline__ bool is_present(const linear_call<T> &c, const chain &h, int token)
{
	return !c.mask || c.mask[h.sequence * c.keys + token] != 0;
}

/* Channel `channel` of a token; 0 outside and where the key is masked. */
template <source FROM, class T>
__device__ __forceinline__ float fetch(const linear_call<T> &c, const chain &h, int token, int channel)
{
	const int length = length_of<FROM>(c);
	if (token >= length || channel >= c.dh)
		return 0.0f;
	const int64_t at = (h.sequence * length + token) * c.d + h.head * c.dh + channel;
	if (FROM == QUERY)
		return feature(load_real(c.query + at));
	if (FROM == GRAD)
		return c.scale[(h.sequence * length + token) * c.heads + h.head].x * load_real(c.dy + at);
	if (!is_present(c, h, token))
		return 0.0f;
	return FROM == KEY ? feature(load_real(c.key + at)) : load_real(c.value + at);
}

/* The channel after the last: 1 for a value, c for G. */
template <source FROM, class T>
__device__ __forceinline__ float extra(const linear_call<T> &c, const chain &h, int token)
{
	if (token >= length_of<FROM>(c))
		return 0.0f;
	if (FROM == GRAD)
		return c.scale[(h.sequence * c.queries + token) * c.heads + h.head].y;
	return is_present(c, h, token) ? 1.0f : 0.0f;
}

/* Channels of a tile that are loaded, as a power of two: narrow heads fill a part of it. */
template <class T> __device__ __forceinline__ int tile_shift(const linear_call<T> &c)
{
	return c.dh <= 16 ? 4 : c.dh <= 32 ? 5 : 6;
}

/* Load a tile of `count` tokens and 2^shift channels, with zeros outside, or its transpose. */
template <source FROM, bool transposed, class T>
__device__ __forceinline__ void load_tile(float *tile, const linear_call<T> &c, const chain &h, int token, int count,
                                          int channel, int shift)
{
#pragma unroll 4
	for (int i = threadIdx.x; i < count << shift; i += PLAIN_THREADS) {
		const int row = i >> shift, column = i & ((1 << shift) - 1);
		tile[transposed ? column * PLAIN_WIDE + row : row * PLAIN_WIDE + column] =
		    fetch<FROM>(c, h, token + row, channel + column);
	}
}

/* --- states -------------------------------------------------------------------------------------- */

__device__ __forceinline__ int64_t state_floats(int dh)
{
	return (int64_t)dh * (dh + 1);
}

/* Z and c of every token and head, one warp each. */
template <class T> __global__ void __launch_bounds__(PLAIN_THREADS) linear_scale_kernel(linear_call<T> c)
{
	const int lane = threadIdx.x % WARP;
	const int64_t unit = (int64_t)blockIdx.x * (PLAIN_THREADS / WARP) + threadIdx.x / WARP;
	if (unit >= c.batch * c.queries * c.heads)
		return;
	const int64_t at = unit / c.heads * c.d + unit % c.heads * c.dh;
	float along = 0.0f;
	for (int m = lane; m < c.dh; m += WARP)
		along += load_real(c.dy + at + m) * load_real(c.y + at + m);
	along = warp_sum(along);
	const float normalizer = c.normalizer[unit];
	const float inverse = normalizer > 0.0f ? 1.0f / (normalizer + c.eps) : 0.0f;
	if (lane == 0)
		c.scale[unit] = make_float2(inverse, -inverse * along);
}

/* Sums of one part of the tokens: 64 by 64 of S, and of z with its first columns; or of R and r. */
template <bool BACK, class T> __global__ void __launch_bounds__(PLAIN_THREADS) linear_sums_kernel(linear_call<T> c)
{
	constexpr source X = BACK ? QUERY : KEY, Y = BACK ? GRAD : VALUE;
	float *x = shared_memory<float>(), *y = x + TILE_FLOATS, *behind = y + TILE_FLOATS;
	const int parts = BACK ? c.back_parts : c.parts, part = BACK ? c.back_part : c.part;
	const int tiles = (c.dh + TILE - 1) / TILE;
	const int row = (int)blockIdx.y / tiles * TILE, column = (int)blockIdx.y % tiles * TILE;
	const int64_t index = blockIdx.x / (unsigned)parts;
	const chain h = {index / c.heads, index, (int)(index % c.heads)};
	const int first = (int)(blockIdx.x % (unsigned)parts) * part, past = min(first + part, length_of<X>(c));
	float sum[4][4] = {}, z = 0.0f;
	for (int token = first; token < past; token += TILE) {
		const int count = min((int)TILE, past - token);
		load_tile<X, false>(x, c, h, token, count, row, WHOLE);
		load_tile<Y, false>(y, c, h, token, count, column, WHOLE);
		if (threadIdx.x < TILE)
			behind[threadIdx.x] = extra<Y>(c, h, token + (int)threadIdx.x);
		__syncthreads();
		plain_accumulate<true>(sum, x, y, count);
		for (int t = 0; t < count && threadIdx.x < TILE && column == 0; t++)
			z += x[t * PLAIN_WIDE + threadIdx.x] * behind[t];
		__syncthreads();
	}
	float *to = (BACK ? c.back_sums : c.sums) + (int64_t)blockIdx.x * state_floats(c.dh);
#pragma unroll
	for (int i = 0; i < 16; i++) {
		const int r = row + plain_row() + i / 4, m = column + plain_column() + i % 4;
		if (r < c.dh && m < c.dh)
			to[(int64_t)r * c.dh + m] = sum[i / 4][i % 4];
	}
	if (column == 0 && threadIdx.x < TILE && row + (int)threadIdx.x < c.dh)
		to[(int64_t)c.dh * c.dh + row + threadIdx.x] = z;
}

/* A scan of `parts` numbers, `step` apart, that starts with `sum`. Loads of AT_ONCE parts overlap. */
__device__ __forceinline__ void scan_parts(float *at, int64_t step, int parts, float sum)
{
	enum { AT_ONCE = 8 };
	for (int p = 0; p < parts; p += AT_ONCE) {
		float mine[AT_ONCE];
#pragma unroll
		for (int i = 0; i < AT_ONCE; i++)
			mine[i] = p + i < parts ? at[(p + i) * step] : 0.0f;
#pragma unroll
		for (int i = 0; i < AT_ONCE; i++) {
			if (p + i < parts)
				at[(p + i) * step] = sum;
			sum += mine[i];
		}
	}
}

/* Sums of parts become sums of the earlier (back: later) parts. Without `causal`, the first becomes the sum of all. A
 * block has PLAIN_THREADS / groups neighbouring numbers; each group of threads has its run of parts, adds them up, and
 * scans them from the sum of the groups before. A single group needs no sum first. */
__global__ void __launch_bounds__(PLAIN_THREADS)
    linear_scan_kernel(float *sums, int64_t chains, int64_t floats, int parts, bool causal, bool back, int groups)
{
	float *space = shared_memory<float>();
	const int width = PLAIN_THREADS / groups, group = (int)threadIdx.x / width, lane = (int)threadIdx.x % width;
	const int each = (parts + groups - 1) / groups, first = min(group * each, parts);
	const int mine = min(parts - first, each);
	const int64_t step = back ? -floats : floats;
	for (int64_t base = (int64_t)blockIdx.x * width; base < chains * floats; base += (int64_t)gridDim.x * width) {
		const int64_t i = base + lane;
		const bool exists = i < chains * floats;
		float *state = exists ? sums + i / floats * parts * floats + i % floats : nullptr;
		float *at = exists ? state + (back ? parts - 1 - first : first) * floats : nullptr;
		float sum = 0.0f;
#pragma unroll 8
		for (int p = 0; p < (exists && (groups > 1 || !causal) ? mine : 0); p++)
			sum += at[p * step];
		space[threadIdx.x] = sum;
		__syncthreads();
		float before = 0.0f;
		for (int g = 0; g < (causal ? group : groups); g++)
			before += space[g * width + lane];
		__syncthreads();
		if (exists && causal)
			scan_parts(at, step, mine, before);
		else if (exists && group == 0)
			*state = before;
	}
}

/* Groups of parts in a block of the scan: as many as there are processors to fill, with a few parts each. More read the
 * sums twice. */
static int scan_groups(const backend *b, int64_t numbers, int parts)
{
	enum {
#ifdef __CUDACC__
		LEAST_PARTS = 4,
#else
		LEAST_PARTS = 1, /* so that the emulator has groups too */
#endif
		MOST_GROUPS = 8,
		THREADS = 1024 /* per processor */
	};
	int groups = 1;
	while (groups < MOST_GROUPS && parts >= 2 * groups * LEAST_PARTS &&
	       numbers * groups < (int64_t)cuda_of(b)->processors * THREADS)
		groups *= 2;
	return groups;
}

/* --- results --------------------------------------------------------------------------------------- */

/* ROW: the tokens of the result's rows. */
template <result WHAT> struct roles;
template <> struct roles<POOLED> {
	static constexpr source C = QUERY, A = KEY, B = VALUE, ROW = QUERY;
	static constexpr bool back = false, flipped = false;
};
template <> struct roles<DQUERY> {
	static constexpr source C = GRAD, A = VALUE, B = KEY, ROW = QUERY;
	static constexpr bool back = false, flipped = true;
};
template <> struct roles<DKEY> {
	static constexpr source C = VALUE, A = GRAD, B = QUERY, ROW = KEY;
	static constexpr bool back = true, flipped = true;
};
template <> struct roles<DVALUE> {
	static constexpr source C = KEY, A = QUERY, B = GRAD, ROW = KEY;
	static constexpr bool back = true, flipped = false;
};

/* Load 2^shift rows from `row` on and columns from `column` on of a state T, as it is or flipped. */
template <bool flipped>
__device__ __forceinline__ void load_state(float *tile, const float *state, int dh, int shift, int row, int column)
{
#pragma unroll 4
	for (int i = threadIdx.x; i < TILE << shift; i += PLAIN_THREADS) {
		const int width = flipped ? shift : (int)WHOLE; /* for the stored state */
		const int r = i >> width, m = i & ((1 << width) - 1);
		const int d = (flipped ? column : row) + r, e = (flipped ? row : column) + m;
		tile[flipped ? m * PLAIN_WIDE + r : r * PLAIN_WIDE + m] =
		    d < dh && e < dh ? state[(int64_t)d * dh + e] : 0.0f;
	}
}

/* Weights of the chunk's tokens; those on the wrong side of the diagonal become 0. */
template <result WHAT, class T>
__device__ __forceinline__ void weigh(float (&p)[4][4], const linear_call<T> &c, const chain &h, int first)
{
	typedef roles<WHAT> role;
	float of_row[4], of_column[4];
#pragma unroll
	for (int i = 0; i < 4 && role::flipped; i++) {
		of_row[i] = extra<role::C>(c, h, first + plain_row() + i);
		of_column[i] = extra<role::A>(c, h, first + plain_column() + i);
	}
#pragma unroll
	for (int i = 0; i < 16; i++) {
		const int row = plain_row() + i / 4, column = plain_column() + i % 4;
		if (role::flipped)
			p[i / 4][i % 4] += of_row[i / 4] * of_column[i % 4];
		if (role::back ? column < row : column > row)
			p[i / 4][i % 4] = 0.0f;
	}
}

/* Store y of the block's queries from sums of weighted values; `seen`: this thread's part of the normalizers. */
template <class T>
__device__ __forceinline__ void store_pooled(const linear_call<T> &c, const chain &h, int first, int column,
                                             const float (&out)[4][4], float (&seen)[4])
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const float normalizer = warp_sum<16>(seen[i]);
		const float inverse = normalizer > 0.0f ? 1.0f / (normalizer + c.eps) : 0.0f;
		const int token = first + plain_row() + i;
		const int64_t row = h.sequence * c.queries + token;
		if (token >= c.queries)
			continue;
		if (c.out_normalizer && column == 0 && threadIdx.x % 16 == 0)
			c.out_normalizer[row * c.heads + h.head] = normalizer;
#pragma unroll
		for (int j = 0; j < 4; j++) {
			const int m = column + plain_column() + j;
			if (c.out[0] && m < c.dh)
				store_real(c.out[0] + row * c.d + h.head * c.dh + m, out[i][j] * inverse);
		}
	}
}

template <result WHAT, class T>
__device__ __forceinline__ void store_gradient(const linear_call<T> &c, const chain &h, int first, int column,
                                               const float (&out)[4][4], const float *z)
{
	typedef roles<WHAT> role;
	const int length = length_of<role::ROW>(c);
#pragma unroll
	for (int i = 0; i < 16; i++) {
		const int token = first + plain_row() + i / 4, channel = column + plain_column() + i % 4;
		if (token >= length || channel >= c.dh)
			continue;
		float x = out[i / 4][i % 4];
		if (role::flipped)
			x += extra<role::C>(c, h, token) * z[channel];
		if (WHAT != DVALUE)
			x *= fminf(fetch<role::ROW>(c, h, token, channel), 1.0f);
		store_real(c.out[WHAT - 1] + (h.sequence * length + token) * c.d + h.head * c.dh + channel, x);
	}
}

/* One block: tokens of one chunk, up to 64 channels of their results. */
template <result WHAT, class T> __global__ void __launch_bounds__(PLAIN_THREADS) linear_result_kernel(linear_call<T> c)
{
	typedef roles<WHAT> role;
	float *left = shared_memory<float>(), *right = left + TILE_FLOATS;
	const int chunks = (length_of<role::C>(c) + TILE - 1) / TILE, chunk = (int)(blockIdx.x % (unsigned)chunks);
	const int64_t index = blockIdx.x / (unsigned)chunks;
	const chain h = {index / c.heads, index, (int)(index % c.heads)};
	const int first = chunk * TILE, column = (int)blockIdx.y * TILE;
	const int count = min((int)TILE, length_of<role::ROW>(c) - first), shift = tile_shift(c);
	const int64_t part = index * (role::back ? c.back_parts : c.parts) + (c.causal ? chunk : 0);
	const float *state = (role::back ? c.back_sums : c.sums) + part * state_floats(c.dh);
	const float *z = state + (int64_t)c.dh * c.dh;
	float out[4][4] = {}, p[4][4] = {}, seen[4] = {};
	for (int channel = 0; channel < c.dh; channel += TILE) {
		const int depth = min((int)TILE, c.dh - channel);
		load_tile<role::C, false>(left, c, h, first, TILE, channel, shift);
		if (c.causal) {
			load_tile<role::A, true>(right, c, h, first, TILE, channel, shift);
			__syncthreads();
			plain_accumulate<false>(p, left, right, depth);
			__syncthreads();
		}
		load_state<role::flipped>(right, state, c.dh, shift, channel, column);
		__syncthreads();
		plain_accumulate<false>(out, left, right, depth);
#pragma unroll
		for (int i = 0; i < 16 && WHAT == POOLED; i++) {
			const int d = plain_column() + i % 4;
			if (channel + d < c.dh)
				seen[i / 4] += left[(plain_row() + i / 4) * PLAIN_WIDE + d] * z[channel + d];
		}
		__syncthreads();
	}
	if (c.causal) {
		weigh<WHAT>(p, c, h, first);
		plain_keep(left, p);
		load_tile<role::B, false>(right, c, h, first, count, column, WHOLE);
		__syncthreads();
		plain_accumulate<false>(out, left, right, count);
#pragma unroll
		for (int i = 0; i < 16; i++)
			seen[i / 4] += p[i / 4][i % 4];
	}
	if constexpr (WHAT == POOLED)
		store_pooled(c, h, first, column, out, seen);
	else
		store_gradient<WHAT>(c, h, first, column, out, z);
}

/* --- the calls -------------------------------------------------------------------------------------- */

/* Divide `length` tokens into their chunks, or into a few parts of whole chunks. */
static void linear_attention_cut(int length, bool causal, int *parts, int *part)
{
	const int chunks = (length + TILE - 1) / TILE, each = causal ? 1 : (chunks + PARTS - 1) / PARTS;
	*part = (each > 0 ? each : 1) * TILE;
	*parts = chunks > 0 ? (length + *part - 1) / *part : 1; /* without tokens there is one state of zeros */
}

template <class T> static linear_call<T> linear_call_of(const op_call *call)
{
	const linear_attention_params *p = (const linear_attention_params *)call->params;
	const shape q = call->in[0].shape;
	linear_call<T> c = {};
	c.query = (const T *)call->in[0].data;
	c.key = (const T *)call->in[1].data;
	c.value = (const T *)call->in[2].data;
	c.mask = (const int32_t *)cuda_optional(call, 3);
	c.d = q.dim[2];
	c.batch = q.dim[0];
	c.queries = (int)q.dim[1];
	c.keys = (int)call->in[1].shape.dim[1];
	c.heads = (int)p->heads;
	c.dh = (int)(q.dim[2] / p->heads);
	c.causal = p->causal;
	c.eps = p->eps;
	linear_attention_cut(c.keys, c.causal, &c.parts, &c.part);
	linear_attention_cut(c.queries, c.causal, &c.back_parts, &c.back_part);
	return c;
}

/* Floats of the states of all heads with `parts` parts. */
template <class T> static int64_t sums_floats(const linear_call<T> &c, int parts)
{
	return c.batch * c.heads * parts * c.dh * (c.dh + 1);
}

size_t cuda_linear_attention_scratch(const backend *b, const op_call *call)
{
	(void)b;
	const linear_call<float> c = linear_call_of<float>(call);
	return (size_t)sums_floats(c, c.parts) * sizeof(float);
}

size_t cuda_linear_attention_grad_scratch(const backend *b, const op_call *call)
{
	(void)b;
	const linear_call<float> c = linear_call_of<float>(call);
	return (size_t)(c.batch * c.queries * c.heads) * sizeof(float2) +
	       (size_t)(sums_floats(c, c.parts) + sums_floats(c, c.back_parts)) * sizeof(float);
}

static unsigned tiles_of(int64_t n)
{
	return (unsigned)((n + TILE - 1) / TILE);
}

/* Compute S and z, or R and r, before every chunk. */
template <bool BACK, class T> static status make_states(backend *b, const linear_call<T> &c)
{
	const int parts = BACK ? c.back_parts : c.parts;
	const int64_t chains = c.batch * c.heads, floats = (int64_t)c.dh * (c.dh + 1);
	const dim3 grid(cuda_extent(chains * parts), tiles_of(c.dh) * tiles_of(c.dh));
	TRY(cuda_launch(b, linear_sums_kernel<BACK, T>, grid, PLAIN_THREADS, SUM_SPACE, c));
	const int groups = scan_groups(b, chains * floats, parts);
	return cuda_launch(b, linear_scan_kernel, cuda_blocks(b, chains * floats, PLAIN_THREADS / groups), PLAIN_THREADS,
	                   PLAIN_THREADS * sizeof(float), BACK ? c.back_sums : c.sums, chains, floats, parts, c.causal,
	                   BACK, groups);
}

template <result WHAT, class T> static status make_result(backend *b, const linear_call<T> &c)
{
	const int length = WHAT == POOLED || WHAT == DQUERY ? c.queries : c.keys;
	const dim3 grid(cuda_extent(c.batch * c.heads * tiles_of(length)), tiles_of(c.dh));
	return cuda_launch(b, linear_result_kernel<WHAT, T>, grid, PLAIN_THREADS, SPACE, c);
}

status cuda_linear_attention(backend *b, const op_call *call)
{
	return cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		linear_call<T> c = linear_call_of<T>(call);
		c.sums = (float *)call->scratch;
		c.out[0] = (T *)call->out[0].data;
		c.out_normalizer = (float *)call->out[1].data;
		TRY((make_states<false, T>(b, c)));
		return make_result<POOLED>(b, c);
	});
}

status cuda_linear_attention_grad(backend *b, const op_call *call)
{
	return cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		linear_call<T> c = linear_call_of<T>(call);
		c.y = (const T *)call->in[4].data;
		c.normalizer = (const float *)call->in[5].data;
		c.dy = (const T *)call->in[6].data;
		c.scale = (float2 *)call->scratch;
		c.sums = (float *)(c.scale + c.batch * c.queries * c.heads);
		c.back_sums = c.sums + sums_floats(c, c.parts);
		for (int i = 0; i < 3; i++)
			c.out[i] = (T *)call->out[i].data;
		const int64_t units = c.batch * c.queries * c.heads, each = PLAIN_THREADS / WARP;
		TRY(cuda_launch(b, linear_scale_kernel<T>, cuda_parts(units, each), PLAIN_THREADS, 0, c));
		if (c.out[0]) {
			TRY((make_states<false, T>(b, c)));
			TRY(make_result<DQUERY>(b, c));
		}
		if (c.out[1] || c.out[2])
			TRY((make_states<true, T>(b, c)));
		if (c.out[1])
			TRY(make_result<DKEY>(b, c));
		if (c.out[2])
			TRY(make_result<DVALUE>(b, c));
		return STATUS_OK;
	});
}
