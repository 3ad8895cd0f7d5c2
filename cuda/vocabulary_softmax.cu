/* linear_cross_entropy for bf16 with at most 128 channels: no logit is ever written. Over 600 lines, since it is one
 * kernel with four walks (loss, loss and hits, and the gradients of x and of the weights).
 *
 * Both gradients are a softmax times a matrix, as in attention with one head (Dao et al. 2022), where keys and values
 * are the same rows. With c = alpha log2 e, z = h Eᵀ + b (before alpha), l the label of row i, ε the smoothing and p_ij
 * = 2^{c z_ij - level_i}, level_i = c top_i + log2 Σ_j 2^{c (z_ij - top_i)}:
 *
 *    LOSS    (top, total)_i of a part of the vocabulary                                       2 V D FLOP per row
 *    HITS    as LOSS, and the first j of the largest z_ij
 *    HIDDEN  as LOSS, and o_i = Σ_{j ≠ l} 2^{c (z_ij - top_i)} E_j                           4 V D
 *    rows    loss, level and dh_i = (alpha / count) (o_i / total_i + (p_il - 1 + ε) E_l - (ε / V) Σ_j E_j)
 *    WEIGHT  dE_j = (alpha / count) Σ_i dz_ij h_i, db_j likewise without h_i,                  4 V D
 *            dz_ij = p_ij - (1 - ε) [j = l] - ε / V
 *
 * LOSS, HITS, HIDDEN and WEIGHT are one kernel. A block keeps 128 rows of x in shared memory and walks over the rows of
 * y, 64 at a time, while the next are being copied. x is the hidden rows and y the vocabulary; in WEIGHT the other way
 * round. Each of its four warps has 32 rows of x. z and the result stay in registers, and z's registers, as bf16, are
 * the operand of the second product. Only 2^{…} and dz are rounded to bf16, never a logit, so losses are exact to f32.
 *
 * The label's column is left out of o and added in f32; otherwise dh of a confident prediction would be rounding alone.
 * The label's logit, and with smoothing the mean of a row's logits, are separate dot products. So the walk needs labels
 * only where a tile has the label of one of a warp's rows, which is rare.
 *
 * top moves only when a power would be above 2^8, so that o is seldom rescaled. The division of sums among blocks
 * depends on the shapes and the device alone: parts of y (so that blocks fill the device) are added in order.
 *
 * Per row, for large V D: 8 V D FLOP (LOSS alone 2 V D) and two exponentials per logit. The L2 cache delivers E once
 * per 128 rows and h once per 128 words, 2 · 2 V D / 128 bytes. Written logits would cost 20 V bytes and 6 V D FLOP:
 * better from about 200 channels on, where registers run out too. */
#include "cuda/vocabulary_softmax.h"

#include "cuda/softmax_attention.cuh"

enum {
	TILE = ATTENTION_TILE,                    /* rows of y at a time */
	OWN = 128,                                /* rows of x per block */
	HEIGHT = OWN / (MMA_THREADS / WARP) / 16, /* groups of sixteen rows per warp */
	STAGES = 3,
	BLOCKS = 2, /* per processor */
	MOST_CHANNELS = MMA_WIDTH,
	SLACK = 8, /* 2^{…} may be 2^SLACK before top moves */
	EDGE = 4,  /* tiles that a block could process in the time of its start and end */
	MOST_PARTS = 512,
	ROW_THREADS = 256,
	COLUMN_THREADS = 160, /* more than MOST_CHANNELS */
	COLUMN_BLOCKS = 128,
#ifdef __CUDACC__
	GROUP_ROWS = 1 << 17, /* most rows that one sum in registers adds */
	PART_BYTES = 64 << 20,
#else
	GROUP_ROWS = 256,
	PART_BYTES = 256 << 10,
#endif
};
/* Bias of a missing word, whose 2^{…} is 0. Finite, so that an accumulator may hold it. */
#define NO_WORD (-1e30f)

enum walk { LOSS, HITS, HIDDEN, WEIGHT };

/* --- one walk ------------------------------------------------------------------------------------- */

struct vocabulary_walk {
	const bf16 *x, *y; /* [x_rows, d], [y_rows, d] */
	int x_rows, y_rows, d;
	int part;             /* rows of y per block: a multiple of TILE */
	float scale;          /* c */
	const float *bias;    /* b, with NO_WORD up to a multiple of OWN */
	const int32_t *label; /* by hidden row; WEIGHT: -1 if a row does not count, and as padding to whole tiles */
	const float *level;   /* WEIGHT: by hidden row, infinity likewise */
	float hit, even;      /* WEIGHT: 1 - ε, ε / V */
	float alpha;          /* WEIGHT: results are multiplied by alpha / count … */
	const loss_tally *all;
	bool add;         /* … and added to the output */
	float *product;   /* [parts, x_rows, d] */
	float *top, *sum; /* [parts, x_rows]; WEIGHT: no top, sum is db; any of the three may be NULL there */
	best_class *best; /* [parts, x_rows]: HITS */
};

/* The part of y in shared memory. */
template <int W> struct stage {
	bf16 y[TILE * W];
	float number[TILE];  /* bias; WEIGHT: level */
	int32_t label[TILE]; /* WEIGHT */
};

/* Shared memory of a block. */
template <int W> struct space {
	bf16 x[OWN * W];
	stage<W> stages[STAGES];
	float bias[OWN]; /* WEIGHT */
};

/* Copy 16 bytes at a time: d is a multiple of 8, and `& ~7` tells the compiler. */
template <int W>
__device__ __forceinline__ void load_rows(bf16 *tile, int rows, const bf16 *from, int first, int past, int d)
{
	mma_load<W>(tile, rows, from + (int64_t)first * d, d, past - first, d & ~7);
}

/* Load rows of y from `first` on. */
template <int W, walk P> __device__ __forceinline__ void fetch(const vocabulary_walk &v, stage<W> *to, int first)
{
	const int i = threadIdx.x % (TILE / 4) * 4;
	load_rows<W>(to->y, TILE, v.y, first, v.y_rows, v.d);
	if (threadIdx.x < TILE / 4)
		copy_async(to->number + i, (P == WEIGHT ? v.level : v.bias) + first + i);
	else if (P == WEIGHT && threadIdx.x < 2 * (TILE / 4))
		copy_async(to->label + i, v.label + first + i);
}

/* A warp's 32 rows of x; a lane has two in each half of 16. */
template <int W, walk P> struct own_rows {
	enum { PRODUCT = P == HIDDEN || P == WEIGHT, COLUMNS = PRODUCT ? W / 8 : 1 };
	const bf16 *x; /* the block's tile */
	int row;       /* the warp's first row in it */
	int first;     /* index of that row */
	int label;     /* for row `lane`; not WEIGHT */
	float out[HEIGHT][COLUMNS][4];
	float top[HEIGHT][2];       /* not WEIGHT */
	float sum[HEIGHT][2];       /* for this lane's columns */
	best_class best[HEIGHT][2]; /* likewise; HITS */
};

typedef float logits[HEIGHT][TILE / 8][4];

/* z = x yᵀ + b. */
template <int W, walk P> __device__ __forceinline__ void score(logits &z, const own_rows<W, P> &own, const stage<W> *s)
{
	const int lane = threadIdx.x % WARP;
	const float *bias =
	    P == WEIGHT ? shared_memory<space<W>>()->bias + own.row + lane / 4 : s->number + 2 * (lane % 4);
#pragma unroll
	for (int m = 0; m < HEIGHT; m++)
#pragma unroll
		for (int n = 0; n < TILE / 8; n++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				z[m][n][i] = bias[P == WEIGHT ? 16 * m + 8 * (i / 2) : 8 * n + i % 2];
#pragma unroll(P == HIDDEN ? W / 16 : 4) /* the form with the fewest registers */
	for (int k = 0; k < W; k += 16) {
		unsigned a[HEIGHT][4];
#pragma unroll
		for (int m = 0; m < HEIGHT; m++)
			mma_a<W>(a[m], own.x, own.row + 16 * m, k);
#pragma unroll
		for (int n = 0; n < TILE / 8; n += 2) {
			unsigned b[4];
			mma_b<W>(b, s->y, 8 * n, k);
#pragma unroll
			for (int m = 0; m < HEIGHT; m++) {
				mma_bf16(z[m][n], a[m], b);
				mma_bf16(z[m][n + 1], a[m], b + 2);
			}
		}
	}
}

/* Raise top where a logit is far above it. */
template <int W, walk P> __device__ __forceinline__ void raise(own_rows<W, P> &own, const logits &z, float scale)
{
	float best[HEIGHT][2];
	bool far = false;
#pragma unroll
	for (int m = 0; m < HEIGHT; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			float x = z[m][0][2 * half];
#pragma unroll
			for (int n = 0; n < TILE / 8; n++)
				x = fmaxf(x, fmaxf(z[m][n][2 * half], z[m][n][2 * half + 1]));
			best[m][half] = warp_max<4>(x);
			far |= scale * (best[m][half] - own.top[m][half]) > (float)SLACK;
		}
	if (!__any_sync(ALL_LANES, far))
		return;
#pragma unroll
	for (int m = 0; m < HEIGHT; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const float risen = fmaxf(own.top[m][half], best[m][half]);
			const float fade = exp2_approx(scale * (own.top[m][half] - risen));
			own.top[m][half] = risen;
			own.sum[m][half] *= fade;
#pragma unroll
			for (int n = 0; n < own_rows<W, P>::COLUMNS; n++) {
				own.out[m][n][2 * half] *= fade;
				own.out[m][n][2 * half + 1] *= fade;
			}
		}
}

/* HITS: update the largest of this lane's columns. first: word of the tile. */
template <int W> __device__ __forceinline__ void find_best(own_rows<W, HITS> &own, const logits &z, int first)
{
	const int column = first + threadIdx.x % 4 * 2;
#pragma unroll
	for (int m = 0; m < HEIGHT; m++)
#pragma unroll
		for (int half = 0; half < 2; half++)
#pragma unroll
			for (int n = 0; n < TILE / 8; n++)
#pragma unroll
				for (int i = 0; i < 2; i++)
					if (z[m][n][2 * half + i] > own.best[m][half].z)
						own.best[m][half] = {z[m][n][2 * half + i], column + 8 * n + i};
}

/* HIDDEN: leave out the column of a row's label if it is in this tile. first: word of the tile. */
template <int W> __device__ __forceinline__ void leave_label_out(logits &z, const own_rows<W, HIDDEN> &own, int first)
{
	const int lane = threadIdx.x % WARP, mine = own.label - first;
	if (!__any_sync(ALL_LANES, (unsigned)mine < TILE))
		return;
#pragma unroll
	for (int m = 0; m < HEIGHT; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int label = __shfl_sync(ALL_LANES, mine, 16 * m + 8 * half + lane / 4);
#pragma unroll
			for (int n = 0; n < TILE / 8; n++)
#pragma unroll
				for (int i = 0; i < 2; i++)
					if (label == 8 * n + 2 * (lane % 4) + i)
						z[m][n][2 * half + i] = 0.0f;
		}
}

/* WEIGHT: subtract the targets, which completes dz. */
template <int W>
__device__ __forceinline__ void subtract_targets(logits &p, const own_rows<W, WEIGHT> &own, const stage<W> *s,
                                                 float hit, float even)
{
	const int lane = threadIdx.x % WARP;
	const bool mine = (unsigned)(s->label[lane] - own.first) < 16 * HEIGHT ||
	                  (unsigned)(s->label[lane + WARP] - own.first) < 16 * HEIGHT;
	if (!__any_sync(ALL_LANES, mine) && even == 0.0f)
		return;
#pragma unroll
	for (int n = 0; n < TILE / 8; n++)
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const int label = s->label[8 * n + 2 * (lane % 4) + i];
			const int row = label - own.first - lane / 4;
#pragma unroll
			for (int j = 0; j < 2 * HEIGHT; j++)
				p[j / 2][n][j % 2 * 2 + i] -= (row == 8 * j ? hit : 0.0f) + (label < 0 ? 0.0f : even);
		}
}

/* One tile of y, whose first row is `first`. */
template <int W, walk P>
__device__ __forceinline__ void tile_of(own_rows<W, P> &own, const vocabulary_walk &v, const stage<W> *s, int first)
{
	const int lane = threadIdx.x % WARP;
	logits z;
	score<W, P>(z, own, s);
	if constexpr (P != WEIGHT)
		raise<W, P>(own, z, v.scale);
	if constexpr (P == HITS)
		find_best<W>(own, z, first);
#pragma unroll
	for (int n = 0; n < TILE / 8; n++) {
		const float2 level = P == WEIGHT ? *(const float2 *)(s->number + 8 * n + 2 * (lane % 4)) : float2{};
#pragma unroll
		for (int i = 0; i < 4 * HEIGHT; i++) {
			const float down = P != WEIGHT ? v.scale * own.top[i / 4][i % 4 / 2]
			                   : i % 2     ? level.y
			                               : level.x;
			z[i / 4][n][i % 4] = exp2_approx(fmaf(v.scale, z[i / 4][n][i % 4], -down));
		}
	}
	if constexpr (P == WEIGHT)
		subtract_targets<W>(z, own, s, v.hit, v.even);
#pragma unroll
	for (int i = 0; i < 2 * HEIGHT; i++) {
		float sum = 0.0f;
#pragma unroll
		for (int n = 0; n < TILE / 8; n++)
			sum += z[i / 2][n][i % 2 * 2] + z[i / 2][n][i % 2 * 2 + 1];
		own.sum[i / 2][i % 2] += sum;
	}
	if constexpr (P == HIDDEN)
		leave_label_out<W>(z, own, first);
	if constexpr (own_rows<W, P>::PRODUCT) {
#pragma unroll
		for (int n = 0; n < TILE / 16; n++) {
			unsigned p[HEIGHT][4];
#pragma unroll
			for (int m = 0; m < HEIGHT; m++)
				mma_narrow(p[m], z[m][2 * n], z[m][2 * n + 1]);
			mma_accumulate<W, HEIGHT>(own.out, p, s->y, 16 * n);
		}
	}
}

__device__ __forceinline__ void put(float *at, float x, bool add)
{
	*at = x + (add ? *at : 0.0f);
}

template <int W, walk P>
__device__ __forceinline__ void finish_walk(const own_rows<W, P> &own, const vocabulary_walk &v)
{
	const int lane = threadIdx.x % WARP;
	const float factor = P != WEIGHT ? 1.0f : v.all->count ? v.alpha / (float)v.all->count : 0.0f;
#pragma unroll
	for (int m = 0; m < HEIGHT; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int row = own.first + 16 * m + 8 * half + lane / 4;
			const float sum = warp_sum<4>(own.sum[m][half]);
			const int64_t at = (int64_t)blockIdx.y * v.x_rows + row;
			best_class best = own.best[m][half];
			for (int mask = 1; P == HITS && mask < 4; mask *= 2)
				best = better(best, {__shfl_xor_sync(ALL_LANES, best.z, mask),
				                     __shfl_xor_sync(ALL_LANES, best.at, mask)});
			if (row >= v.x_rows)
				continue;
			if (lane % 4 == 0 && v.sum)
				put(v.sum + at, factor * sum, v.add);
			if (P != WEIGHT && lane % 4 == 0)
				v.top[at] = own.top[m][half];
			if (P == HITS && lane % 4 == 0)
				v.best[at] = best;
			if (!own_rows<W, P>::PRODUCT || !v.product)
				continue;
			float *to = v.product + at * v.d;
#pragma unroll
			for (int n = 0; n < own_rows<W, P>::COLUMNS; n++) {
				const int column = 8 * n + lane % 4 * 2;
				if (column >= v.d)
					continue;
				float2 *two = (float2 *)(to + column), old = v.add ? *two : float2{};
				*two = make_float2(old.x + factor * own.out[m][n][2 * half],
				                   old.y + factor * own.out[m][n][2 * half + 1]);
			}
		}
}

/* Block: rows of x from blockIdx.x · OWN, part blockIdx.y of y. */
template <int W, walk P> __global__ void __launch_bounds__(MMA_THREADS, BLOCKS) vocabulary_kernel(vocabulary_walk v)
{
	space<W> *shared = shared_memory<space<W>>();
	stage<W> *stages = shared->stages;
	const int first = (int)blockIdx.x * OWN, begin = (int)blockIdx.y * v.part;
	const int end = min(begin + v.part, v.y_rows);
	own_rows<W, P> own = {};
	own.x = shared->x;
	own.row = (int)threadIdx.x / WARP * 16 * HEIGHT;
	own.first = first + own.row;
	const int lane = threadIdx.x % WARP;
	if (P == WEIGHT)
		shared->bias[threadIdx.x] = v.bias[first + threadIdx.x];
	else
		own.label = own.first + lane < v.x_rows ? v.label[own.first + lane] : -1;
#pragma unroll
	for (int i = 0; i < 2 * HEIGHT; i++) {
		own.top[i / 2][i % 2] = -INFINITY;
		own.best[i / 2][i % 2] = {-INFINITY, INT32_MAX};
	}
	load_rows<W>(shared->x, OWN, v.x, first, v.x_rows, v.d);
#pragma unroll
	for (int i = 0; i < STAGES - 1; i++) {
		if (begin + i * TILE < end)
			fetch<W, P>(v, stages + i, begin + i * TILE);
		copy_commit();
	}
	for (int at = begin, turn = 0; at < end; at += TILE) {
		const int next = at + (STAGES - 1) * TILE;
		copy_wait<STAGES - 2>();
		__syncthreads(); /* the tile has arrived, and all threads have left the previous one */
		if (next < end)
			fetch<W, P>(v, stages + (turn + STAGES - 1) % STAGES, next);
		copy_commit();
		tile_of<W, P>(own, v, stages + turn, at);
		turn = (turn + 1) % STAGES;
	}
	finish_walk<W, P>(own, v);
}

/* --- rows ----------------------------------------------------------------------------------------- */

struct finished_rows {
	const bf16 *hidden, *weight;
	const float *bias;  /* [classes …] */
	const float *means; /* with smoothing: Σ_j E_j [d], Σ_j b_j */
	const int32_t *label;
	int64_t rows, classes;
	int d, parts;
	float alpha, smoothing;
	const float *product, *top, *sum; /* from HIDDEN; product may be NULL */
	const best_class *best;           /* from HITS, or NULL */
	const loss_tally *all;
	float *loss, *hit;  /* hit: with best */
	bf16 *dhidden;      /* may be NULL */
	float *level;       /* for WEIGHT, [padded]; may be NULL */
	int32_t *own_label; /* likewise */
	int64_t padded;
};

enum { EACH = MOST_CHANNELS / WARP }; /* neighbouring channels per lane */

__device__ __forceinline__ void load_channels(float (&x)[EACH], const bf16 *row, int column, int d)
{
	const uint2 w = column < d ? *(const uint2 *)(row + column) : uint2{};
	x[0] = __uint_as_float(w.x << 16), x[1] = __uint_as_float(w.x & 0xffff0000u);
	x[2] = __uint_as_float(w.y << 16), x[3] = __uint_as_float(w.y & 0xffff0000u);
}

__device__ __forceinline__ void load_channels(float (&x)[EACH], const float *row, int column, int d)
{
	const float4 w = column < d ? *(const float4 *)(row + column) : float4{};
	x[0] = w.x, x[1] = w.y, x[2] = w.z, x[3] = w.w;
}

/* All parts of a row merged: top, total, and o of this lane's channels. */
struct row_softmax {
	float top, total, o[EACH];
};

__device__ __forceinline__ row_softmax gather_parts(const finished_rows &f, int64_t row, int column)
{
	const float scale = f.alpha * LOG2_E;
	row_softmax s = {-INFINITY, 0.0f, {}};
	for (int i = 0; i < f.parts; i++)
		s.top = fmaxf(s.top, f.top[i * f.rows + row]);
	for (int i = 0; i < f.parts; i++) {
		const float fade = exp2_approx(scale * (f.top[i * f.rows + row] - s.top));
		float o[EACH];
		s.total += fade * f.sum[i * f.rows + row];
		if (!f.product)
			continue;
		load_channels(o, f.product + (i * f.rows + row) * f.d, column, f.d);
#pragma unroll
		for (int e = 0; e < EACH; e++)
			s.o[e] += fade * o[e];
	}
	return s;
}

__device__ __forceinline__ bool is_hit(const finished_rows &f, int64_t row, int label)
{
	best_class best = f.best[row];
	for (int i = 1; i < f.parts; i++)
		best = better(best, f.best[i * f.rows + row]);
	return best.at == label;
}

/* A warp per row. */
__global__ void __launch_bounds__(ROW_THREADS) finish_rows_kernel(finished_rows f)
{
	const int64_t row = ((int64_t)blockIdx.x * ROW_THREADS + threadIdx.x) / WARP;
	const int lane = threadIdx.x % WARP, column = EACH * lane;
	if (row >= f.padded)
		return;
	const int32_t label = row < f.rows ? f.label[row] : -1;
	const bool counted = label >= 0 && label < f.classes;
	float level = INFINITY, d[EACH] = {};
	if (counted) {
		const float scale = f.alpha * LOG2_E, even = f.smoothing / (float)f.classes;
		const row_softmax s = gather_parts(f, row, column);
		float h[EACH], e[EACH], mean[EACH] = {}, own = 0.0f, all = 0.0f;
		load_channels(h, f.hidden + row * f.d, column, f.d);
		load_channels(e, f.weight + label * (int64_t)f.d, column, f.d);
		if (f.smoothing != 0.0f)
			load_channels(mean, f.means, column, f.d);
#pragma unroll
		for (int i = 0; i < EACH; i++) {
			own += h[i] * e[i];
			all += h[i] * mean[i];
		}
		own = warp_sum(own) + f.bias[label];
		const float above = f.smoothing != 0.0f
		                        ? f.smoothing * (s.top - (warp_sum(all) + f.means[f.d]) / (float)f.classes)
		                        : 0.0f;
		const float rest = 1.0f - f.smoothing, p = exp2_approx(scale * (own - s.top)) / s.total;
		level = fmaf(scale, s.top, log2f(s.total));
		if (lane == 0)
			f.loss[row] = logf(s.total) + f.alpha * (rest * (s.top - own) + above);
#pragma unroll
		for (int i = 0; i < EACH; i++)
			d[i] = f.alpha / (float)f.all->count * (s.o[i] / s.total + (p - rest) * e[i] - even * mean[i]);
	}
	if (f.dhidden && row < f.rows && column < f.d)
		*(uint2 *)(f.dhidden + row * f.d + column) = make_uint2(two_bf16(d[0], d[1]), two_bf16(d[2], d[3]));
	if (f.best && row < f.rows && lane == 0)
		f.hit[row] = counted && is_hit(f, row, label) ? 1.0f : 0.0f;
	if (f.level && lane == 0) {
		f.level[row] = level;
		f.own_label[row] = counted ? label : -1;
	}
}

/* --- the vocabulary -------------------------------------------------------------------------------- */

/* to = bias, and the padding after it. */
__global__ void pad_bias_kernel(float *to, const float *bias, int64_t classes, int64_t padded)
{
	for (int64_t j = grid_first(); j < padded; j += grid_stride())
		to[j] = j >= classes ? NO_WORD : bias ? bias[j] : 0.0f;
}

/* part [blocks, d + 1]: Σ_j E_j and Σ_j b_j of the block's words. */
__global__ void __launch_bounds__(COLUMN_THREADS)
    sum_words_kernel(float *part, const bf16 *weight, const float *bias, int64_t classes, int d, int64_t each)
{
	const int64_t first = blockIdx.x * each, end = min(first + each, classes);
	const int c = (int)threadIdx.x;
	float sum = 0.0f;
	if (c > d)
		return;
	for (int64_t j = first; j < end; j++)
		sum += c < d ? load_real(weight + j * d + c) : bias[j];
	part[(int64_t)blockIdx.x * (d + 1) + c] = sum;
}

/* --- division of the work -------------------------------------------------------------------------------- */

/* Division of a walk: chunks of x, or groups of y, and parts of y. */
struct walk_plan {
	int64_t rows;  /* rows of x at a time */
	int64_t parts; /* parts of y */
	int64_t part;  /* rows of a part, a multiple of TILE */
};

static int64_t round_up(int64_t n, int64_t to)
{
	return parts_of(n, to) * to;
}

/* Divide y into parts so that blocks fill the device: the least time, in tiles, and among equals the fewest parts. */
static walk_plan plan_walk(const backend *b, int64_t x_rows, int64_t y_rows, int64_t d)
{
	const int64_t blocks = parts_of(x_rows, OWN), tiles = parts_of(y_rows, TILE);
	const int64_t slots = (int64_t)BLOCKS * cuda_of(b)->processors;
	const int64_t fit = PART_BYTES / (x_rows * (d + 2) * (int64_t)sizeof(float));
	walk_plan best = {x_rows, 1, tiles * TILE};
	int64_t shortest = parts_of(blocks, slots) * (tiles + EDGE);
	for (int64_t parts = 2; parts <= MOST_PARTS && parts <= tiles && parts <= fit; parts++) {
		const int64_t each = parts_of(tiles, parts), made = parts_of(tiles, each);
		const int64_t time = parts_of(blocks * made, slots) * (each + EDGE);
		if (time < shortest)
			shortest = time, best = {x_rows, made, each * TILE};
	}
	return best;
}

struct vocabulary_layout {
	int64_t rows, classes, d, level_rows;
	bool dhidden, dweight, smooth;
	walk_plan hidden, last_hidden; /* a chunk of hidden rows, and the last chunk */
	walk_plan weight, last_weight; /* a group of hidden rows, and the last group */
	int64_t group;
	size_t bias, means, word_parts, level, label, product, top, sum, best, part, bytes;
};

static vocabulary_layout layout_of(const backend *b, const op_call *call)
{
	vocabulary_layout l = {};
	l.rows = shape_rows(call->in[0].shape);
	l.classes = call->in[1].shape.dim[0], l.d = call->in[1].shape.dim[1];
	l.dhidden = call->out[2].data;
	l.dweight = call->out[3].data || call->out[4].data;
	l.smooth = ((const linear_cross_entropy_params *)call->params)->smoothing != 0.0f;
	/* A chunk has as many hidden rows as fill the device once, so that its results stay in the L2 cache. */
	const int64_t most = (int64_t)BLOCKS * cuda_of(b)->processors * OWN;
	const int64_t chunk = least(l.rows, round_up(parts_of(l.rows, parts_of(l.rows, most)), OWN));
	l.hidden = plan_walk(b, chunk, l.classes, l.d);
	l.last_hidden = plan_walk(b, l.rows - (parts_of(l.rows, chunk) - 1) * chunk, l.classes, l.d);
	l.group = least(l.rows, GROUP_ROWS);
	l.weight = plan_walk(b, l.classes, l.group, l.d);
	l.last_weight = plan_walk(b, l.classes, l.rows - (parts_of(l.rows, l.group) - 1) * l.group, l.d);
	l.level_rows = round_up(l.rows, TILE);
	l.bias = loss_scratch(&l.bytes, round_up(l.classes, OWN), sizeof(float));
	l.means = loss_scratch(&l.bytes, l.smooth ? l.d + 1 : 0, sizeof(float));
	l.word_parts = loss_scratch(&l.bytes, l.smooth ? COLUMN_BLOCKS * (l.d + 1) : 0, sizeof(float));
	l.level = loss_scratch(&l.bytes, l.dweight ? l.level_rows : 0, sizeof(float));
	l.label = loss_scratch(&l.bytes, l.dweight ? l.level_rows : 0, sizeof(int32_t));
	/* Both walks leave their parts in the same place, one after the other. */
	const auto elements = [](const walk_plan &p) { return p.parts * p.rows; };
	int64_t hidden = elements(l.hidden), last = elements(l.last_hidden);
	hidden = hidden > last ? hidden : last;
	size_t before = l.bytes;
	l.top = loss_scratch(&l.bytes, hidden, sizeof(float));
	l.sum = loss_scratch(&l.bytes, hidden, sizeof(float));
	l.best = loss_scratch(&l.bytes, call->out[5].data ? hidden : 0, sizeof(best_class));
	l.product = loss_scratch(&l.bytes, l.dhidden ? hidden * l.d : 0, sizeof(float));
	if (!l.dweight)
		return l;
	int64_t weight = l.weight.parts > 1 ? elements(l.weight) : 0;
	last = l.last_weight.parts > 1 ? elements(l.last_weight) : 0;
	weight = weight > last ? weight : last;
	l.part = loss_scratch(&before, weight * (l.d + 1), sizeof(float));
	l.bytes = before > l.bytes ? before : l.bytes;
	return l;
}

/* --- launches --------------------------------------------------------------------------------------- */

template <walk P> static status launch_walk(backend *b, const vocabulary_walk &v, int64_t parts)
{
	const dim3 grid(cuda_parts(v.x_rows, OWN), cuda_extent(parts));
	if (v.d <= 64)
		return cuda_launch(b, vocabulary_kernel<64, P>, grid, MMA_THREADS, sizeof(space<64>), v);
	return cuda_launch(b, vocabulary_kernel<MOST_CHANNELS, P>, grid, MMA_THREADS, sizeof(space<MOST_CHANNELS>), v);
}

static status issue_words(backend *b, const op_call *call, const vocabulary_layout &l, char *scratch)
{
	const float *bias = (const float *)call->in[2].data;
	const int64_t padded = round_up(l.classes, OWN), each = parts_of(l.classes, COLUMN_BLOCKS);
	float *part = (float *)(scratch + l.word_parts);
	TRY(cuda_launch(b, pad_bias_kernel, cuda_blocks(b, padded, ROW_THREADS), ROW_THREADS, 0,
	                (float *)(scratch + l.bias), bias, l.classes, padded));
	if (!l.smooth)
		return STATUS_OK;
	const int64_t blocks = parts_of(l.classes, each);
	TRY(cuda_launch(b, sum_words_kernel, cuda_extent(blocks), COLUMN_THREADS, 0, part, (const bf16 *)call->in[1].data,
	                (const float *)(scratch + l.bias), l.classes, (int)l.d, each));
	return cuda_loss_sum_parts(b, (float *)(scratch + l.means), part, blocks, l.d + 1, 1.0f, true);
}

/* Compute losses, hits, levels and dhidden of a chunk. */
static status issue_chunk(backend *b, const op_call *call, const vocabulary_layout &l, char *scratch,
                          const loss_tally *all, float *loss, int64_t first)
{
	const linear_cross_entropy_params *p = (const linear_cross_entropy_params *)call->params;
	const bool last = first + l.hidden.rows >= l.rows;
	const walk_plan &plan = last ? l.last_hidden : l.hidden;
	float *hit = (float *)call->out[5].data;
	vocabulary_walk v = {};
	v.x = (const bf16 *)call->in[0].data + first * l.d, v.y = (const bf16 *)call->in[1].data;
	v.x_rows = (int)plan.rows, v.y_rows = (int)l.classes, v.d = (int)l.d;
	v.part = (int)plan.part;
	v.scale = p->alpha * LOG2_E;
	v.bias = (const float *)(scratch + l.bias);
	v.label = (const int32_t *)call->in[3].data + first;
	v.product = (float *)(scratch + l.product);
	v.top = (float *)(scratch + l.top), v.sum = (float *)(scratch + l.sum);
	v.best = (best_class *)(scratch + l.best);
	if (hit)
		TRY(launch_walk<HITS>(b, v, plan.parts));
	if (l.dhidden)
		TRY(launch_walk<HIDDEN>(b, v, plan.parts));
	else if (!hit)
		TRY(launch_walk<LOSS>(b, v, plan.parts));
	finished_rows f = {};
	f.hidden = v.x, f.weight = v.y;
	f.bias = v.bias, f.means = (const float *)(scratch + l.means);
	f.label = v.label;
	f.rows = plan.rows, f.classes = l.classes, f.d = (int)l.d, f.parts = (int)plan.parts;
	f.alpha = p->alpha, f.smoothing = p->smoothing;
	f.product = l.dhidden ? v.product : nullptr, f.top = v.top, f.sum = v.sum;
	f.all = all, f.loss = loss + first;
	f.best = hit ? v.best : nullptr, f.hit = hit ? hit + first : nullptr;
	f.dhidden = l.dhidden ? (bf16 *)call->out[2].data + first * l.d : nullptr;
	f.level = l.dweight ? (float *)(scratch + l.level) + first : nullptr;
	f.own_label = (int32_t *)(scratch + l.label) + first;
	f.padded = last && l.dweight ? l.level_rows - first : plan.rows;
	return cuda_launch(b, finish_rows_kernel, cuda_parts(f.padded, ROW_THREADS / WARP), ROW_THREADS, 0, f);
}

/* Add a group's terms to dweight and dbias; the group of row 0 initialises them. */
static status issue_group(backend *b, const op_call *call, const vocabulary_layout &l, char *scratch,
                          const loss_tally *all, int64_t first)
{
	const linear_cross_entropy_params *p = (const linear_cross_entropy_params *)call->params;
	const int64_t rows = least(l.group, l.rows - first);
	const walk_plan &plan = first + l.group >= l.rows ? l.last_weight : l.weight;
	float *dweight = (float *)call->out[3].data, *dbias = (float *)call->out[4].data;
	vocabulary_walk v = {};
	v.x = (const bf16 *)call->in[1].data, v.y = (const bf16 *)call->in[0].data + first * l.d;
	v.x_rows = (int)l.classes, v.y_rows = (int)rows, v.d = (int)l.d;
	v.part = (int)plan.part;
	v.scale = p->alpha * LOG2_E;
	v.bias = (const float *)(scratch + l.bias);
	v.label = (const int32_t *)(scratch + l.label) + first;
	v.level = (const float *)(scratch + l.level) + first;
	v.hit = 1.0f - p->smoothing, v.even = p->smoothing / (float)l.classes;
	v.alpha = p->alpha, v.all = all;
	if (plan.parts == 1) {
		v.add = first != 0;
		v.product = dweight, v.sum = dbias;
		return launch_walk<WEIGHT>(b, v, 1);
	}
	float *part = (float *)(scratch + l.part);
	v.product = dweight ? part : nullptr;
	v.sum = dbias ? part + plan.parts * l.classes * l.d : nullptr;
	TRY(launch_walk<WEIGHT>(b, v, plan.parts));
	if (dbias)
		TRY(cuda_loss_sum_parts(b, dbias, v.sum, plan.parts, l.classes, 1.0f, first == 0));
	return dweight ? cuda_loss_sum_parts(b, dweight, v.product, plan.parts, l.classes * l.d, 1.0f, first == 0)
	               : STATUS_OK;
}

bool cuda_vocabulary_takes(const backend *b, const op_call *call)
{
	const linear_cross_entropy_params *p = (const linear_cross_entropy_params *)call->params;
	const int64_t rows = shape_rows(call->in[0].shape), classes = call->in[1].shape.dim[0];
	const int64_t d = call->in[1].shape.dim[1], most = 1 << 30;
	/* Weights and log-probabilities of rows are computed from logits in memory alone. */
	return call->in[0].type == DTYPE_BF16 && !cuda_optional(call, 4) && !call->out[6].data && d > 0 && d % 8 == 0 &&
	       d <= MOST_CHANNELS && rows > 0 && rows < most && classes < most && p->alpha > 0.0f &&
	       sizeof(space<MOST_CHANNELS>) <= cuda_of(b)->shared_limit;
}

size_t cuda_vocabulary_scratch(const backend *b, const op_call *call)
{
	return layout_of(b, call).bytes;
}

status cuda_vocabulary_softmax(backend *b, const op_call *call, char *scratch, const loss_tally *all, float *loss)
{
	const vocabulary_layout l = layout_of(b, call);
	TRY(issue_words(b, call, l, scratch));
	for (int64_t first = 0; first < l.rows; first += l.hidden.rows)
		TRY(issue_chunk(b, call, l, scratch, all, loss, first));
	for (int64_t first = 0; l.dweight && first < l.rows; first += l.group)
		TRY(issue_group(b, call, l, scratch, all, first));
	return STATUS_OK;
}
