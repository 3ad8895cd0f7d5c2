/* softmax_blind.cuh - queries of softmax attention that see no key; `uniform` gives them equal probabilities.
 *
 * A list for each sequence, [B, 1 + N], has their number and then their indices in order. Only the device knows whether
 * there are any, so the kernels that serve them are always launched and mostly find an empty list. */
#ifndef CUDA_SOFTMAX_BLIND_CUH
#define CUDA_SOFTMAX_BLIND_CUH

#include "cuda/softmax_attention.cuh"

enum { BLIND_THREADS = 128, BLIND_BLOCKS = 64, BLIND_KEYS = 256 /* blocks per head and sequence */ };

static inline size_t blind_bytes(const op_call *call)
{
	const softmax_layout l = softmax_layout_of(call);
	return ((const softmax_params *)call->params)->uniform ? (size_t)(l.batch * (1 + l.queries)) * sizeof(int32_t)
	                                                       : 0;
}

__device__ __forceinline__ int blind_count(const attention &a, const int32_t *list, unsigned sequence)
{
	return list[(int64_t)sequence * (1 + a.queries)];
}
__device__ __forceinline__ int blind_query(const attention &a, const int32_t *list, unsigned sequence, int n)
{
	return list[(int64_t)sequence * (1 + a.queries) + 1 + n];
}

/* True if one pair is kept. */
__device__ __forceinline__ bool blind_keeps(const attention &a, const attention_dropout &drop, int query, int key)
{
	return !a.rng || (attention_kept(drop, query, key) & 1);
}

/* Bit l: the key at place + l exists and is not masked. */
__device__ __forceinline__ unsigned blind_keys(const attention &a, int64_t row, int place)
{
	const int key = place + (int)threadIdx.x;
	return __ballot_sync(ALL_LANES, key >= 0 && attention_key(a, row, key));
}
/* Position of the highest bit, or `last` if no bit is set. */
__device__ __forceinline__ int blind_last(unsigned keys, int place, int last)
{
	return keys ? place + WARP - 1 - __clz((int)keys) : last;
}

/* One warp per sequence. A query sees no key if the last existing one, among those up to its position (with `ahead`:
 * among all), is before its window. */
static __global__ void __launch_bounds__(WARP) blind_list(attention a, int32_t *list)
{
	const unsigned lane = threadIdx.x;
	const int64_t row = (int64_t)blockIdx.x * a.keys;
	int32_t *to = list + (int64_t)blockIdx.x * (1 + a.queries);
	int count = 0, last = -1; /* last existing key so far */
	for (int key = (a.ahead ? a.keys : a.shift) - WARP; key > -WARP && last < 0; key -= WARP)
		last = blind_last(blind_keys(a, row, key), key, last);
	for (int query = 0; query < a.queries; query += WARP) {
		const int first = query + a.shift, place = first + (int)lane;
		int mine = last;
		if (!a.ahead) {
			const unsigned keys = blind_keys(a, row, first);
			mine = blind_last(keys & ALL_LANES >> (WARP - 1 - lane), first, last);
			last = blind_last(keys, first, last);
		}
		const bool blind = query + (int)lane < a.queries && (mine < 0 || place - mine >= a.window);
		const unsigned all = __ballot_sync(ALL_LANES, blind);
		if (blind)
			to[1 + count + __popc(all & ((1u << lane) - 1))] = query + (int)lane;
		count += __popc(all);
	}
	if (lane == 0)
		to[0] = count;
}

/* Grid of the kernels that serve them. Sequences are along z, up to a grid's limit. */
static inline dim3 blind_grid(unsigned blocks, int heads, int64_t batch)
{
	return dim3(blocks, (unsigned)heads, (unsigned)(batch < CUDA_MOST_YZ ? batch : (int64_t)CUDA_MOST_YZ));
}

static inline status blind_issue(backend *b, const op_call *call, const attention &a, int32_t *list)
{
	return cuda_launch(b, blind_list, dim3(cuda_extent(softmax_layout_of(call).batch)), WARP, 0, a, list);
}

#endif
