/* sample: logits [B, V], setting [B, SAMPLE_WORDS], adjust [A, 3] -> token [B], the same token as the CPU's kernel.
 *
 * A block per row; an inactive row costs a block that returns at once. Weights are integers, so shared-memory atomics
 * may add them in any order, and nothing is ever sorted:
 *
 *   best      the largest finite logit. Each thread also keeps its own.
 *   few       the threads' own logits, in bins, give a bound that at least k logits reach, and few more if logits are
 *             spread. The tokens that reach it are listed. Then both cuts and the draw compare each with each. Without
 *             top-k, k is a guess; the list must have the mass that top-p asks for.
 *   cut       for long lists: the last token, by rank, that top-k or top-p admits. Counts and masses in bins of a
 *             thirty-second of a nat show its bin. The bin's keys are gathered in shared memory and each is compared
 *             with each. While they are too many (flat logits, ties) their range of keys is divided into bins again.
 *             top-k's cut finds the mass that is left, from which top-p's starts with the same bins.
 *   draw      masses of segments of ids, each by a warp; one warp finds the segment, and the token in it.
 *
 * Weights are recomputed in every pass, about thirty integer instructions, which is faster than writing and reading
 * them. A row is read once at temperature 0, twice if few tokens are left, and 3 times without cuts (4 with top-a,
 * whose limit depends on the mass). Long lists take 8 to 10 passes with both cuts. Later reads come from the cache.
 * Penalised, biased or masked rows are copied to scratch first. Bytes per row: 4 V, with adjustments 12 V. */
#include "cuda/device.cuh"
#include "cuda/kernels.h"
#include "engine/base/philox.h"
#include "engine/tensor/ops/sample.h"

namespace
{

typedef unsigned long long u64;

/* FEW: most tokens of a list that are drawn from without another pass. GUESS: tokens to list where only top-p cuts. */
enum { THREADS = 512, WARPS = THREADS / WARP, BINS = 1024, BINS_PER_NAT = 32, LIST = 1024, FEW = 512, GUESS = 128 };
constexpr u64 NONE = ~(u64)0; /* no token's key */
static_assert(SAMPLE_FAR * BINS_PER_NAT < BINS, "every distance has a bin");
static_assert(FEW <= LIST && FEW <= THREADS, "the list holds them, and each has a thread");

struct histogram {
	u64 mass[BINS];
	unsigned count[BINS];
};

/* A block's shared memory. */
struct work {
	histogram coarse; /* by distance, later masses by segment */
	union {
		histogram fine;
		struct {
			u64 key[LIST], weight[LIST];
		} list;
	};
	u64 warp[WARPS];
	/* Result of a walk over bins: the bin (-1: past all), the total before it, and the count in it. */
	int bin;
	unsigned inside, listed;
	u64 counted, reached;
	u64 last, mass; /* last key that is admitted, and the mass up to it */
};

/* A row's logits. */
struct row {
	const float *x;
	int vocab;
	float max, temperature;

	__device__ __forceinline__ float distance(int i) const
	{
		return sample_distance(x[i], max, temperature);
	}
};

/* Ascending from the largest logit. Zeros of either sign are equal. */
__device__ __forceinline__ unsigned rank_of(float x)
{
	const unsigned bits = __float_as_uint(x + 0.0f);
	return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}
__device__ __forceinline__ float logit_of(unsigned rank)
{
	return __uint_as_float(rank & 0x80000000u ? rank : ~rank & 0x7fffffffu);
}
/* Ascending from the token that ranks first. */
__device__ __forceinline__ u64 rank_key(float x, int id)
{
	return (u64)rank_of(x) << 32 | (unsigned)id;
}

/* Return the least x, or the sum, to every thread of the block. */
template <class F> __device__ __forceinline__ u64 block_reduce(u64 x, u64 *space, F f)
{
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	for (int flip = WARP / 2; flip > 0; flip /= 2)
		x = f(x, __shfl_xor_sync(ALL_LANES, x, flip));
	__syncthreads();
	if (lane == 0)
		space[warp] = x;
	__syncthreads();
	x = space[0];
	for (int i = 1; i < WARPS; i++)
		x = f(x, space[i]);
	return x;
}
__device__ __forceinline__ u64 least(u64 a, u64 b)
{
	return a < b ? a : b;
}
__device__ __forceinline__ u64 plus(u64 a, u64 b)
{
	return a + b;
}
__device__ __forceinline__ u64 block_least(u64 x, u64 *space)
{
	return block_reduce(x, space, least);
}

/* The sum of the lanes up to this one. */
__device__ __forceinline__ u64 warp_running(u64 x)
{
	const int lane = threadIdx.x % WARP;
	for (int by = 1; by < WARP; by *= 2) {
		const u64 before = __shfl_up_sync(ALL_LANES, x, by);
		x += lane >= by ? before : 0;
	}
	return x;
}

/* Find the first bin at which `count` tokens or the mass `goal` are reached, starting from w's totals. */
__device__ void walk(work *w, const histogram *h, u64 count, u64 goal)
{
	__syncthreads();
	if (threadIdx.x < WARP) {
		const int lane = threadIdx.x;
		u64 counted = w->counted, reached = w->reached;
		int found = -1;
		for (int first = 0; first < BINS && found < 0; first += WARP) {
			const u64 c = warp_running(h->count[first + lane]), m = warp_running(h->mass[first + lane]);
			const unsigned over = __ballot_sync(ALL_LANES, counted + c >= count || reached + m >= goal);
			const int stop = over ? __ffs((int)over) - 1 : WARP;
			const u64 before_c = __shfl_sync(ALL_LANES, c, (stop + WARP - 1) % WARP);
			const u64 before_m = __shfl_sync(ALL_LANES, m, (stop + WARP - 1) % WARP);
			counted += stop > 0 ? before_c : 0;
			reached += stop > 0 ? before_m : 0;
			if (over)
				found = first + stop;
		}
		__syncwarp();
		if (lane == 0) {
			w->bin = found;
			w->inside = found < 0 ? 0 : h->count[found];
			w->counted = counted;
			w->reached = reached;
		}
	}
	__syncthreads();
}

__device__ void clear(histogram *h)
{
	__syncthreads();
	for (int i = threadIdx.x; i < BINS; i += THREADS) {
		h->mass[i] = 0;
		h->count[i] = 0;
	}
	__syncthreads();
}

/* *mass += weight, in two halves. Shared memory adds 32 bits atomically, but 64 bits only by a compare-and-swap loop,
 * which is slow where many tokens share a bin. A low half that wraps carries one into the high half. */
__device__ __forceinline__ void add_mass(u64 *mass, u64 weight)
{
	unsigned *half = (unsigned *)mass;
	const unsigned low = (unsigned)weight, before = atomicAdd(&half[0], low);
	const unsigned high = (unsigned)(weight >> 32) + (before + low < before);
	if (high)
		atomicAdd(&half[1], high);
}

__device__ __forceinline__ void put(histogram *h, int bin, u64 weight)
{
	add_mass(&h->mass[bin], weight);
	atomicAdd(&h->count[bin], 1u);
}

__device__ void fill_coarse(const row &r, work *w)
{
	clear(&w->coarse);
	for (int i = threadIdx.x; i < r.vocab; i += THREADS) {
		const float t = r.distance(i);
		const u64 weight = sample_weight(t);
		if (weight > 0)
			put(&w->coarse, (int)(t * BINS_PER_NAT), weight);
	}
}

/* Narrow the range of keys from low to high, which contains the last admitted one, until its keys fit the list. */
__device__ void narrow(const row &r, work *w, u64 count, u64 goal, u64 *low, u64 *high)
{
	while (w->inside > LIST) {
		int shift = 0;
		while ((*high - *low) >> shift >= BINS)
			shift++;
		clear(&w->fine);
		for (int i = threadIdx.x; i < r.vocab; i += THREADS) {
			const u64 weight = sample_weight(r.distance(i)), key = rank_key(r.x[i], i);
			if (weight > 0 && key >= *low && key <= *high)
				put(&w->fine, (int)((key - *low) >> shift), weight);
		}
		walk(w, &w->fine, count, goal);
		*low += (u64)w->bin << shift;
		*high = least(*high, *low + ((u64)1 << shift) - 1);
	}
}

/* Find the last admitted key among those from low to high. */
__device__ void settle(const row &r, work *w, u64 count, u64 goal, u64 low, u64 high)
{
	__syncthreads();
	if (threadIdx.x == 0)
		w->listed = 0;
	__syncthreads();
	for (int i = threadIdx.x; i < r.vocab; i += THREADS) {
		const u64 weight = sample_weight(r.distance(i)), key = rank_key(r.x[i], i);
		if (weight > 0 && key >= low && key <= high) {
			const unsigned at = atomicAdd(&w->listed, 1u);
			w->list.key[at] = key;
			w->list.weight[at] = weight;
		}
	}
	__syncthreads();
	const int n = (int)w->listed;
	for (int e = threadIdx.x; e < n; e += THREADS) {
		const u64 key = w->list.key[e];
		u64 counted = w->counted, reached = w->reached;
		for (int j = 0; j < n; j++) {
			counted += w->list.key[j] < key;
			reached += w->list.key[j] < key ? w->list.weight[j] : 0;
		}
		const u64 mass = reached + w->list.weight[e];
		if (counted < count && reached < goal && (counted + 1 >= count || mass >= goal)) {
			w->last = key;
			w->mass = mass;
		}
	}
	__syncthreads();
}

/* Set w->last and w->mass: the first token by rank at which `count` tokens or the mass `goal` (at least 1) are reached;
 * the last token if neither is. The coarse bins are filled. */
__device__ void cut(const row &r, work *w, u64 count, u64 goal)
{
	__syncthreads();
	if (threadIdx.x == 0)
		w->counted = w->reached = 0;
	walk(w, &w->coarse, count, goal);
	if (w->bin < 0) {
		if (threadIdx.x == 0) {
			w->last = ~(u64)0;
			w->mass = w->reached;
		}
		__syncthreads();
		return;
	}
	u64 low = ~(u64)0, high = 0;
	for (int i = threadIdx.x; i < r.vocab; i += THREADS) {
		const float t = r.distance(i);
		const u64 key = rank_key(r.x[i], i);
		if ((int)(t * BINS_PER_NAT) == w->bin && sample_weight(t) > 0) {
			low = least(low, key);
			high = high > key ? high : key;
		}
	}
	low = block_least(low, w->warp);
	high = ~block_least(~high, w->warp);
	narrow(r, w, count, goal, &low, &high);
	settle(r, w, count, goal, low, high);
}

/* A token's weight if it is admitted, else 0. */
__device__ __forceinline__ u64 weight_left(const row &r, int i, u64 last, u64 bottom)
{
	const u64 weight = sample_weight(r.distance(i));
	return weight >= bottom && rank_key(r.x[i], i) <= last ? weight : 0;
}

/* Mass of the whole row. */
__device__ u64 row_mass(const row &r, work *w)
{
	u64 sum = 0;
	for (int i = threadIdx.x; i < r.vocab; i += THREADS)
		sum += sample_weight(r.distance(i));
	return block_reduce(sum, w->warp, plus);
}

__device__ int draw(const row &r, work *w, u64 last, u64 bottom, uint32_t random)
{
	const int lane = threadIdx.x % WARP, each = ((r.vocab + BINS - 1) / BINS + WARP - 1) / WARP * WARP;
	u64 sum = 0;
	clear(&w->coarse);
	for (int segment = threadIdx.x / WARP; segment * each < r.vocab; segment += WARPS) {
		const int end = min(r.vocab, (segment + 1) * each);
		u64 part = 0;
		for (int i = segment * each + lane; i < end; i += WARP)
			part += weight_left(r, i, last, bottom);
		for (int flip = WARP / 2; flip > 0; flip /= 2)
			part += __shfl_xor_sync(ALL_LANES, part, flip);
		if (lane == 0) {
			w->coarse.mass[segment] = part;
			sum += part;
		}
	}
	const u64 goal = sample_share(random >> 8, block_reduce(sum, w->warp, plus)) + 1;
	if (threadIdx.x == 0)
		w->counted = w->reached = 0;
	walk(w, &w->coarse, ~(u64)0, goal);
	int token = -1; /* for the first warp */
	if (threadIdx.x < WARP) {
		u64 reached = w->reached;
		for (int first = w->bin * each; token < 0 && first < r.vocab; first += WARP) {
			const int i = first + lane;
			const u64 m = warp_running(i < r.vocab ? weight_left(r, i, last, bottom) : 0);
			const unsigned over = __ballot_sync(ALL_LANES, reached + m >= goal);
			if (over)
				token = first + __ffs((int)over) - 1;
			reached += __shfl_sync(ALL_LANES, m, WARP - 1);
		}
	}
	return token;
}

/* --- few tokens ----------------------------------------------------------------------- */

/* Return the key of the thread's largest finite logit. */
__device__ u64 best_key(const row &r)
{
	float most = -INFINITY;
	int id = -1;
#pragma unroll 4
	for (int i = threadIdx.x; i < r.vocab; i += THREADS) {
		const float x = r.x[i];
		if (x > most && x <= FLT_MAX) {
			most = x;
			id = i;
		}
	}
	return id < 0 ? NONE : rank_key(most, id);
}

/* Return a logit that at least `count` logits reach: the last of the bin in which `count` of the threads' own logits are
 * reached. -inf: there are fewer. mine: this thread's key; best: the least of all. */
__device__ float least_logit(work *w, u64 mine, u64 best, u64 count)
{
	const unsigned rank = (unsigned)(mine >> 32), first = (unsigned)(best >> 32);
	const unsigned last = ~(unsigned)block_least(mine == NONE ? NONE : (u64)~rank, w->warp);
	int shift = 0;
	while ((last - first) >> shift >= BINS)
		shift++;
	clear(&w->coarse);
	if (mine != NONE)
		atomicAdd(&w->coarse.count[(rank - first) >> shift], 1u);
	if (threadIdx.x == 0)
		w->counted = w->reached = 0;
	walk(w, &w->coarse, count, ~(u64)0);
	return w->bin < 0 ? -INFINITY : logit_of((unsigned)least(last, first + ((u64)(w->bin + 1) << shift) - 1));
}

/* List the tokens with a weight whose logit is at least `lowest`, at most FEW; w->listed counts all. Return the mass of
 * the row if `all`, else 0. */
__device__ u64 list_few(const row &r, work *w, float lowest, bool all)
{
	u64 mass = 0;
	__syncthreads();
	if (threadIdx.x == 0)
		w->listed = 0;
	__syncthreads();
#pragma unroll 4
	for (int i = threadIdx.x; i < r.vocab; i += THREADS) {
		const bool listed = r.x[i] >= lowest;
		if (!listed && !all)
			continue;
		const u64 weight = sample_weight(r.distance(i));
		mass += weight;
		if (weight == 0 || !listed)
			continue;
		const unsigned at = atomicAdd(&w->listed, 1u);
		if (at < FEW) {
			w->list.key[at] = rank_key(r.x[i], i);
			w->list.weight[at] = weight;
		}
	}
	mass = block_reduce(mass, w->warp, plus);
	return all ? mass : 0;
}

/* cut and draw from the list, which has all tokens up to some rank; -1: top-p admits more. mass: the mass of which top-p
 * takes its share; 0: that of top-k's tokens, which are listed. Each thread has one entry of the list. */
__device__ int draw_few(work *w, u64 count, u64 mass, const sample_setting &s, uint32_t random)
{
	const int n = (int)w->listed, e = threadIdx.x;
	const u64 key = e < n ? w->list.key[e] : 0;
	u64 weight = e < n ? w->list.weight[e] : 0, counted = 0, reached = 0, run = 0;
	for (int j = 0; e < n && j < n; j++) {
		const bool ahead = w->list.key[j] < key;
		counted += ahead;
		reached += ahead ? w->list.weight[j] : 0;
	}
	if (counted >= count)
		weight = 0;
	const u64 found = block_reduce(weight, w->warp, plus);
	mass = mass > 0 ? mass : found;
	if (s.top_p < 1) {
		const u64 goal = sample_goal(s.top_p, mass);
		if (found < goal)
			return -1;
		if (reached >= (goal > 0 ? goal : 1))
			weight = 0;
	}
	if (weight < sample_bottom(&s, s.top_a > 0 ? block_reduce(weight, w->warp, plus) : 0))
		weight = 0;
	const u64 goal = sample_share(random >> 8, block_reduce(weight, w->warp, plus)) + 1;
	if (e < n)
		w->list.weight[e] = weight;
	__syncthreads();
	for (int j = 0; e < n && j < n; j++)
		run += (unsigned)w->list.key[j] <= (unsigned)key ? w->list.weight[j] : 0;
	if (run >= goal && run - weight < goal)
		w->bin = (int)(unsigned)key;
	__syncthreads();
	return w->bin;
}

/* Return the row's logits, adjusted in `copy` if there are adjustments. */
__device__ const float *adjusted(const float *x, int vocab, const sample_setting &s, const sample_adjust *adjust,
                                 float *copy)
{
	const uint32_t *mask = sample_mask(&s, adjust);
	if (s.count <= 0 && !mask)
		return x;
	for (int i = threadIdx.x; i < vocab; i += THREADS)
		copy[i] = sample_is_left(mask, i) ? x[i] : -INFINITY;
	__syncthreads();
	for (int i = threadIdx.x; i < s.count; i += THREADS) {
		const sample_adjust a = adjust[s.first + i];
		if (a.token >= 0 && a.token < vocab && sample_is_left(mask, a.token))
			copy[a.token] = sample_adjusted(x[a.token], &s, &a);
	}
	__syncthreads();
	return copy;
}

/* Return the token of a row at a temperature above 0, at least to the first warp. mine and best as in least_logit. */
__device__ int draw_cut(const row &r, work *w, const sample_setting &s, u64 mine, u64 best)
{
	const bool counts = s.top_k > 0;
	const u64 count = counts ? (u64)s.top_k : ~(u64)0;
	const uint32_t random = philox(sample_seed(&s), PHILOX_STREAM_SAMPLE, 0, sample_position(&s)).word[0];
	u64 last = ~(u64)0, left = 0; /* left: mass after top-k and top-p, if top-a needs it */
	if (counts || s.top_p < 1) {
		if (!counts || count <= FEW) {
			const u64 mass = list_few(r, w, least_logit(w, mine, best, counts ? count : (u64)GUESS), !counts);
			const int token = w->listed <= FEW ? draw_few(w, count, mass, s, random) : -1;
			if (token >= 0)
				return token;
		}
		fill_coarse(r, w);
		cut(r, w, count, ~(u64)0);
		const u64 goal = sample_goal(s.top_p, w->mass);
		if (s.top_p < 1)
			cut(r, w, ~(u64)0, goal > 0 ? goal : 1);
		last = w->last;
		left = w->mass;
	} else if (s.top_a > 0) {
		left = row_mass(r, w);
	}
	return draw(r, w, last, sample_bottom(&s, left), random);
}

__global__ void __launch_bounds__(THREADS)
    sample_kernel(int32_t *token, const float *logits, int64_t vocab, const sample_setting *setting,
                  const sample_adjust *adjust, float *scratch)
{
	work *w = shared_memory<work>();
	const sample_setting s = setting[blockIdx.x];
	if (!s.active) {
		if (threadIdx.x == 0)
			token[blockIdx.x] = -1;
		return;
	}
	row r = {logits + blockIdx.x * vocab, (int)vocab, 0.0f, s.temperature};
	r.x = adjusted(r.x, r.vocab, s, adjust, scratch + blockIdx.x * vocab);
	const u64 mine = best_key(r), best = block_least(mine, w->warp);
	int chosen = best == NONE ? -1 : (int)(unsigned)best;
	if (chosen >= 0 && s.temperature > 0) {
		r.max = r.x[chosen];
		chosen = draw_cut(r, w, s, mine, best);
	}
	if (threadIdx.x == 0)
		token[blockIdx.x] = chosen;
}

} // namespace

size_t cuda_sample_scratch(const backend *, const op_call *call)
{
	return call->in[2].shape.dim[0] > 0 ? (size_t)shape_count(call->in[0].shape) * sizeof(float) : 0;
}

status cuda_sample(backend *b, const op_call *call)
{
	return cuda_launch(b, sample_kernel, dim3(cuda_extent(call->in[0].shape.dim[0])), THREADS, sizeof(work),
	                   (int32_t *)call->out[0].data, (const float *)call->in[0].data, call->in[0].shape.dim[1],
	                   (const sample_setting *)call->in[1].data, (const sample_adjust *)call->in[2].data,
	                   (float *)call->scratch);
}
