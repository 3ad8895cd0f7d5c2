/* linear_stream: tokens one after another on the state of engine/tensor/ops/linear_attention.h.
 *
 * A block owns one head of one session. Thread (group, m) keeps R neighbouring rows of column m of S in registers. The
 * call's tokens pass through shared memory, TOKENS at a time. Heads wider than WIDE keep S in global memory, where a
 * row is read and written once per token. Sums over channels are added in one order, tokens one by one, so neither the
 * batch nor how a prompt is cut changes a bit.
 *
 * Bytes in decode: S and z read and written once, 8 (dh + 1) per token and channel, and q, k, v and y. */
#include "cuda/kernels.h"
#include "cuda/stream.cuh"

extern "C" {
#include "engine/tensor/ops/linear_attention.h"
}

enum { THREADS = 512, WIDE = 128, TOKENS = 8 };

struct linear_stream_call {
	const float *query, *key, *value;
	float *pool, *y, *normalizer;                           /* the last two may be NULL */
	const int32_t *slot, *position, *length, *mask, *start; /* the last two may be NULL */
	int64_t rows, n, d, slot_floats, offset;
	int heads, dh, columns, pitch; /* columns: threads per group; pitch: floats from row to row in shared memory */
	int tokens;                    /* tokens at a time */
	float eps;
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
	return x > 0.0f ? __fadd_rn(x, 1.0f) : expf(x);
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
	c.columns = c.dh <= 32 ? 32 : c.dh <= 64 ? 64 : c.dh <= WIDE ? WIDE : THREADS;
	c.pitch = c.dh <= WIDE ? c.columns : c.dh;
	c.tokens = (int)min(c.n, (int64_t)TOKENS);
	return c;
}

status cuda_linear_stream(backend *b, const op_call *call)
{
	linear_stream_call c = linear_stream_call_of(call);
	if (shape_count(call->in[0].shape) == 0)
		return STATUS_OK;
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
