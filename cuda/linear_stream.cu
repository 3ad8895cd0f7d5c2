/* linear_stream: tokens one after another on the state of engine/tensor/ops/linear_attention.h.
 *
 * One token: a block owns one head of one session. Thread (group, m) keeps R neighbouring rows of column m of S in
 * registers. Heads wider than WIDE, at any number of tokens, keep S in global memory, where a row is read and written
 * once per token.
 *
 * Several tokens: the columns of a head are divided among SLICES blocks, whose threads have the same rows. One block
 * more has z, which gives 1 / normalizer; a second kernel multiplies y by it. The tokens pass through shared memory,
 * PROMPT_TOKENS at a time, while the next ones are loaded.
 *
 * Sums over channels are added in one order, tokens one by one, so neither the batch nor how a prompt is cut changes a
 * bit.
 *
 * Bytes in decode: S and z read and written once, 8 (dh + 1) per token and channel, and q, k, v and y. In a prompt q and
 * k are read by SLICES + 1 blocks, and y is written twice. */
#include "cuda/kernels.h"
#include "cuda/stream.cuh"

extern "C" {
#include "engine/tensor/ops/linear_attention.h"
}

enum { THREADS = 512, WIDE = 128, TOKENS = 8 };
enum { PROMPT_THREADS = 128, PROMPT_TOKENS = 16, SLICES = THREADS / PROMPT_THREADS };

struct linear_stream_call {
	const float *query, *key, *value;
	float *pool, *y, *normalizer;                           /* the last two may be NULL */
	const int32_t *slot, *position, *length, *mask, *start; /* the last two may be NULL */
	int64_t rows, n, d, slot_floats, offset;
	int heads, dh, columns, pitch; /* columns: threads per group; pitch: floats from row to row in shared memory */
	int tokens;                    /* tokens at a time */
	float eps;
	float *inverse; /* several tokens: 1 / (normalizer + eps) [rows of q, heads] */
};

/* Shared memory: φ(q), φ(k), v and φ(q) ⊙ z of some tokens [tokens, pitch], z [pitch], sums [tokens, THREADS], 1 /
 * (normalizer + eps) [tokens]. */
struct linear_desk {
	float *query, *key, *value, *term, *z, *sum, *inverse;
};

static __device__ __forceinline__ linear_desk desk_of(const linear_stream_call &c)
{
	const int chunk = c.tokens * c.pitch;
	float *at = shared_memory<float>();
	return {at,
	        at + chunk,
	        at + 2 * chunk,
	        at + 3 * chunk,
	        at + 4 * chunk,
	        at + 4 * chunk + c.pitch,
	        at + 4 * chunk + c.pitch + c.tokens * THREADS};
}

static size_t desk_bytes(const linear_stream_call &c)
{
	return (size_t)(4 * c.tokens * c.pitch + c.pitch + c.tokens * THREADS + c.tokens) * sizeof(float);
}

static __device__ __forceinline__ float feature(float x)
{
	const float above = __fadd_rn(x, 1.0f), below = expf(x); /* both, without a branch */
	return x > 0.0f ? above : below;
}

/* Load tokens of the call from `token` on, one head, into shared memory. */
static __device__ __forceinline__ void load_tokens(const linear_stream_call &c, const linear_desk &w, int64_t token,
                                                   int head, int count)
{
#pragma unroll 1 /* registers hold S */
	for (int i = threadIdx.x; i < count * c.pitch; i += THREADS) {
		const int d = i % c.pitch;
		const int64_t row = token + i / c.pitch, at = row * c.d + head * c.dh + d;
		const bool present = d < c.dh && (!c.mask || c.mask[row] != 0);
		w.query[i] = d < c.dh ? feature(c.query[at]) : 0.0f;
		w.key[i] = present ? feature(c.key[at]) : 0.0f;
		w.value[i] = present ? c.value[at] : 0.0f;
	}
}

/* Add tokens to z, and store each token's φ(q) ⊙ z. */
static __device__ __forceinline__ void add_normals(const linear_stream_call &c, const linear_desk &w, int count)
{
	for (int d = threadIdx.x; d < c.dh; d += THREADS) {
		float z = w.z[d];
#pragma unroll 1
		for (int t = 0; t < count; t++) {
			z = __fadd_rn(z, w.key[t * c.pitch + d]);
			w.term[t * c.pitch + d] = __fmul_rn(w.query[t * c.pitch + d], z);
		}
		w.z[d] = z;
	}
}

/* Sum the terms to normalizers, one warp each. */
static __device__ __forceinline__ void normalize(const linear_stream_call &c, const linear_desk &w, int64_t token,
                                                 int head, int count)
{
	const int lane = threadIdx.x % WARP;
	for (int t = threadIdx.x / WARP; t < count; t += THREADS / WARP) {
		float sum = 0.0f;
		for (int d = lane; d < c.dh; d += WARP)
			sum = __fadd_rn(sum, w.term[t * c.pitch + d]);
		sum = warp_sum(sum);
		if (lane == 0) {
			w.inverse[t] = sum > 0.0f ? __frcp_rn(__fadd_rn(sum, c.eps)) : 0.0f;
			if (c.normalizer)
				c.normalizer[(token + t) * c.heads + head] = sum;
		}
	}
}

/* Add tokens to S in a thread's rows and column, and store its part of the sums over rows. */
template <int R>
static __device__ __forceinline__ void add_tokens(const linear_stream_call &c, const linear_desk &w, int count, int group,
                                                  int column, float (&s)[R])
{
#pragma unroll 1
	for (int t = 0; t < count; t++) {
		const float v = w.value[t * c.pitch + column];
		const float *q = w.query + t * c.pitch + group * R, *k = w.key + t * c.pitch + group * R;
		float sum = 0.0f;
#pragma unroll
		for (int r = 0; r < R; r++) {
			s[r] = __fmaf_rn(k[r], v, s[r]);
			sum = __fmaf_rn(q[r], s[r], sum);
		}
		w.sum[t * THREADS + threadIdx.x] = sum;
	}
}

/* add_tokens with S in global memory; each thread has a column and writes y directly. */
static __device__ __forceinline__ void add_tokens_wide(const linear_stream_call &c, const linear_desk &w, float *state,
                                                       int64_t token, int head, int count)
{
	for (int m = threadIdx.x; m < c.dh; m += THREADS) {
		for (int t = 0; t < count; t++) {
			const float v = w.value[t * c.pitch + m];
			float sum = 0.0f;
			for (int d = 0; d < c.dh; d++) {
				float *s = state + (int64_t)d * c.dh + m;
				*s = __fmaf_rn(w.key[t * c.pitch + d], v, *s);
				sum = __fmaf_rn(w.query[t * c.pitch + d], *s, sum);
			}
			if (c.y)
				c.y[(token + t) * c.d + head * c.dh + m] = __fmul_rn(sum, w.inverse[t]);
		}
	}
}

static __device__ __forceinline__ void clear_unread(const linear_stream_call &c, token_span tokens, int64_t length,
                                                    int head)
{
	for (int64_t i = length * c.dh + threadIdx.x; i < tokens.room * c.dh; i += THREADS) {
		const int64_t row = tokens.first + i / c.dh;
		if (c.y)
			c.y[row * c.d + head * c.dh + i % c.dh] = 0.0f;
		if (c.normalizer && i % c.dh == 0)
			c.normalizer[row * c.heads + head] = 0.0f;
	}
}

/* R: rows of S per thread; 0: S stays in global memory. */
template <int R> __global__ void __launch_bounds__(THREADS, 1) linear_stream_kernel(linear_stream_call c)
{
	const int64_t row = blockIdx.x / (unsigned)c.heads;
	const int head = (int)(blockIdx.x % (unsigned)c.heads), dh = c.dh;
	const int column = (int)threadIdx.x % c.columns, group = (int)threadIdx.x / c.columns;
	const int groups = THREADS / c.columns;
	const token_span tokens = tokens_of(c.start, c.rows, c.n, row);
	const int64_t length = c.length[row];
	const bool begins = c.position[row] == 0;
	float *state = c.pool + c.slot[row] * c.slot_floats + c.offset + (int64_t)head * dh * (dh + 1);
	const linear_desk w = desk_of(c);
	float s[R ? R : 1];
	clear_unread(c, tokens, length, head);
	if (length == 0)
		return;
	for (int d = threadIdx.x; d < dh; d += THREADS)
		w.z[d] = begins ? 0.0f : state[(int64_t)dh * dh + d];
#pragma unroll
	for (int r = 0; r < R; r++) {
		const int d = group * R + r;
		s[r] = !begins && d < dh && column < dh ? state[(int64_t)d * dh + column] : 0.0f;
	}
	for (int m = threadIdx.x; R == 0 && begins && m < dh; m += THREADS)
		for (int d = 0; d < dh; d++)
			state[(int64_t)d * dh + m] = 0.0f;
	for (int64_t i = 0; i < length; i += c.tokens) {
		const int count = (int)min(length - i, (int64_t)c.tokens);
		const int64_t token = tokens.first + i;
		load_tokens(c, w, token, head, count);
		__syncthreads();
		add_normals(c, w, count);
		if constexpr (R > 0)
			add_tokens<R>(c, w, count, group, column, s);
		__syncthreads();
		normalize(c, w, token, head, count);
		__syncthreads();
		if constexpr (R == 0)
			add_tokens_wide(c, w, state, token, head, count);
#pragma unroll 1
		for (int e = threadIdx.x; R > 0 && c.y && e < count * dh; e += THREADS) {
			const int t = e / dh, m = e % dh;
			float sum = 0.0f;
#pragma unroll 1
			for (int g = 0; g < groups; g++)
				sum = __fadd_rn(sum, w.sum[t * THREADS + g * c.columns + m]);
			c.y[(token + t) * c.d + head * dh + m] = __fmul_rn(sum, w.inverse[t]);
		}
		__syncthreads();
	}
	for (int d = threadIdx.x; d < dh; d += THREADS)
		state[(int64_t)dh * dh + d] = w.z[d];
#pragma unroll
	for (int r = 0; r < R; r++) {
		const int d = group * R + r;
		if (d < dh && column < dh)
			state[(int64_t)d * dh + column] = s[r];
	}
}

/* --- several tokens ------------------------------------------------------------------------------------------- */

/* R rows per thread, as for one token, and so heads of up to COLUMNS channels. A block of S has SLICE columns. */
template <int R> struct prompt_cut {
	enum {
		COLUMNS = R == 2 ? 32 : R == 8 ? 64 : WIDE,
		GROUPS = THREADS / COLUMNS,
		SLICE = COLUMNS / SLICES,
		EACH = PROMPT_TOKENS * COLUMNS / PROMPT_THREADS, /* channels that a thread loads of a chunk's queries */
		VALUES = PROMPT_TOKENS * SLICE / PROMPT_THREADS
	};
};

/* Shared memory of a block: two chunks of φ(q) and φ(k), and of v and sums over rows, or of z and its terms. */
template <int R> struct prompt_desk {
	typedef prompt_cut<R> cut;
	float query[2][PROMPT_TOKENS][cut::COLUMNS], key[2][PROMPT_TOKENS][cut::COLUMNS];
	union {
		struct {
			float value[2][PROMPT_TOKENS][cut::SLICE], sum[2][PROMPT_TOKENS][PROMPT_THREADS];
		};
		float term[PROMPT_TOKENS][cut::COLUMNS];
	};
};

/* A chunk's numbers on their way to shared memory. */
template <int R> struct prompt_load {
	typedef prompt_cut<R> cut;
	float query[cut::EACH], key[cut::EACH], value[cut::VALUES];
	unsigned keys; /* bits of keys that count */

	/* The next `count` tokens; of their values, those from channel `first` on if `values`. */
	__device__ __forceinline__ void fetch(const linear_stream_call &c, int64_t token, int count, int head, bool values,
	                                      int first)
	{
		enum { STEP = PROMPT_THREADS / cut::COLUMNS, VALUE_STEP = PROMPT_THREADS / cut::SLICE };
		const int d = (int)threadIdx.x % cut::COLUMNS, m = first + (int)threadIdx.x % cut::SLICE;
		int t = (int)threadIdx.x / cut::COLUMNS, pitch = (int)c.d;
		int64_t from = (token + t) * c.d + head * c.dh + d;
		keys = 0;
#pragma unroll
		for (int e = 0; e < cut::EACH; e++, t += STEP, from += STEP * pitch) {
			const bool exists = t < count && d < c.dh;
			query[e] = exists ? c.query[from] : 0.0f;
			key[e] = exists ? c.key[from] : 0.0f;
			keys |= (unsigned)(exists && (!c.mask || c.mask[token + t] != 0)) << e;
		}
		t = (int)threadIdx.x / cut::SLICE;
		from = (token + t) * c.d + head * c.dh + m;
#pragma unroll
		for (int e = 0; e < cut::VALUES && values; e++, t += VALUE_STEP, from += VALUE_STEP * pitch) {
			const bool counts = t < count && m < c.dh && (!c.mask || c.mask[token + t] != 0);
			value[e] = counts ? c.value[from] : t < count ? 0.0f : -0.0f;
		}
	}
	/* Store them as chunk `chunk`. Queries of channels that do not exist meet rows of zeros. */
	__device__ __forceinline__ void put(prompt_desk<R> &w, int chunk, bool values) const
	{
#pragma unroll
		for (int e = 0; e < cut::EACH; e++) {
			const int i = e * PROMPT_THREADS + (int)threadIdx.x, t = i / cut::COLUMNS, d = i % cut::COLUMNS;
			const float key_there = feature(key[e]);
			w.query[chunk][t][d] = feature(query[e]);
			w.key[chunk][t][d] = keys >> e & 1 ? key_there : 0.0f;
		}
#pragma unroll
		for (int e = 0; e < cut::VALUES && values; e++) {
			const int i = e * PROMPT_THREADS + (int)threadIdx.x;
			w.value[chunk][i / cut::SLICE][i % cut::SLICE] = value[e];
		}
	}
};

template <int R> static __device__ __forceinline__ void load_rows(float (&to)[R], const float *from)
{
#pragma unroll
	for (int r = 0; r < R; r += R % QUAD ? 1 : QUAD) {
		if constexpr (R % QUAD) {
			to[r] = from[r];
		} else {
			const quad q = load_pack(from + r);
#pragma unroll
			for (int i = 0; i < QUAD; i++)
				to[r + i] = q.at[i];
		}
	}
}

/* Add a chunk to S, and store each token's sums over a thread's rows. Tokens past the end change no bit: they add
 * 0 · -0. */
template <int R>
static __device__ __forceinline__ void add_chunk(prompt_desk<R> &w, int chunk, float (&s)[R])
{
	enum { SLICE = prompt_cut<R>::SLICE, AT_ONCE = R > 8 ? 1 : 4 /* loaded before any sum is stored */ };
	const int group = (int)threadIdx.x / SLICE, column = (int)threadIdx.x % SLICE;
#pragma unroll 1
	for (int t = 0; t < PROMPT_TOKENS; t += AT_ONCE) {
		float q[AT_ONCE][R], k[AT_ONCE][R], v[AT_ONCE], sum[AT_ONCE] = {};
#pragma unroll
		for (int i = 0; i < AT_ONCE; i++) {
			load_rows<R>(q[i], &w.query[chunk][t + i][group * R]);
			load_rows<R>(k[i], &w.key[chunk][t + i][group * R]);
			v[i] = w.value[chunk][t + i][column];
		}
#pragma unroll
		for (int i = 0; i < AT_ONCE; i++) {
#pragma unroll
			for (int r = 0; r < R; r++) {
				s[r] = __fmaf_rn(k[i][r], v[i], s[r]);
				sum[i] = __fmaf_rn(q[i][r], s[r], sum[i]);
			}
		}
#pragma unroll
		for (int i = 0; i < AT_ONCE; i++)
			w.sum[chunk][t + i][threadIdx.x] = sum[i];
	}
}

/* A session's tokens in the call. */
struct linear_session {
	token_span tokens;
	int64_t length;
	bool begins;
	float *state; /* the head's floats in the slot */
};

/* One slice of S; y without the factor. */
template <int R>
static __device__ __forceinline__ void read_sums(const linear_stream_call &c, const linear_session &u, int head, int slice,
                                                 prompt_desk<R> &w)
{
	enum { SLICE = prompt_cut<R>::SLICE, GROUPS = prompt_cut<R>::GROUPS };
	const int dh = c.dh, first = slice * SLICE, group = (int)threadIdx.x / SLICE;
	const int column = first + (int)threadIdx.x % SLICE;
	float s[R];
	prompt_load<R> next;
	if (first >= dh)
		return;
#pragma unroll
	for (int r = 0; r < R; r++) {
		const int d = group * R + r;
		s[r] = !u.begins && u.length > 0 && d < dh && column < dh ? u.state[(int64_t)d * dh + column] : 0.0f;
	}
	next.fetch(c, u.tokens.first, (int)min(u.length, (int64_t)PROMPT_TOKENS), head, true, first);
	next.put(w, 0, true);
	__syncthreads();
	int chunk = 0;
#pragma unroll 1
	for (int64_t i = 0; i < u.length; i += PROMPT_TOKENS, chunk ^= 1) {
		const int count = (int)min(u.length - i, (int64_t)PROMPT_TOKENS);
		const int64_t token = u.tokens.first + i, left = u.length - i - count;
		next.fetch(c, token + count, (int)min(left, (int64_t)PROMPT_TOKENS), head, true, first);
		add_chunk<R>(w, chunk, s);
		next.put(w, chunk ^ 1, true);
		__syncthreads();
#pragma unroll
		for (int e = 0; e < prompt_cut<R>::VALUES && c.y; e++) {
			const int at = e * PROMPT_THREADS + (int)threadIdx.x, t = at / SLICE, m = at % SLICE;
			float sum = 0.0f;
#pragma unroll
			for (int g = 0; g < GROUPS; g++)
				sum = __fadd_rn(sum, w.sum[chunk][t][g * SLICE + m]);
			if (t < count && first + m < dh)
				c.y[(token + t) * c.d + head * dh + first + m] = sum;
		}
	}
#pragma unroll
	for (int r = 0; r < R; r++) {
		const int d = group * R + r;
		if (u.length > 0 && d < dh && column < dh)
			u.state[(int64_t)d * dh + column] = s[r];
	}
	for (int64_t i = u.length * SLICE + threadIdx.x; c.y && i < u.tokens.room * SLICE; i += PROMPT_THREADS)
		if (first + i % SLICE < dh)
			c.y[(u.tokens.first + i / SLICE) * c.d + head * dh + first + i % SLICE] = 0.0f;
}

/* z, normalizers and factors of y. */
template <int R>
static __device__ __forceinline__ void read_normals(const linear_stream_call &c, const linear_session &u, int head,
                                                    prompt_desk<R> &w)
{
	enum { EACH = PROMPT_TOKENS / (PROMPT_THREADS / WARP) }; /* tokens of a warp */
	const int lane = threadIdx.x % WARP, first = (int)threadIdx.x / WARP * EACH, d = (int)threadIdx.x;
	const bool has_z = d < c.dh;
	float z = has_z && !u.begins && u.length > 0 ? u.state[(int64_t)c.dh * c.dh + d] : 0.0f;
	prompt_load<R> next;
	next.fetch(c, u.tokens.first, (int)min(u.length, (int64_t)PROMPT_TOKENS), head, false, 0);
	next.put(w, 0, false);
	__syncthreads();
	int chunk = 0;
#pragma unroll 1
	for (int64_t i = 0; i < u.length; i += PROMPT_TOKENS, chunk ^= 1) {
		const int count = (int)min(u.length - i, (int64_t)PROMPT_TOKENS);
		const int64_t token = u.tokens.first + i, left = u.length - i - count;
		next.fetch(c, token + count, (int)min(left, (int64_t)PROMPT_TOKENS), head, false, 0);
		if (has_z) {
			float query[PROMPT_TOKENS], key[PROMPT_TOKENS]; /* loaded before any term is stored */
#pragma unroll
			for (int t = 0; t < PROMPT_TOKENS; t++) {
				query[t] = w.query[chunk][t][d];
				key[t] = w.key[chunk][t][d];
			}
#pragma unroll
			for (int t = 0; t < PROMPT_TOKENS; t++) {
				z = __fadd_rn(z, key[t]);
				w.term[t][d] = __fmul_rn(query[t], z);
			}
		}
		next.put(w, chunk ^ 1, false);
		__syncthreads();
		float sum[EACH] = {};
		for (int at = lane; at < c.dh; at += WARP) {
#pragma unroll
			for (int e = 0; e < EACH; e++)
				sum[e] = __fadd_rn(sum[e], w.term[first + e][at]);
		}
#pragma unroll
		for (int e = 0; e < EACH; e++)
			sum[e] = warp_sum(sum[e]);
#pragma unroll
		for (int e = 0; e < EACH; e++) { /* a lane for each token */
			const int64_t at = (token + first + e) * c.heads + head;
			if (lane != e || first + e >= count)
				continue;
			c.inverse[at] = sum[e] > 0.0f ? __frcp_rn(__fadd_rn(sum[e], c.eps)) : 0.0f;
			if (c.normalizer)
				c.normalizer[at] = sum[e];
		}
		__syncthreads();
	}
	if (has_z && u.length > 0)
		u.state[(int64_t)c.dh * c.dh + d] = z;
	for (int64_t i = u.length + threadIdx.x; i < u.tokens.room; i += PROMPT_THREADS) {
		c.inverse[(u.tokens.first + i) * c.heads + head] = 0.0f;
		if (c.normalizer)
			c.normalizer[(u.tokens.first + i) * c.heads + head] = 0.0f;
	}
}

template <int R> __global__ void __launch_bounds__(PROMPT_THREADS, 2) linear_prompt_kernel(linear_stream_call c)
{
	const unsigned part = blockIdx.x % (SLICES + 1), unit = blockIdx.x / (SLICES + 1);
	const int64_t row = unit / (unsigned)c.heads;
	const int head = (int)(unit % (unsigned)c.heads);
	prompt_desk<R> &w = *shared_memory<prompt_desk<R>>();
	linear_session u;
	u.tokens = tokens_of(c.start, c.rows, c.n, row);
	u.length = c.length[row];
	u.begins = c.position[row] == 0;
	u.state = c.pool + c.slot[row] * c.slot_floats + c.offset + (int64_t)head * c.dh * (c.dh + 1);
	if (part < SLICES)
		read_sums<R>(c, u, head, (int)part, w);
	else
		read_normals<R>(c, u, head, w);
}

static __global__ void __launch_bounds__(THREADS) linear_scale_kernel(linear_stream_call c, int64_t count)
{
	for (int64_t i = grid_first(); i < count; i += grid_stride())
		c.y[i] = __fmul_rn(c.y[i], c.inverse[i / c.dh]);
}

/* --- the call ---------------------------------------------------------------------------------------------------- */

/* True if the tokens are read by blocks of slices. */
static bool is_prompt(const op_call *call)
{
	const shape q = call->in[0].shape;
	return q.dim[1] > 1 && q.dim[2] / ((const linear_stream_params *)call->params)->heads <= WIDE;
}

size_t cuda_linear_stream_scratch(const backend *, const op_call *call)
{
	const shape q = call->in[0].shape;
	return is_prompt(call) ? (size_t)(q.dim[0] * q.dim[1] * ((const linear_stream_params *)call->params)->heads) *
	                             sizeof(float)
	                       : 0;
}

static linear_stream_call linear_stream_call_of(const op_call *call)
{
	const linear_stream_params *p = (const linear_stream_params *)call->params;
	const shape q = call->in[0].shape;
	linear_stream_call c = {};
	c.query = (const float *)call->in[0].data;
	c.key = (const float *)call->in[1].data;
	c.value = (const float *)call->in[2].data;
	c.pool = (float *)call->in[3].data;
	c.slot = (const int32_t *)call->in[4].data;
	c.position = (const int32_t *)call->in[5].data;
	c.length = (const int32_t *)call->in[6].data;
	c.mask = (const int32_t *)cuda_optional(call, 7);
	c.start = (const int32_t *)cuda_optional(call, 8);
	c.y = (float *)call->out[0].data;
	c.normalizer = (float *)call->out[1].data;
	c.rows = call->in[4].shape.dim[0];
	c.n = q.dim[1];
	c.d = q.dim[2];
	c.heads = (int)p->heads;
	c.dh = (int)(c.d / p->heads);
	c.slot_floats = call->in[3].shape.dim[1];
	c.offset = p->offset;
	c.eps = p->eps;
	c.inverse = (float *)call->scratch;
	c.columns = c.dh <= 32 ? 32 : c.dh <= 64 ? 64 : c.dh <= WIDE ? WIDE : THREADS;
	c.pitch = c.dh <= WIDE ? c.columns : c.dh;
	c.tokens = (int)min(c.n, (int64_t)TOKENS);
	return c;
}

template <int R> static status launch_prompt(backend *b, const linear_stream_call &c, int64_t count)
{
	TRY(cuda_launch(b, linear_prompt_kernel<R>, cuda_extent(c.rows * c.heads * (SLICES + 1)), PROMPT_THREADS,
	                sizeof(prompt_desk<R>), c));
	return c.y ? cuda_launch(b, linear_scale_kernel, cuda_blocks(b, count, THREADS), THREADS, 0, c, count) : STATUS_OK;
}

status cuda_linear_stream(backend *b, const op_call *call)
{
	linear_stream_call c = linear_stream_call_of(call);
	const int64_t count = shape_count(call->in[0].shape);
	if (count == 0)
		return STATUS_OK;
	if (is_prompt(call))
		return c.dh <= 32   ? launch_prompt<2>(b, c, count)
		       : c.dh <= 64 ? launch_prompt<8>(b, c, count)
		                    : launch_prompt<32>(b, c, count);
	while (c.tokens > 1 && desk_bytes(c) > cuda_of(b)->shared_limit)
		c.tokens /= 2;
	if (desk_bytes(c) > cuda_of(b)->shared_limit)
		return STATUS_UNSUPPORTED;
	const unsigned grid = cuda_extent(c.rows * c.heads);
	auto launch = [&](auto kernel) { return cuda_launch(b, kernel, grid, THREADS, desk_bytes(c), c); };
	if (c.dh <= 32)
		return launch(linear_stream_kernel<2>);
	if (c.dh <= 64)
		return launch(linear_stream_kernel<8>);
	return c.dh <= WIDE ? launch(linear_stream_kernel<32>) : launch(linear_stream_kernel<0>);
}

struct linear_stream_grad_call {
	const float *query, *before, *y, *normalizer, *dy;
	const int32_t *slot, *position;
	float *dq;
	int64_t n, heads, total, slot_floats, head_floats, offset; /* total: B · N · H */
	int dh;
	float eps;
};

/* One warp per token and head. The lanes share a row of S, so it is read whole; rows of one head follow each other in
 * the cache. */
static __global__ void __launch_bounds__(THREADS) linear_stream_grad_kernel(linear_stream_grad_call c)
{
	const int lane = threadIdx.x % WARP;
	for (int64_t i = grid_first() / WARP; i < c.total; i += grid_stride() / WARP) {
		const int64_t sequence = i / c.heads / c.n, h = i % c.heads, at = i * c.dh;
		const float *sums = c.before + c.slot[sequence] * c.slot_floats + c.offset + h * c.head_floats;
		const float *z = sums + c.dh * c.dh;
		const float normal = c.normalizer[i];
		const bool reads = c.position[sequence] != 0 && normal != 0.0f;
		const float inverse = reads ? 1.0f / (normal + c.eps) : 0.0f;
		float along = 0.0f;
		for (int d = lane; d < c.dh; d += WARP)
			along += c.dy[at + d] * c.y[at + d];
		along = warp_sum(along);
		for (int d = 0; d < c.dh; d++) {
			float sum = 0.0f;
			for (int m = lane; m < c.dh && reads; m += WARP)
				sum += sums[(int64_t)d * c.dh + m] * c.dy[at + m];
			sum = warp_sum(sum);
			if (lane != d % WARP)
				continue;
			const float x = c.query[at + d], slope = x > 0.0f ? 1.0f : expf(x);
			c.dq[at + d] = reads ? slope * inverse * (sum - along * z[d]) : 0.0f;
		}
	}
}

status cuda_linear_stream_grad(backend *b, const op_call *call)
{
	const linear_stream_params *p = (const linear_stream_params *)call->params;
	const shape q = call->in[0].shape;
	linear_stream_grad_call c = {};
	c.query = (const float *)call->in[0].data;
	c.before = (const float *)call->in[1].data;
	c.slot = (const int32_t *)call->in[2].data;
	c.position = (const int32_t *)call->in[3].data;
	c.y = (const float *)call->in[4].data;
	c.normalizer = (const float *)call->in[5].data;
	c.dy = (const float *)call->in[6].data;
	c.dq = (float *)call->out[0].data;
	c.n = q.dim[1];
	c.heads = p->heads;
	c.total = q.dim[0] * q.dim[1] * p->heads;
	c.slot_floats = call->in[1].shape.dim[1];
	c.head_floats = linear_head_floats(q.dim[2] / p->heads);
	c.offset = p->offset;
	c.dh = (int)(q.dim[2] / p->heads);
	c.eps = p->eps;
	return c.total ? cuda_launch(b, linear_stream_grad_kernel, cuda_blocks(b, c.total, THREADS / WARP), THREADS, 0, c)
	               : STATUS_OK;
}
