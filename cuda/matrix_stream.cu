/* stream_scores, stream_apply, stream_store: a block has a head of a token. The columns are the memories, the ring of
 * engine/tensor/ops/matrix_stream.h and the call's own tokens. The first two ops only read the state; the third writes
 * the call's tokens into the ring.
 *
 * Scores: a warp has AT_ONCE columns at a time, with its lanes along the channels. Values: lanes are along the channels
 * again, each warp adds every WARPS-th column from the first existing one, and the warps' sums are added in order. So
 * neither the batch nor how a prompt is cut changes a bit. Bytes: every key and value once for each query head. */
#include "cuda/kernels.h"
#include "cuda/stream.cuh"

extern "C" {
#include "engine/tensor/ops/matrix_stream.h"
#include "engine/tensor/ops/softmax_stream.h"
}

enum { WARPS = 8, THREADS = WARPS * WARP, AT_ONCE = 4, MASK = 6, START = 7, MEMORY = 8 /* input numbers */ };

struct matrix_stream_call {
	const float *tokens, *other, *memory; /* inputs 0, 1 and 8 */
	float *pool;
	const int32_t *slot, *position, *length, *mask, *start;
	matrix_ring ring;
	int64_t sequences, rows, n, slot_floats, offset, memories, columns;
	int64_t heads, group, width; /* group: query heads per key head; width: of a head */
	int64_t stored; /* memory NULL: offset of the memories in a slot */
	bool source;
	float scale;
};

static matrix_stream_call matrix_stream_call_of(const op_call *call, int64_t width)
{
	const matrix_stream_params *p = (const matrix_stream_params *)call->params;
	matrix_stream_call c = {};
	c.tokens = (const float *)call->in[0].data;
	c.other = (const float *)call->in[1].data;
	c.pool = (float *)call->in[2].data;
	c.slot = (const int32_t *)call->in[3].data;
	c.position = (const int32_t *)call->in[4].data;
	c.length = (const int32_t *)call->in[5].data;
	c.mask = (const int32_t *)cuda_optional(call, MASK);
	c.start = (const int32_t *)cuda_optional(call, START);
	c.memory = (const float *)cuda_optional(call, MEMORY);
	c.memories = c.memory ? shape_rows(call->in[MEMORY].shape) : p->stored.count;
	c.stored = p->stored.offset;
	c.source = p->source;
	c.ring = {p->key_width, p->value_width, p->window, p->segment, p->near, p->far};
	c.sequences = call->in[3].shape.dim[0];
	c.n = call->in[0].shape.dim[1];
	c.rows = call->in[0].shape.dim[0] * c.n;
	c.slot_floats = call->in[2].shape.dim[1];
	c.offset = p->offset;
	c.columns = c.memories + p->window;
	c.heads = p->heads;
	c.group = p->kv_heads > 0 ? p->heads / p->kv_heads : 1;
	c.width = width;
	c.scale = p->scale;
	return c;
}

/* A row of the call: its sequence and its index i in it. position: for a source, its number of tokens; at: position of
 * the token whose columns are read. */
struct stream_token {
	token_span tokens;
	int64_t i, position, length, at;
	float *slot, *state;
};

static __device__ __forceinline__ stream_token stream_token_of(const matrix_stream_call &c, int64_t row)
{
	int64_t s = c.start ? 0 : row / c.n;
	for (int64_t high = c.sequences; c.start && high - s > 1;) { /* the last that begins at or before the row */
		const int64_t middle = (s + high) / 2;
		if (c.start[middle] <= row)
			s = middle;
		else
			high = middle;
	}
	const token_span tokens = tokens_of(c.start, c.sequences, c.n, s);
	float *slot = c.pool + c.slot[s] * c.slot_floats, *state = slot + c.offset;
	const int64_t i = row - tokens.first;
	int64_t position = c.position[s], at = position + i;
	if (c.source) {
		position = source_count(softmax_store_of(c.ring.key_width, c.ring.value_width, c.ring.window, SOFTMAX_F32), state);
		at = position - 1;
	}
	return {tokens, i, position, c.length[s], at, slot, state};
}

/* Rows of keys or values, by column. */
struct stream_rows {
	matrix_columns c;
	const float *memory, *state, *call; /* call: the sequence's first token */
	int64_t position, window, place /* place of the oldest token */, width;
};

/* The row of a visible column. */
static __device__ __forceinline__ const float *row_in(const stream_rows &r, int64_t column)
{
	if (column < r.c.tokens)
		return r.memory + (column - r.c.first) * r.width;
	const int64_t after = column - r.c.tokens, token = r.c.oldest + after;
	if (token >= r.position)
		return r.call + (token - r.position) * r.width;
	const int64_t place = r.place + after;
	return r.state + (place < r.window ? place : place - r.window) * r.width;
}

static __device__ __forceinline__ stream_rows stream_rows_of(const matrix_stream_call &c, const stream_token &t, bool keys)
{
	stream_rows r;
	r.c = matrix_columns_at(t.at, c.ring, c.memories);
	r.width = keys ? c.ring.key_width : c.ring.value_width;
	r.memory = c.memory ? c.memory : t.slot + c.stored + (keys ? 0 : c.memories * c.ring.key_width);
	r.state = t.state + (keys ? matrix_ring_key(c.ring, 0) : matrix_ring_value(c.ring, 0));
	r.call = (keys ? c.other : c.tokens) + t.tokens.first * r.width;
	r.position = t.position;
	r.window = c.ring.window;
	r.place = r.c.oldest % r.window;
	return r;
}

static __device__ __forceinline__ bool is_present(const matrix_stream_call &c, const stream_token &t, int64_t token)
{
	if (c.source)
		return true;
	if (token < t.position)
		return t.state[matrix_ring_there(c.ring, token)] != 0.0f;
	return !c.mask || c.mask[t.tokens.first + token - t.position] != 0;
}

static __global__ void __launch_bounds__(THREADS) stream_scores_kernel(matrix_stream_call c, float *scores,
                                                                      int32_t *visible)
{
	const int64_t row = blockIdx.x / (unsigned)c.heads, head = blockIdx.x % (unsigned)c.heads;
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	const stream_token t = stream_token_of(c, row);
	const bool read = t.i < t.length;
	const stream_rows r = stream_rows_of(c, t, true);
	const int64_t first = read ? r.c.first : c.columns;
	const int64_t begin = read ? r.c.begin : c.columns, end = read ? r.c.end : c.columns;
	float *to = scores + (row * c.heads + head) * c.columns;
	const float *query = c.tokens + (row * c.heads + head) * c.width;
	for (int64_t j = threadIdx.x; scores && j < c.columns; j += THREADS)
		if (j < begin || j >= end)
			to[j] = 0.0f;
	for (int64_t j = threadIdx.x; visible && head == 0 && j < c.columns; j += THREADS)
		visible[row * c.columns + j] =
		    j >= first && (j < r.c.tokens || is_present(c, t, r.c.oldest + j - r.c.tokens));
	for (int64_t j = begin + warp * AT_ONCE; scores && j < end; j += WARPS * AT_ONCE) {
		const float *key[AT_ONCE];
		float sum[AT_ONCE] = {};
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++)
			key[k] = row_in(r, j + k < end ? j + k : j) + head / c.group * c.width;
		for (int64_t d = lane; d < c.width; d += WARP) {
#pragma unroll
			for (int k = 0; k < AT_ONCE; k++)
				sum[k] = __fmaf_rn(query[d], key[k][d], sum[k]);
		}
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++) {
			sum[k] = warp_sum(sum[k]);
			if (lane == 0 && j + k < end)
				to[j + k] = c.scale * sum[k];
		}
	}
}

status cuda_stream_scores(backend *b, const op_call *call)
{
	const matrix_stream_params *p = (const matrix_stream_params *)call->params;
	const matrix_stream_call c = matrix_stream_call_of(call, call->in[0].shape.dim[2] / p->heads);
	return cuda_launch(b, stream_scores_kernel, dim3(cuda_extent(c.rows * c.heads)), THREADS, 0, c,
	                   (float *)call->out[0].data, (int32_t *)call->out[1].data);
}

static __global__ void __launch_bounds__(THREADS) stream_apply_kernel(matrix_stream_call c, float *y)
{
	const int64_t row = blockIdx.x / (unsigned)c.heads, head = blockIdx.x % (unsigned)c.heads;
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	const stream_token t = stream_token_of(c, row);
	const stream_rows r = stream_rows_of(c, t, false);
	const int64_t end = t.i < t.length ? r.c.end : 0;
	const float *weights = c.other + (row * c.heads + head) * c.columns;
	float *sums = shared_memory<float>(); /* [WARPS, WARP] */
	for (int64_t d = 0; d < c.width; d += WARP) {
		const bool mine = d + lane < c.width;
		const float *channel = nullptr;
		float sum = 0.0f;
		for (int64_t j = r.c.begin + warp; mine && j < end; j += WARPS) {
			channel = row_in(r, j) + head / c.group * c.width + d + lane;
			sum = __fmaf_rn(weights[j], *channel, sum);
		}
		sums[warp * WARP + lane] = sum;
		__syncthreads();
		if (warp == 0 && mine) {
			float all = 0.0f;
#pragma unroll
			for (int w = 0; w < WARPS; w++)
				all = __fadd_rn(all, sums[w * WARP + lane]);
			y[(row * c.heads + head) * c.width + d + lane] = all;
		}
		__syncthreads();
	}
}

status cuda_stream_apply(backend *b, const op_call *call)
{
	const matrix_stream_params *p = (const matrix_stream_params *)call->params;
	const matrix_stream_call c = matrix_stream_call_of(call, call->out[0].shape.dim[2] / p->heads);
	return cuda_launch(b, stream_apply_kernel, dim3(cuda_extent(c.rows * c.heads)), THREADS, THREADS * sizeof(float), c,
	                   (float *)call->out[0].data);
}

/* One block per token. If a call is longer than the ring, its last tokens stay. */
static __global__ void __launch_bounds__(THREADS) stream_store_kernel(matrix_stream_call c)
{
	const int64_t row = blockIdx.x;
	const stream_token t = stream_token_of(c, row);
	if (t.i >= t.length || t.i < t.length - c.ring.window)
		return;
	const int64_t token = t.position + t.i;
	float *key = t.state + matrix_ring_key(c.ring, token), *value = t.state + matrix_ring_value(c.ring, token);
	for (int64_t d = threadIdx.x; d < c.ring.key_width; d += THREADS)
		key[d] = c.tokens[row * c.ring.key_width + d];
	for (int64_t d = threadIdx.x; d < c.ring.value_width; d += THREADS)
		value[d] = c.other[row * c.ring.value_width + d];
	if (threadIdx.x == 0)
		t.state[matrix_ring_there(c.ring, token)] = !c.mask || c.mask[row] != 0 ? 1.0f : 0.0f;
}

status cuda_stream_store(backend *b, const op_call *call)
{
	const matrix_stream_call c = matrix_stream_call_of(call, 0);
	return cuda_launch(b, stream_store_kernel, dim3(cuda_extent(c.rows)), THREADS, 0, c);
}
