/* linear_cross_entropy: the vocabulary product and its loss, rows of the logits at a time. bf16 of few channels uses
 * vocabulary_softmax.cu; counting rows and adding up their losses is done here for both.
 *
 *   z = alpha h Eᵀ                           a chunk of rows, f32: a product
 *   z += alpha b, the loss of each row, dz   one block per row; dz of h's type
 *   dh = alpha dz E                          a chunk: a product
 *   dE += alpha dzᵀ h, db += alpha Σ dz      a group of chunks
 *
 * z is f32 for any type of h: a loss from logits rounded to bf16 would be wrong by 2^-9 of the largest. dz is rounded to
 * h's type as operand of the next products; in f32 it overwrites z.
 *
 * Rows of a chunk (chunk_rows). If E and the z of NEAR_ROWS rows each fit in half of the L2 cache, a chunk's z fills
 * its half, and both are read from there. Otherwise z goes through memory, and so does E, twice per chunk: 4 D / rows
 * bytes per logit in bf16. A product of few rows also has too few tiles of dh for all processors. So a chunk has
 * FAR_ROWS rows, or as many as SCORES_BYTES hold.
 *
 * Each addition to dE reads and writes all of it, 8 V D bytes, and would cost as much as its product after a few
 * hundred rows; so dz is kept for a group of chunks (GROUP_BYTES). Chunks and groups depend on the shapes and the device
 * alone, and sums over rows have one order. dz is scaled by 1 / count, so the labels are counted first: on the device,
 * without a wait.
 *
 * Bytes per logit, in addition to the products' operands: z 4 written and 4 read; dz 2 (bf16) written and read two or
 * three times; dE 8 D / (rows of a group). A block keeps its row in shared memory between the sums and dz: about
 * 55,000 classes on 9.0, 23,000 where a block has 99 KB. The rest is read again. If hits are requested, the pass for the
 * losses also finds the class of a row's largest logit. */
#include "cuda/device.cuh"
#include "cuda/gemm.h"
#include "cuda/kernels.h"
#include "cuda/vocabulary_softmax.h"

#include <type_traits>

enum {
	COUNT_THREADS = 256,
	COUNT_ROWS = 4096, /* minimum per block */
	COUNT_BLOCKS = 128,
	SUM_THREADS = 256,
	SUM_ROWS = 256, /* rows of dz that one thread adds */
	MOST_ROWS = 1 << 16,
#ifdef __CUDACC__
	LEAST_ROWS = 256, /* minimum rows in a chunk, and its unit */
	NEAR_ROWS = 1024, /* minimum rows in a chunk whose z stays in the cache */
	FAR_ROWS = 2048,  /* rows in a chunk whose z does not */
	SCORES_BYTES = 256 << 20,
	GROUP_BYTES = 256 << 20,
	KEPT_BYTES = 1 << 20, /* any shared memory that a block may have */
#else
	LEAST_ROWS = 32, /* small, so that the emulator has chunks and groups too */
	NEAR_ROWS = 64,
	FAR_ROWS = 128,
	SCORES_BYTES = 256 << 10,
	GROUP_BYTES = 256 << 10,
	KEPT_BYTES = 8 << 10,
#endif
	MEMORY_SHARE = 256, /* SCORES_BYTES is at most this part of the device's memory */
};

/* --- division of the work ------------------------------------------------------------------------ */

/* Chunks and groups of a call's rows, and offsets in its scratch. */
struct layout {
	bool fused; /* vocabulary_softmax.h: no chunks here, and its scratch is at z */
	int64_t rows, classes, d;
	int64_t pitch; /* strides of z and dz; rows are aligned to 16 bytes */
	int64_t chunk, group;
	bool gradients;
	size_t tallies, loss, z, dz, sums, bytes; /* z == dz: in place */
};

/* Rows of a chunk; see the top of the file. pitch: floats of a row of z. */
static int64_t chunk_rows(const cuda_backend *c, int64_t pitch, int64_t weight_bytes)
{
	const int64_t half = c->cache_bytes / 2, row = pitch * (int64_t)sizeof(float);
	const int64_t scores = least(SCORES_BYTES, (int64_t)(c->memory_bytes / MEMORY_SHARE));
	const bool near = weight_bytes <= half && half / row >= NEAR_ROWS;
	const int64_t rows = near ? least(half / row, MOST_ROWS) : least(scores / row, FAR_ROWS);
	return rows < LEAST_ROWS ? (int64_t)LEAST_ROWS : rows / LEAST_ROWS * LEAST_ROWS;
}

static layout layout_of(const backend *b, const op_call *call)
{
	layout l = {};
	const size_t each = dtype_bytes(call->in[0].type);
	l.rows = shape_rows(call->in[0].shape);
	l.classes = call->in[1].shape.dim[0], l.d = call->in[1].shape.dim[1];
	l.pitch = (l.classes + 7) / 8 * 8;
	l.gradients = loss_has_gradients(call);
	l.tallies = loss_scratch(&l.bytes, COUNT_BLOCKS + 1, sizeof(loss_tally));
	l.loss = loss_scratch(&l.bytes, l.rows, sizeof(float));
	l.fused = cuda_vocabulary_takes(b, call);
	if (l.fused) {
		l.z = loss_scratch(&l.bytes, 1, cuda_vocabulary_scratch(b, call));
		return l;
	}
	l.chunk = least(chunk_rows(cuda_of(b), l.pitch, l.classes * l.d * (int64_t)each), l.rows ? l.rows : 1);
	int64_t chunks = least(GROUP_BYTES / (l.pitch * (int64_t)each), MOST_ROWS) / l.chunk;
	l.group = l.gradients && chunks > 1 ? least(chunks * l.chunk, l.rows ? l.rows : 1) : l.chunk;
	const bool in_place = each == sizeof(float);
	l.z = loss_scratch(&l.bytes, (in_place ? l.group : l.chunk) * l.pitch, sizeof(float));
	l.dz = !l.gradients || in_place ? l.z : loss_scratch(&l.bytes, l.group * l.pitch, each);
	l.sums = call->out[4].data ? loss_scratch(&l.bytes, parts_of(l.group, SUM_ROWS) * l.classes, sizeof(float)) : 0;
	return l;
}

/* --- the count, and the loss of all rows ------------------------------------------------------- */

__device__ __forceinline__ bool counts(int32_t label, int64_t classes)
{
	return label >= 0 && label < classes;
}

/* Thread 0 gets the sum over the block, always added in one order. space: one tally per thread. */
__device__ __forceinline__ loss_tally block_tally(loss_tally x, loss_tally *space)
{
	space[threadIdx.x] = x;
	__syncthreads();
	for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
		if (threadIdx.x < half) {
			space[threadIdx.x].loss += space[threadIdx.x + half].loss;
			space[threadIdx.x].count += space[threadIdx.x + half].count;
		}
		__syncthreads();
	}
	return space[0];
}

/* Tally each block's `each` rows. loss [rows]; NULL: not known yet. */
__global__ void __launch_bounds__(COUNT_THREADS)
    count_rows(loss_tally *part, const int32_t *label, const float *loss, int64_t rows, int64_t each, int64_t classes)
{
	const int64_t first = blockIdx.x * each, end = min(first + each, rows);
	loss_tally mine = {};
	for (int64_t r = first + threadIdx.x; r < end; r += COUNT_THREADS) {
		const bool counted = counts(label[r], classes);
		mine.count += counted;
		if (loss && counted)
			mine.loss += (double)loss[r];
	}
	mine = block_tally(mine, shared_memory<loss_tally>());
	if (threadIdx.x == 0)
		part[blockIdx.x] = mine;
}

/* One block: merge all parts, and compute the mean if requested. */
__global__ void __launch_bounds__(COUNT_BLOCKS)
    count_parts(loss_tally *all, const loss_tally *part, int parts, float *loss, float *count)
{
	loss_tally sum =
	    block_tally((int)threadIdx.x < parts ? part[threadIdx.x] : loss_tally{}, shared_memory<loss_tally>());
	if (threadIdx.x != 0)
		return;
	*all = sum;
	if (loss)
		*loss = sum.count ? (float)(sum.loss / (double)sum.count) : 0.0f;
	if (count)
		*count = (float)sum.count;
}

/* --- rows ---------------------------------------------------------------------------------------- */

template <class T> struct chunk {
	int64_t classes, pitch;
	const int32_t *label;
	const float *z, *bias, *weight; /* bias may be NULL; so may weight, of each row */
	float alpha, smoothing;
	const loss_tally *all;
	float *loss, *hit, *log_probability; /* hit and log_probability may be NULL */
	T *dz;             /* may be NULL, or z */
	int64_t kept;      /* logits of a row that stay in shared memory for dz, a multiple of QUAD */
};

enum { DEEP = 4 }; /* packs of a row that a thread requests at once */

/* Shared memory of a block: space for its sums, then the row that it keeps. */
static __host__ __device__ __forceinline__ size_t sums_bytes(unsigned threads)
{
	return threads * sizeof(best_class);
}

enum { QUAD = 4 };

/* Four logits of a row from class j on, with their bias, -inf past the last. */
__device__ __forceinline__ void finish_logits(float (&z)[QUAD], const pack<float> &x, const float *bias, float alpha,
                                              int64_t j, int64_t classes)
{
#pragma unroll
	for (int i = 0; i < QUAD; i++)
		z[i] = j + i < classes ? x.at[i] + (bias ? alpha * bias[j + i] : 0.0f) : -INFINITY;
}

__device__ __forceinline__ void store_quad(float *p, const float (&x)[QUAD])
{
	*(float4 *)p = make_float4(x[0], x[1], x[2], x[3]);
}
__device__ __forceinline__ void store_quad(bf16 *p, const float (&x)[QUAD])
{
	*(uint2 *)p = make_uint2(two_bf16(x[0], x[1]), two_bf16(x[2], x[3]));
}

struct softmax_sums {
	float top, total /* Σ e^{z - top} */, sum /* Σ z */;
	int best; /* first class of the largest z, if requested */
};

/* Return the block's best class to thread 0; space: one per thread. */
__device__ __forceinline__ best_class block_best(best_class x, best_class *space)
{
	space[threadIdx.x] = x;
	__syncthreads();
	for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
		if (threadIdx.x < half)
			space[threadIdx.x] = better(space[threadIdx.x], space[threadIdx.x + half]);
		__syncthreads();
	}
	return space[0];
}

/* The largest x of the block; space: WARP floats. */
__device__ __forceinline__ float block_top(float x, float *space)
{
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
	x = warp_max(x);
	if (lane == 0)
		space[warp] = x;
	__syncthreads();
	x = warp_max(lane < warps ? space[lane] : -FLT_MAX);
	__syncthreads();
	return x;
}

/* Sums of a row. Each thread keeps the logits that it reads, for itself, up to c.kept. */
template <class T, bool HITS>
__device__ __forceinline__ softmax_sums row_sums(const chunk<T> &c, const float *row, float *kept)
{
	float *space = shared_memory<float>();
	const bool smooth = c.smoothing != 0.0f;
	const int64_t step = blockDim.x * QUAD;
	softmax_sums s = {-FLT_MAX, 0.0f, 0.0f, -1};
	best_class best = {-INFINITY, INT32_MAX};
	for (int64_t first = threadIdx.x * QUAD; first < c.classes; first += DEEP * step) {
		pack<float> x[DEEP];
#pragma unroll
		for (int n = 0; n < DEEP; n++)
			if (first + n * step < c.classes)
				x[n] = load_pack(row + first + n * step);
#pragma unroll
		for (int n = 0; n < DEEP; n++) {
			const int64_t j = first + n * step;
			float z[QUAD];
			if (j >= c.classes)
				break;
			finish_logits(z, x[n], c.bias, c.alpha, j, c.classes);
			if (j < c.kept)
				store_quad(kept + j, z);
			const float top = fmaxf(fmaxf(s.top, fmaxf(z[0], z[1])), fmaxf(z[2], z[3]));
			s.total *= expf(s.top - top);
			s.top = top;
#pragma unroll
			for (int i = 0; i < QUAD; i++) {
				s.total += expf(z[i] - top);
				s.sum += smooth && j + i < c.classes ? z[i] : 0.0f;
				if (HITS && z[i] > best.z)
					best = {z[i], (int)(j + i)};
			}
		}
	}
	const float top = block_top(s.top, space);
	s.total = block_sum(s.total * expf(s.top - top), space);
	s.sum = smooth ? block_sum(s.sum, space) : 0.0f;
	s.top = top;
	if (HITS)
		s.best = block_best(best, shared_memory<best_class>()).at;
	return s;
}

/* dz = w (e^{z - lse} - (1-ε) [label] - ε / V) / count of a row of weight w; may overwrite z. */
template <class T>
__device__ __forceinline__ void row_gradient(const chunk<T> &c, const float *row, const float *kept, T *dz,
                                             softmax_sums s, int32_t label, float weight)
{
	const float each = weight / (float)c.all->count, even = each * (c.smoothing / (float)c.classes);
	const float hit = each * (1.0f - c.smoothing), factor = each / s.total;
	for (int64_t j = threadIdx.x * QUAD; j < c.classes; j += blockDim.x * QUAD) {
		float z[QUAD];
		if (j < c.kept) {
			const float4 x = *(const float4 *)(kept + j);
			z[0] = x.x, z[1] = x.y, z[2] = x.z, z[3] = x.w;
		} else {
			finish_logits(z, load_pack(row + j), c.bias, c.alpha, j, c.classes);
		}
#pragma unroll
		for (int i = 0; i < QUAD; i++)
			z[i] = factor * expf(z[i] - s.top) - even - (j + i == label ? hit : 0.0f);
		store_quad(dz + j, z);
	}
}

/* One block per row. */
template <class T, bool HITS> __global__ void __launch_bounds__(1024) row_losses(chunk<T> c)
{
	const int64_t r = blockIdx.x;
	const int32_t label = c.label[r];
	const float *row = c.z + r * c.pitch;
	T *dz = c.dz ? c.dz + r * c.pitch : nullptr;
	if (!counts(label, c.classes)) {
		if (HITS && threadIdx.x == 0)
			c.hit[r] = 0.0f;
		if (c.log_probability && threadIdx.x == 0)
			c.log_probability[r] = 0.0f;
		const float zeros[QUAD] = {};
		for (int64_t j = threadIdx.x * QUAD; dz && j < c.classes; j += blockDim.x * QUAD)
			store_quad(dz + j, zeros);
		return;
	}
	const float own = row[label] + (c.bias ? c.alpha * c.bias[label] : 0.0f); /* before dz overwrites it */
	float *kept = shared_memory<float>(sums_bytes(blockDim.x));
	const softmax_sums s = row_sums<T, HITS>(c, row, kept);
	const float weight = c.weight ? c.weight[r] : 1.0f;
	if (threadIdx.x == 0)
		c.loss[r] = weight * (logf(s.total) + (1.0f - c.smoothing) * (s.top - own) +
		                      c.smoothing * (c.smoothing != 0.0f ? s.top - s.sum / (float)c.classes : 0.0f));
	if (c.log_probability && threadIdx.x == 0)
		c.log_probability[r] = own - s.top - logf(s.total);
	if (HITS && threadIdx.x == 0)
		c.hit[r] = s.best == label ? 1.0f : 0.0f;
	if (dz)
		row_gradient(c, row, kept, dz, s, label, weight);
}

/* --- the gradient of the bias ---------------------------------------------------------------------- */

/* part [rows / SUM_ROWS, classes] = Σ of SUM_ROWS rows of dz. */
template <class T>
__global__ void __launch_bounds__(SUM_THREADS)
    sum_columns(float *part, const T *dz, int64_t rows, int64_t classes, int64_t pitch)
{
	const int64_t j = grid_first(), first = (int64_t)blockIdx.y * SUM_ROWS, end = min(first + SUM_ROWS, rows);
	float sum = 0.0f;
	if (j >= classes)
		return;
#pragma unroll 8
	for (int64_t r = first; r < end; r++)
		sum += load_real(dz + r * pitch + j);
	part[blockIdx.y * classes + j] = sum;
}

__global__ void __launch_bounds__(SUM_THREADS)
    sum_parts(float *out, const float *part, int64_t parts, int64_t n, float factor, bool first)
{
	for (int64_t j = grid_first(); j < n; j += grid_stride()) {
		float sum = 0.0f;
#pragma unroll 4
		for (int64_t i = 0; i < parts; i++)
			sum += part[i * n + j];
		out[j] = (first ? 0.0f : out[j]) + factor * sum;
	}
}

status cuda_loss_sum_parts(backend *b, float *out, const float *part, int64_t parts, int64_t n, float factor,
                           bool first)
{
	return cuda_launch(b, sum_parts, cuda_blocks(b, n, SUM_THREADS), SUM_THREADS, 0, out, part, parts, n, factor,
	                   first);
}

/* --- the op ------------------------------------------------------------------------------------------ */

/* loss, count: outputs, written with the loss of all rows; NULL before it is known. */
static status count_all(backend *b, const op_call *call, const layout &l, const float *loss, float *mean, float *count)
{
	loss_tally *part = (loss_tally *)((char *)call->scratch + l.tallies);
	int64_t each = (l.rows + COUNT_BLOCKS - 1) / COUNT_BLOCKS;
	each = each < COUNT_ROWS ? (int64_t)COUNT_ROWS : each;
	const int blocks = l.rows ? (int)((l.rows + each - 1) / each) : 1;
	TRY(cuda_launch(b, count_rows, blocks, COUNT_THREADS, COUNT_THREADS * sizeof(loss_tally), part + 1,
	                (const int32_t *)call->in[3].data, loss, l.rows, each, l.classes));
	return cuda_launch(b, count_parts, 1, COUNT_BLOCKS, COUNT_BLOCKS * sizeof(loss_tally), part, part + 1, blocks,
	                   mean, count);
}

static unsigned row_threads(int64_t classes)
{
	return classes <= 512 ? 64 : classes <= 2048 ? 128 : classes <= 8192 ? 256 : classes <= 16384 ? 512 : 1024;
}

/* Logits of a row that a block of row_losses keeps. */
static int64_t kept_logits(const cuda_backend *c, const layout &l)
{
	const int64_t room = least(KEPT_BYTES, (int64_t)(c->shared_limit - sums_bytes(row_threads(l.classes))));
	return l.gradients ? least(l.pitch, room / (int64_t)sizeof(float) / QUAD * QUAD) : 0;
}

/* Compute rows `first` to `first + rows`, whose group began at `group`: logits, losses, dz and dhidden. */
template <class T>
static status issue_chunk(backend *b, const op_call *call, const layout &l, int64_t group, int64_t first, int64_t rows)
{
	const linear_cross_entropy_params *p = (const linear_cross_entropy_params *)call->params;
	const dtype type = call->in[0].type;
	char *scratch = (char *)call->scratch;
	T *dz = l.gradients ? (T *)(scratch + l.dz) + (first - group) * l.pitch : nullptr;
	float *z = l.gradients && l.z == l.dz ? (float *)dz : (float *)(scratch + l.z);
	const T *hidden = (const T *)call->in[0].data + first * l.d;
	cuda_gemm_args product = {};
	product.trans_b = true;
	product.m = rows, product.n = l.classes, product.k = l.d;
	product.alpha = p->alpha;
	product.type = type, product.c_type = DTYPE_F32;
	product.a = hidden, product.b = call->in[1].data, product.c = z;
	product.lda = l.d, product.ldb = l.d, product.ldc = l.pitch;
	TRY(cuda_gemm(b, product));
	chunk<T> c = {};
	c.classes = l.classes, c.pitch = l.pitch;
	c.label = (const int32_t *)call->in[3].data + first;
	c.z = z, c.bias = (const float *)call->in[2].data;
	c.alpha = p->alpha, c.smoothing = p->smoothing;
	c.all = (const loss_tally *)(scratch + l.tallies);
	c.loss = (float *)(scratch + l.loss) + first;
	c.hit = call->out[5].data ? (float *)call->out[5].data + first : nullptr;
	c.weight = (const float *)cuda_optional(call, 4);
	c.weight = c.weight ? c.weight + first : nullptr;
	c.log_probability = call->out[6].data ? (float *)call->out[6].data + first : nullptr;
	c.dz = dz;
	c.kept = kept_logits(cuda_of(b), l);
	const unsigned threads = row_threads(l.classes);
	const size_t shared = sums_bytes(threads) + (size_t)c.kept * sizeof(float);
	TRY(c.hit ? cuda_launch(b, row_losses<T, true>, cuda_extent(rows), threads, shared, c)
	          : cuda_launch(b, row_losses<T, false>, cuda_extent(rows), threads, shared, c));
	if (!call->out[2].data)
		return STATUS_OK;
	product.trans_b = false;
	product.n = l.d, product.k = l.classes;
	product.c_type = type;
	product.a = dz, product.c = (T *)call->out[2].data + first * l.d;
	product.lda = l.pitch, product.ldc = l.d;
	return cuda_gemm(b, product);
}

/* Add a group's terms to dweight and dbias; the group of row 0 initialises them. */
template <class T>
static status issue_group(backend *b, const op_call *call, const layout &l, int64_t first, int64_t rows)
{
	const float alpha = ((const linear_cross_entropy_params *)call->params)->alpha;
	char *scratch = (char *)call->scratch;
	const T *dz = (const T *)(scratch + l.dz);
	if (call->out[3].data) {
		cuda_gemm_args product = {};
		product.trans_a = true;
		product.m = l.classes, product.n = l.d, product.k = rows;
		product.alpha = alpha, product.beta = first ? 1.0f : 0.0f;
		product.type = call->in[0].type, product.c_type = DTYPE_F32;
		product.a = dz, product.b = (const T *)call->in[0].data + first * l.d, product.c = call->out[3].data;
		product.lda = l.pitch, product.ldb = l.d, product.ldc = l.d;
		TRY(cuda_gemm(b, product));
	}
	if (!call->out[4].data)
		return STATUS_OK;
	float *part = (float *)(scratch + l.sums);
	const int64_t parts = parts_of(rows, SUM_ROWS);
	const dim3 grid(cuda_parts(l.classes, SUM_THREADS), cuda_extent(parts));
	TRY(cuda_launch(b, sum_columns<T>, grid, SUM_THREADS, 0, part, dz, rows, l.classes, l.pitch));
	return cuda_loss_sum_parts(b, (float *)call->out[4].data, part, parts, l.classes, alpha, first == 0);
}

template <class T> static status issue_chunks(backend *b, const op_call *call, const layout &l)
{
	for (int64_t group = 0; group < l.rows || group == 0; group += l.group) {
		const int64_t end = least(group + l.group, l.rows);
		for (int64_t first = group; first < end; first += l.chunk)
			TRY(issue_chunk<T>(b, call, l, group, first, least(l.chunk, end - first)));
		TRY(issue_group<T>(b, call, l, group, end - group));
	}
	return STATUS_OK;
}

size_t cuda_linear_cross_entropy_scratch(const backend *b, const op_call *call)
{
	return layout_of(b, call).bytes;
}

/* Panels are for serving, which takes no loss. */
status cuda_linear_cross_entropy(backend *b, const op_call *call)
{
	if (dtype_is_panel(call->in[1].type))
		return STATUS_UNSUPPORTED;
	const layout l = layout_of(b, call);
	char *scratch = (char *)call->scratch;
	float *loss = (float *)(scratch + l.loss);
	TRY(count_all(b, call, l, nullptr, nullptr, nullptr));
	if (l.fused)
		TRY(cuda_vocabulary_softmax(b, call, scratch + l.z, (const loss_tally *)(scratch + l.tallies), loss));
	else
		TRY(cuda_by_type(call->in[0].type, [&](auto *type) {
			return issue_chunks<std::remove_pointer_t<decltype(type)>>(b, call, l);
		}));
	return count_all(b, call, l, loss, (float *)call->out[0].data, (float *)call->out[1].data);
}
