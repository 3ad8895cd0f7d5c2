/* longest_match, longest_match_stream: a block has a token, and its threads take the earlier positions in turn. Bytes:
 * 8 a token, and the window's tokens, which stay in the caches.
 *
 * longest_match_stream has two kernels, since the call's tokens read the ring's previous contents. Where each sequence
 * has one token, a single kernel is enough: the block writes its token over one that has left the window. */
#include "cuda/device.cuh"
#include "cuda/kernels.h"
#include "cuda/stream.cuh"

extern "C" {
#include "engine/tensor/ops/longest_match.h"
}

enum { THREADS = 128, WARPS = THREADS / WARP };

struct match_call {
	longest_match_params p;
	const int32_t *x, *mask;                          /* mask may be NULL */
	const int32_t *slot, *position, *length, *start; /* NULL: whole sequences; start may be NULL alone */
	float *pool;
	int32_t *next; /* may be NULL */
	int64_t sequences, n, slot_floats;
	bool both; /* next, and the ring */

	__device__ __forceinline__ float *ring(int64_t s) const
	{
		return pool + slot[s] * slot_floats + p.offset;
	}
};

/* Tokens of a sequence, by position. */
struct match_text {
	const int32_t *x, *mask;
	const float *ring;
	int64_t before;
	int window;

	__device__ __forceinline__ match_text(const match_call &o, int64_t s, const token_span &tokens)
	    : x(o.x + tokens.first), mask(o.mask ? o.mask + tokens.first : NULL), ring(o.slot ? o.ring(s) : NULL),
	      before(o.slot ? o.position[s] : 0), window((int)o.p.window)
	{
	}
	__device__ __forceinline__ int32_t at(int64_t i) const
	{
		const int64_t k = i - before;
		if (k < 0)
			return (int32_t)ring[(uint32_t)i % (uint32_t)window];
		return !mask || mask[k] ? x[k] : -1;
	}
};

/* Length of the match of token i at j, followed by j: longer matches have the larger number, and among equals the later
 * one. 0: no match. */
static __device__ __forceinline__ long long match_at(const match_text &t, int64_t i, int64_t j, int64_t length)
{
	int64_t m = 0;
	for (; m < length && m <= j; m++) {
		const int32_t own = t.at(i - m);
		if (own < 0 || own != t.at(j - m))
			break;
	}
	return m > 0 ? m << 32 | j : 0;
}

static __device__ __forceinline__ long long warp_longest(long long x)
{
#pragma unroll
	for (int flip = WARP / 2; flip > 0; flip /= 2)
		x = max(x, __shfl_xor_sync(ALL_LANES, x, flip));
	return x;
}

static __global__ void __launch_bounds__(THREADS) longest_match_kernel(match_call o, int64_t rows)
{
	long long *space = shared_memory<long long>();
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
		const int64_t s = sequence_of(o.start, o.sequences, o.n, row);
		const token_span tokens = tokens_of(o.start, o.sequences, o.n, s);
		const match_text t(o, s, tokens);
		const int64_t i = t.before + row - tokens.first, least = longest_match_least(i, o.p.window, o.p.length);
		const bool read = !o.length || row - tokens.first < o.length[s];
		long long best = 0;
		for (int64_t j = i - 1 - threadIdx.x; read && j >= least; j -= THREADS)
			best = max(best, match_at(t, i, j, o.p.length));
		best = warp_longest(best);
		__syncthreads();
		if (lane == 0)
			space[warp] = best;
		__syncthreads();
		if (threadIdx.x > 0)
			continue;
		for (int w = 1; w < WARPS; w++)
			best = max(best, space[w]);
		if (o.next)
			o.next[row] = best ? t.at((best & 0xffffffff) + 1) : -1;
		if (o.both && read)
			o.ring(s)[(uint32_t)i % (uint32_t)o.p.window] = (float)t.at(i);
	}
}

/* Ring entry number `place % window` from the end, of sequence place / window. */
static __global__ void __launch_bounds__(THREADS) longest_match_ring_kernel(match_call o)
{
	for (int64_t place = grid_first(); place < o.sequences * o.p.window; place += grid_stride()) {
		const int64_t s = place / o.p.window, k = o.length[s] - 1 - place % o.p.window;
		const match_text t(o, s, tokens_of(o.start, o.sequences, o.n, s));
		if (k >= 0)
			o.ring(s)[(t.before + k) % o.p.window] = (float)t.at(t.before + k);
	}
}

static match_call match_call_of(const op_call *call, int mask)
{
	match_call o = {};
	o.p = *(const longest_match_params *)call->params;
	o.x = (const int32_t *)call->in[0].data;
	o.mask = (const int32_t *)cuda_optional(call, mask);
	o.next = (int32_t *)call->out[0].data;
	o.sequences = call->in[0].shape.dim[0];
	o.n = call->in[0].shape.dim[1];
	return o;
}

static status launch_match(backend *b, const op_call *call, const match_call &o)
{
	const int64_t rows = shape_count(call->in[0].shape);
	return cuda_launch(b, longest_match_kernel, cuda_blocks(b, rows * THREADS, THREADS), THREADS,
	                   WARPS * sizeof(long long), o, rows);
}

status cuda_longest_match(backend *b, const op_call *call)
{
	return launch_match(b, call, match_call_of(call, 1));
}

status cuda_longest_match_stream(backend *b, const op_call *call)
{
	match_call o = match_call_of(call, 5);
	o.pool = (float *)call->in[1].data;
	o.slot = (const int32_t *)call->in[2].data;
	o.position = (const int32_t *)call->in[3].data;
	o.length = (const int32_t *)call->in[4].data;
	o.start = (const int32_t *)cuda_optional(call, 6);
	o.sequences = call->in[2].shape.dim[0];
	o.slot_floats = call->in[1].shape.dim[1];
	o.both = !o.start && o.n == 1;
	TRY(launch_match(b, call, o));
	if (o.both)
		return STATUS_OK;
	return cuda_launch(b, longest_match_ring_kernel, cuda_blocks(b, o.sequences * o.p.window, THREADS), THREADS, 0,
	                   o);
}
