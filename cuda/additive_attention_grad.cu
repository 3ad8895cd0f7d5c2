/* additive_attention_grad: the forward's march, backwards in time, in one pass (additive_attention.cuh).
 *
 *   x, w, mask?, g, log_normalizer, dg -> dx [B, N, D] real, dw [D]
 *
 * Token j is in the windows V(j) = {j … j+k-1}. With scores -M_i and values D_i = dg_i·g_i the sums over V(j) are
 * aggregates with top r, and
 *
 *   P_j = Σ e^{a_j - M_i} dg_i = e^{a_j + r} vector,   Q_j = e^{a_j + r} sum
 *   da_j = x_j·P_j - Q_j,   dx_j = P_j + c da_j w,   dw = c Σ da_j x_j,   c = 1/√dh
 *
 * c is 0 if the weights are constants. No exponent is above 0 except by rounding, since no a_j is above its M_i. a is
 * recomputed in the forward's order. An empty window has M = -inf and becomes an absent token. A masked j has a = -inf,
 * so P = Q = 0.
 *
 * dw: a lane sums its channels over its rows, then the block's groups are added in a fixed order, which gives one row
 * [D] per tile. A kernel adds these in order too.
 *
 * Bytes per element: 8 in bf16 (x, g, dg read, dx written), 16 in f32, 4 per token and head for M, 4 / tile for dw.
 * Windows read dg, g and M a second time, from L2; passing D through memory would make windows wait that otherwise do
 * not. There are 4 rows per group, so that x, near and far dg of two blocks fit shared memory, and g the registers.
 *
 * For a head with more channels than a block can hold, separate kernels first compute a and D. Next come P in pieces
 * and Q, then the rest, a row at a time. */
#include "cuda/additive_attention.cuh"
#include "cuda/kernels.h"
#include "cuda/reduce.cuh"

template <class T> struct backward_call {
	additive_cut cut;
	const T *x;
	const float *w;
	const int32_t *mask;
	const T *g;
	const float *log_normalizer;
	const T *dg;
	T *dx;
	float *parts; /* [B · tiles, D] of dw; NULL: not requested */
	float scale, slope; /* c in the scores; c in da, 0 if frozen */
	/* For heads cut into pieces, [B, N, H] and P [B, N, D]: */
	float *score, *value, *q, *p;
};

template <class C_, bool WINDOW_> struct backward {
	typedef C_ C;
	typedef typename C::T T;
	enum { WINDOW = WINDOW_, ONES = false, R = WINDOW && !C::PACKED ? 2 : 4, stages = WINDOW ? 3 : 2 };
	typedef additive_held<C, R> held;
	const backward_call<T> &f;
	additive_stage<C, R> *x;
	int64_t row, at, scores; /* row 0 of the group: its token, the offset of its element 0, the index of its M */
	unsigned present, seen;  /* bits of rows that exist; of this lane's own, that the mask admits */
	int head, width;
	bool whole, speaks; /* heads are not cut into pieces; this piece writes the outputs per head */
	held a, near_share, far_share, q; /* P = near_share · near vector + far_share · far vector */
	float w[C::E], dw[C::E];
	typename C::row g[1 + WINDOW][R]; /* until D is known */

	__device__ __forceinline__ void start(const additive_place &p, int first, unsigned bits)
	{
		const int channel = p.head * f.cut.dh + p.chunk * ADDITIVE_CHUNK;
		row = (p.sequence + 1) * f.cut.length - 1 - first;
		at = row * f.cut.stride + channel;
		scores = row * f.cut.heads + p.head;
		head = p.head;
		width = f.cut.dh - p.chunk * ADDITIVE_CHUNK;
		whole = C::PACKED || !f.p;
		speaks = p.chunk == 0;
		present = bits;
		x = shared_memory<additive_stage<C, R>>(sizeof(additive_shared<C::WIDTH>)) + 1 + WINDOW;
	}
	/* Offset from row 0 to the row of a number; the far rows are one window later. */
	template <bool FAR> __device__ __forceinline__ int back(int r) const
	{
		return r - (FAR ? f.cut.window : 0);
	}
	/* Address of row r's M. */
	template <bool FAR> __device__ __forceinline__ int64_t score_at(int r) const
	{
		return scores - (int64_t)back<FAR>(r) * f.cut.heads;
	}
	template <bool FAR> __device__ __forceinline__ void fetch(additive_rows<C, R, ONES> &rows, unsigned bits)
	{
#pragma unroll
		for (int r = 0; r < R; r++) {
			const bool is = bits >> r & 1;
			const int64_t to = at - back<FAR>(r) * f.cut.stride;
			rows.stage->fetch(r, f.dg + to, width, is);
			g[FAR][r] = C::load(f.g + to, width, is && whole);
			if (!FAR)
				x->fetch(r, f.x + to, width, is && whole);
		}
#pragma unroll
		for (int i = 0; i < held::SLOTS; i++)
			rows.scores.slot[i] = bits >> held::row(i) & 1 ? f.log_normalizer[score_at<FAR>(held::row(i))] : -INFINITY;
		if (!FAR)
			seen = additive_seen<C, R>(f.mask ? f.mask + row : nullptr, -1, bits);
	}
	template <bool FAR> __device__ __forceinline__ void arrive(additive_rows<C, R, ONES> &rows, unsigned bits)
	{
		float part[R];
#pragma unroll
		for (int r = 0; r < R; r++)
			part[r] = C::dot(rows.stage->get(r), g[FAR][r]);
		rows.values = additive_sums<C>(part);
#pragma unroll
		for (int i = 0; i < held::SLOTS; i++) {
			const float m = rows.scores.slot[i];
			rows.scores.slot[i] = m == -INFINITY ? m : -m;
			if (!whole)
				rows.values.slot[i] = bits >> held::row(i) & 1 ? f.value[score_at<FAR>(held::row(i))] : 0;
		}
	}
	__device__ __forceinline__ void load_weight(void)
	{
		C::load_weight(w, f.w + head * f.cut.dh, whole ? width : 0);
	}
	__device__ __forceinline__ void ready(void)
	{
		load_weight();
		float part[R];
#pragma unroll
		for (int r = 0; r < R; r++)
			part[r] = C::dot(x->get(r), w);
		a = additive_sums<C>(part);
#pragma unroll
		for (int i = 0; i < held::SLOTS; i++) {
			const int r = held::row(i);
			a.slot[i] *= f.scale;
			if (!whole && present >> r & 1)
				a.slot[i] = f.score[score_at<false>(r)];
			a.slot[i] = seen >> r & 1 ? a.slot[i] : -INFINITY;
		}
	}
	/* Store P and Q of row r. */
	__device__ __forceinline__ void write(int r, const float (&p)[C::E], float own_q)
	{
		const bool is = present >> r & 1;
		const int64_t to = at - r * f.cut.stride;
		if (!whole) {
#pragma unroll
			for (int e = 0; e < C::E; e++)
				if (is && C::channel(e) < width)
					f.p[to + C::channel(e)] = p[e];
			if (is && speaks && C::lane() == 0)
				f.q[score_at<false>(r)] = own_q;
			return;
		}
		const typename C::row own = x->get(r);
		const float da = f.slope * (warp_sum<C::L>(C::dot(own, p)) - own_q);
		float dx[C::E];
#pragma unroll
		for (int e = 0; e < C::E; e++) {
			dx[e] = p[e] + da * w[e];
			dw[e] += da * C::at(own, e);
		}
		if (is && f.dx)
			C::store(f.dx + to, width, dx);
	}
	__device__ __forceinline__ void weigh(const additive_course<C, R> &near)
	{
		if (WINDOW)
			load_weight(); /* again, since the sums of two sides left no registers for it */
#pragma unroll
		for (int e = 0; e < C::E; e++)
			dw[e] = 0;
#pragma unroll
		for (int i = 0; i < held::SLOTS; i++) {
			near_share.slot[i] = additive_exp(a.slot[i] + near.top.slot[i]);
			q.slot[i] = near_share.slot[i] * near.sum.slot[i];
		}
	}
	__device__ __forceinline__ void weigh(const additive_course<C, R> &near, const additive_course<C, R> &far)
	{
		weigh(near);
#pragma unroll
		for (int i = 0; i < held::SLOTS; i++) {
			far_share.slot[i] = additive_exp(a.slot[i] + far.top.slot[i]);
			q.slot[i] += far_share.slot[i] * far.sum.slot[i];
		}
	}
	__device__ __forceinline__ void done(int r, const float (&near)[C::E])
	{
		const float mine = near_share.get(r);
		float p[C::E];
#pragma unroll
		for (int e = 0; e < C::E; e++)
			p[e] = mine * near[e];
		write(r, p, q.get(r));
	}
	__device__ __forceinline__ void done(int r, const float (&near)[C::E], const float (&far)[C::E])
	{
		const float mine = near_share.get(r), theirs = far_share.get(r);
		float p[C::E];
#pragma unroll
		for (int e = 0; e < C::E; e++)
			p[e] = mine * near[e] + theirs * far[e];
		write(r, p, q.get(r));
	}
	/* Store the tile's part of dw: sum lanes of a warp, then warps. */
	__device__ __forceinline__ void end_tile(void)
	{
		additive_shared<C::WIDTH> *s = shared_memory<additive_shared<C::WIDTH>>();
		float(*warps)[C::WIDTH] = s->near.vector;
		if (!f.parts || !whole)
			return; /* for the whole block */
#pragma unroll
		for (int e = 0; e < C::E; e++)
#pragma unroll
			for (int flip = C::L; flip < WARP; flip *= 2)
				dw[e] += __shfl_xor_sync(ALL_LANES, dw[e], flip);
		__syncthreads(); /* the board was read */
		if (threadIdx.x % WARP < C::L)
#pragma unroll
			for (int e = 0; e < C::E; e++)
				warps[threadIdx.x / WARP][C::channel(e)] = dw[e];
		__syncthreads();
		const int channel = threadIdx.x;
		if (channel >= C::WIDTH || channel >= width)
			return;
		float sum = 0;
		for (int v = 0; v < ADDITIVE_WARPS; v++)
			sum += warps[v][channel];
		const int64_t part = s->place.sequence * f.cut.count + s->place.t;
		f.parts[part * f.cut.stride + s->place.head * f.cut.dh + channel] = sum;
	}
};

/* As many blocks per processor as registers allow. */
template <class C, bool WINDOW> static constexpr int backward_blocks(void)
{
	if (!C::PACKED)
		return WINDOW ? 2 : 1;
	return WINDOW && sizeof(typename C::T) == 4 ? 2 : 3;
}

template <class C, bool WINDOW>
__global__ void __launch_bounds__(ADDITIVE_THREADS, (backward_blocks<C, WINDOW>()))
    backward_kernel(backward_call<typename C::T> f)
{
	backward<C, WINDOW> work = {f, nullptr, 0, 0, 0, 0, 0, 0, 0, false, false, {}, {}, {}, {}, {}, {}, {}};
	additive_march(f.cut, work);
}

/* --- heads in pieces ----------------------------------------------------------------------- */

/* a and D of every token and head, one warp each. */
template <class T> __global__ void __launch_bounds__(ADDITIVE_THREADS) dots_kernel(backward_call<T> f, int64_t rows)
{
	const int lane = threadIdx.x % WARP;
	for (int64_t i = grid_first() / WARP; i < rows * f.cut.heads; i += grid_stride() / WARP) {
		const int64_t to = i * f.cut.dh;
		const float *w = f.w + i % f.cut.heads * f.cut.dh;
		float score = 0, value = 0;
		for (int c = lane; c < f.cut.dh; c += WARP) {
			score += load_real(f.x + to + c) * w[c];
			value += load_real(f.dg + to + c) * load_real(f.g + to + c);
		}
		score = warp_sum(score);
		value = warp_sum(value);
		if (lane == 0) {
			f.score[i] = f.scale * score;
			f.value[i] = value;
		}
	}
}

static const int64_t TOKENS = 64; /* tokens per part of dw */

/* da, dx and parts of dw from P and Q: a block has TOKENS tokens of a head, a warp takes one token at a time. */
template <class T> __global__ void __launch_bounds__(ADDITIVE_THREADS) rest_kernel(backward_call<T> f, int64_t rows)
{
	float *da = shared_memory<float>(); /* [TOKENS] */
	const int lane = threadIdx.x % WARP, head = blockIdx.x % f.cut.heads;
	const int64_t first = (int64_t)(blockIdx.x / f.cut.heads) * TOKENS;
	const int64_t tokens = rows - first < TOKENS ? rows - first : TOKENS;
	const float *w = f.w + head * f.cut.dh;
	for (int64_t t = threadIdx.x / WARP; t < tokens; t += ADDITIVE_WARPS) {
		const int64_t to = (first + t) * f.cut.stride + head * f.cut.dh;
		float sum = 0;
		for (int c = lane; c < f.cut.dh; c += WARP)
			sum += load_real(f.x + to + c) * f.p[to + c];
		sum = f.slope * (warp_sum(sum) - f.q[(first + t) * f.cut.heads + head]);
		if (lane == 0)
			da[t] = sum;
		for (int c = lane; c < f.cut.dh && f.dx; c += WARP)
			store_real(f.dx + to + c, f.p[to + c] + sum * w[c]);
	}
	__syncthreads();
	for (int c = threadIdx.x; c < f.cut.dh && f.parts; c += ADDITIVE_THREADS) {
		float sum = 0;
		for (int64_t t = 0; t < tokens; t++)
			sum += da[t] * load_real(f.x + (first + t) * f.cut.stride + head * f.cut.dh + c);
		f.parts[(int64_t)(blockIdx.x / f.cut.heads) * f.cut.stride + head * f.cut.dh + c] = sum;
	}
}

/* --- dw -------------------------------------------------------------------------------------- */

enum { FEW = 256, STRIDE = 128 };

/* Row i of the first STRIDE parts becomes the sum of rows i, i + STRIDE, … */
__global__ void __launch_bounds__(ADDITIVE_THREADS) fewer_parts_kernel(float *parts, int64_t n, int64_t width)
{
	for (int64_t i = grid_first(); i < STRIDE * width; i += grid_stride()) {
		float sum = 0;
#pragma unroll 8
		for (int64_t at = i; at < n * width; at += STRIDE * width)
			sum += parts[at];
		parts[i] = sum;
	}
}

static status add_parts(backend *b, float *dw, float *parts, int64_t n, int64_t width)
{
	if (n > FEW) {
		TRY(cuda_launch(b, fewer_parts_kernel, cuda_blocks(b, STRIDE * width, ADDITIVE_THREADS),
		                ADDITIVE_THREADS, 0, parts, n, width));
		n = STRIDE;
	}
	return cuda_sum_parts(b, &dw, 1, parts, n, width, 1);
}

/* --- a call -------------------------------------------------------------------------------------- */

/* The call with its memory, allocated from the scratch; *bytes: size of that memory. */
template <class C>
static backward_call<typename C::T> backward_memory(const op_call *call, size_t *bytes, int64_t *n_parts)
{
	backward_call<typename C::T> f = {};
	const int64_t rows = shape_rows(call->in[0].shape), d = shape_last(call->in[0].shape);
	char *memory = (char *)call->scratch;
	auto take = [&](int64_t floats) {
		float *taken = (float *)(call->scratch ? memory + *bytes : nullptr);
		*bytes += ((size_t)floats * sizeof(float) + 63) / 64 * 64;
		return taken;
	};
	f.cut = additive_cut_of(call, C::GROUPS * backward<C, false>::R, 4);
	if (!f.cut.global)
		f.cut = additive_cut_of(call, C::GROUPS * backward<C, true>::R, 4);
	*bytes = 0;
	*n_parts = f.cut.chunks > 1 ? additive_parts(rows, TOKENS) : f.cut.batch * f.cut.count;
	if (call->out[1].data)
		f.parts = take(*n_parts * d);
	if (f.cut.chunks > 1) {
		f.score = take(rows * f.cut.heads);
		f.value = take(rows * f.cut.heads);
		f.q = take(rows * f.cut.heads);
		f.p = take(rows * d);
	}
	return f;
}

size_t cuda_additive_attention_grad_scratch(const backend *, const op_call *call)
{
	size_t bytes = 0;
	const additive_attention_params *p = (const additive_attention_params *)call->params;
	(void)additive_by_lanes(call->in[0].type, shape_last(call->in[0].shape) / p->heads, [&](auto *lanes) {
		int64_t n;
		(void)backward_memory<std::remove_pointer_t<decltype(lanes)>>(call, &bytes, &n);
		return STATUS_OK;
	});
	return bytes;
}

template <class C> static status backward_run(backend *b, const op_call *call)
{
	typedef typename C::T T;
	size_t bytes;
	int64_t n;
	const int64_t rows = shape_rows(call->in[0].shape), d = shape_last(call->in[0].shape);
	float *dw = (float *)call->out[1].data;
	backward_call<T> f = backward_memory<C>(call, &bytes, &n);
	f.x = (const T *)call->in[0].data;
	f.w = (const float *)call->in[1].data;
	f.mask = (const int32_t *)call->in[2].data;
	f.g = (const T *)call->in[3].data;
	f.log_normalizer = (const float *)call->in[4].data;
	f.dg = (const T *)call->in[5].data;
	f.dx = (T *)call->out[0].data;
	f.scale = 1 / sqrtf((float)f.cut.dh);
	f.slope = ((const additive_attention_params *)call->params)->frozen ? 0 : f.scale;
	if (rows == 0)
		return dw ? cuda_sum_parts(b, &dw, 1, nullptr, 0, d, 1) : STATUS_OK;
	const bool pieces = f.cut.chunks > 1;
	if (pieces)
		TRY(cuda_launch(b, dots_kernel<T>, cuda_blocks(b, rows * f.cut.heads, ADDITIVE_WARPS),
		                ADDITIVE_THREADS, 0, f, rows));
	TRY(additive_prepare(b, &f.cut, C::WIDTH));
	const unsigned blocks = cuda_extent(additive_chains(&f.cut) * f.cut.count);
	if (f.cut.global)
		TRY(cuda_launch(b, backward_kernel<C, false>, blocks, ADDITIVE_THREADS,
		                additive_shared_bytes<backward<C, false>>(), f));
	else
		TRY(cuda_launch(b, backward_kernel<C, true>, blocks, ADDITIVE_THREADS,
		                additive_shared_bytes<backward<C, true>>(), f));
	if (pieces)
		TRY(cuda_launch(b, rest_kernel<T>, cuda_extent(additive_parts(rows, TOKENS) * f.cut.heads),
		                ADDITIVE_THREADS, TOKENS * sizeof(float), f, rows));
	return dw ? add_parts(b, dw, f.parts, n, d) : STATUS_OK;
}

status cuda_additive_attention_grad(backend *b, const op_call *call)
{
	const additive_attention_params *p = (const additive_attention_params *)call->params;
	return additive_by_lanes(call->in[0].type, shape_last(call->in[0].shape) / p->heads, [&](auto *lanes) {
		return backward_run<std::remove_pointer_t<decltype(lanes)>>(b, call);
	});
}
