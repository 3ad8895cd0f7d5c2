/* additive_attention: one round of causal windowed additive attention, in one pass (additive_attention.cuh).
 *
 *   x [B, N, D] real, w [D], mask? [B, N] -> g [B, N, D], score [B, N, H], log_normalizer [B, N, H]
 *   a_j = w_h·x_j / √dh
 *   M_i = log Σ_{j∈W(i)} e^{a_j} = top + log sum;  g_i = Σ_{j∈W(i)} e^{a_j - M_i} x_j = vector / sum
 *
 * Bytes per element: 4 in bf16 (2 read, 2 written), 8 in f32, and 8 per token and head for score and log_normalizer.
 * Windows read x a second time, from L2. A tile of dh 64 in bf16 has 256 tokens: 8 rows per group of 8 lanes.
 *
 * A head with more channels than a block can hold is cut into pieces. They share the scores, which another kernel
 * computes first. */
#include "cuda/additive_attention.cuh"
#include "cuda/kernels.h"

template <class T> struct forward_call {
	additive_cut cut;
	const T *x;
	const float *w;
	const int32_t *mask;
	const float *given; /* [B, N, H]: scores, if heads are cut into pieces */
	T *g;
	float *score, *log_normalizer;
	float scale;
};

template <class C_, bool WINDOW_> struct forward {
	typedef C_ C;
	typedef typename C::T T;
	enum { WINDOW = WINDOW_, ONES = true, R = C::PACKED ? 8 : 4, stages = WINDOW ? 2 : 1 };
	typedef additive_held<C, R> held;
	const forward_call<T> &f;
	const T *x;                          /* row 0 of the group */
	int64_t row, scores;                 /* its token; index of its scores */
	unsigned present, seen, far_seen;    /* bits of rows that exist; of this lane's own, that the mask admits */
	int width;
	bool speaks; /* this piece of a head writes the outputs per head */
	held top, sum, near_share, far_share; /* for M; for g */
	float w[C::E];

	__device__ __forceinline__ void start(const additive_place &p, int first, unsigned bits)
	{
		const int channel = p.head * f.cut.dh + p.chunk * ADDITIVE_CHUNK;
		row = p.sequence * f.cut.length + first;
		scores = row * f.cut.heads + p.head;
		x = f.x + row * f.cut.stride + channel;
		width = f.cut.dh - p.chunk * ADDITIVE_CHUNK;
		speaks = p.chunk == 0;
		present = bits;
		C::load_weight(w, f.w + channel, width);
	}
	template <bool FAR>
	__device__ __forceinline__ void fetch(const additive_rows<C, R, ONES> &rows, unsigned bits)
	{
		const T *from = FAR ? x - f.cut.window * f.cut.stride : x;
#pragma unroll
		for (int r = 0; r < R; r++)
			rows.stage->fetch(r, from + r * f.cut.stride, width, bits >> r & 1);
		(FAR ? far_seen : seen) =
		    additive_seen<C, R>(f.mask ? f.mask + row - (FAR ? f.cut.window : 0) : nullptr, 1, bits);
	}
	template <bool FAR> __device__ __forceinline__ void arrive(additive_rows<C, R, ONES> &rows, unsigned bits)
	{
		float part[R];
#pragma unroll
		for (int r = 0; r < R; r++)
			part[r] = C::dot(rows.stage->get(r), w);
		held a = additive_sums<C>(part);
#pragma unroll
		for (int i = 0; i < held::SLOTS; i++) {
			const int r = held::row(i);
			a.slot[i] *= f.scale;
			if (!C::PACKED && f.given)
				a.slot[i] = bits >> r & 1 ? f.given[scores + (r - (FAR ? f.cut.window : 0)) * f.cut.heads] : 0;
			rows.scores.slot[i] = (FAR ? far_seen : seen) >> r & 1 ? a.slot[i] : -INFINITY;
		}
		if (!FAR && speaks && f.score)
			a.store(f.score + scores, f.cut.heads, present);
	}
	__device__ __forceinline__ void ready(void)
	{
	}
	__device__ __forceinline__ void weigh(const additive_course<C, R> &near)
	{
		top = near.top;
		sum = near.sum;
	}
	__device__ __forceinline__ void weigh(const additive_course<C, R> &near, const additive_course<C, R> &far)
	{
#pragma unroll
		for (int i = 0; i < held::SLOTS; i++) {
			const float both = fmaxf(near.top.slot[i], far.top.slot[i]);
			const float mine = additive_exp(near.top.slot[i] - both), theirs = additive_exp(far.top.slot[i] - both);
			const float all = mine * near.sum.slot[i] + theirs * far.sum.slot[i], share = additive_share(all);
			top.slot[i] = both;
			sum.slot[i] = all;
			near_share.slot[i] = mine * share;
			far_share.slot[i] = theirs * share;
		}
	}
	__device__ __forceinline__ void done(int r, const float (&g)[C::E])
	{
		if (f.g && present >> r & 1)
			C::store(f.g + (x - f.x) + r * f.cut.stride, width, g);
	}
	__device__ __forceinline__ void done(int r, const float (&near)[C::E], const float (&far)[C::E])
	{
		const float mine = near_share.get(r), theirs = far_share.get(r);
		float g[C::E];
#pragma unroll
		for (int e = 0; e < C::E; e++)
			g[e] = mine * near[e] + theirs * far[e];
		done(r, g);
	}
	__device__ __forceinline__ void end_tile(void)
	{
		if (!speaks || !f.log_normalizer)
			return;
#pragma unroll
		for (int i = 0; i < top.SLOTS; i++)
			top.slot[i] = sum.slot[i] > 0 ? top.slot[i] + logf(sum.slot[i]) : -INFINITY;
		top.store(f.log_normalizer + scores, f.cut.heads, present);
	}
};

/* Blocks per processor: while one waits for memory or for others, the rest use the arithmetic units. */
template <class C, bool WINDOW>
__global__ void __launch_bounds__(ADDITIVE_THREADS, C::PACKED ? WINDOW ? 3 : 4 : 2)
    forward_kernel(forward_call<typename C::T> f)
{
	forward<C, WINDOW> work = {f, nullptr, 0, 0, 0, 0, 0, 0, false, {}, {}, {}, {}, {}};
	additive_march(f.cut, work);
}

/* score[i, h] = w_h·x_i / √dh, one warp each, for heads that are cut into pieces. */
template <class T>
__global__ void __launch_bounds__(ADDITIVE_THREADS)
    scores_kernel(float *score, const T *x, const float *w, int64_t rows, int heads, int dh, float scale)
{
	const int lane = threadIdx.x % WARP;
	for (int64_t i = grid_first() / WARP; i < rows * heads; i += grid_stride() / WARP) {
		const T *row = x + i * dh;
		const float *weight = w + i % heads * dh;
		float sum = 0;
		for (int c = lane; c < dh; c += WARP)
			sum += load_real(row + c) * weight[c];
		sum = warp_sum(sum);
		if (lane == 0)
			score[i] = scale * sum;
	}
}

template <class C> static additive_cut forward_cut(const op_call *call)
{
	return additive_cut_of(call, C::GROUPS * forward<C, false>::R, 2);
}

static size_t given_bytes(const op_call *call, const additive_cut *c)
{
	const int64_t scores = shape_rows(call->in[0].shape) * c->heads;
	return c->chunks > 1 ? ((size_t)scores * sizeof(float) + 63) / 64 * 64 : 0;
}

size_t cuda_additive_attention_scratch(const backend *, const op_call *call)
{
	size_t bytes = 0;
	const additive_attention_params *p = (const additive_attention_params *)call->params;
	(void)additive_by_lanes(call->in[0].type, shape_last(call->in[0].shape) / p->heads, [&](auto *lanes) {
		typedef std::remove_pointer_t<decltype(lanes)> C;
		additive_cut c = forward_cut<C>(call);
		bytes = given_bytes(call, &c);
		return STATUS_OK;
	});
	return bytes;
}

template <class C> static status forward_run(backend *b, const op_call *call)
{
	typedef typename C::T T;
	forward_call<T> f = {};
	f.cut = forward_cut<C>(call);
	f.x = (const T *)call->in[0].data;
	f.w = (const float *)call->in[1].data;
	f.mask = (const int32_t *)cuda_optional(call, 2);
	f.g = (T *)call->out[0].data;
	f.score = (float *)call->out[1].data;
	f.log_normalizer = (float *)call->out[2].data;
	f.scale = 1 / sqrtf((float)f.cut.dh);
	if (shape_count(call->in[0].shape) == 0)
		return STATUS_OK;
	if (f.cut.chunks > 1) {
		int64_t rows = shape_rows(call->in[0].shape);
		float *given = (float *)call->scratch;
		f.given = given;
		TRY(cuda_launch(b, scores_kernel<T>, cuda_blocks(b, rows * f.cut.heads, ADDITIVE_WARPS),
		                ADDITIVE_THREADS, 0, given, f.x, f.w, rows, f.cut.heads, f.cut.dh, f.scale));
	}
	TRY(additive_prepare(b, &f.cut, C::WIDTH));
	const unsigned blocks = cuda_extent(additive_chains(&f.cut) * f.cut.count);
	if (f.cut.global)
		return cuda_launch(b, forward_kernel<C, false>, blocks, ADDITIVE_THREADS,
		                   additive_shared_bytes<forward<C, false>>(), f);
	return cuda_launch(b, forward_kernel<C, true>, blocks, ADDITIVE_THREADS,
	                   additive_shared_bytes<forward<C, true>>(), f);
}

status cuda_additive_attention(backend *b, const op_call *call)
{
	const additive_attention_params *p = (const additive_attention_params *)call->params;
	return additive_by_lanes(call->in[0].type, shape_last(call->in[0].shape) / p->heads, [&](auto *lanes) {
		return forward_run<std::remove_pointer_t<decltype(lanes)>>(b, call);
	});
}
