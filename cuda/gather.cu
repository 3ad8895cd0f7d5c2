/* gather, gather_grad.
 *
 * gather: a warp copies a row, in the widest units that divide it. Packed tables (panel.h): a lane takes a word of 32
 * bits, in which 1, 2 or 4 inputs of the row lie side by side. Bytes per element: what is stored, read and written;
 * words of a panel lie 64 bytes apart, so each costs a sector of 32.
 *
 * gather_grad: the places are sorted by index, stably, so the places of a table's row follow one another in their
 * order. The sort is a radix sort, DIGIT_BITS at a time (count, scan, place), of 8 bytes a place and pass. Then a warp
 * takes CHUNK places of the sorted list and a strip of columns, and sums runs of equal indices. A run within the chunk
 * is a row of the result; of a run that reaches over chunks, every chunk leaves a partial sum, and a second kernel adds
 * them in order. So a row that is everywhere is summed by many warps, one that is nowhere costs its zeros, and two runs
 * have the same bits. Bytes per element of dy: 4 / 2 read, of dtable 4 for zeros and 4 where there is an entry, and the
 * partial sums, at most a quarter of dy's elements, in f32. */
#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"

extern "C" {
#include "engine/tensor/panel.h"
}

enum { THREADS = 256, WARPS = THREADS / WARP };

/* The warps of the grid, numbered. */
static __device__ __forceinline__ int64_t grid_warp(void)
{
	return grid_first() / WARP;
}
static __device__ __forceinline__ int64_t grid_warps(void)
{
	return grid_stride() / WARP;
}

/* --- gather ------------------------------------------------------------------------------- */

/* Rows of `units` units. */
template <class U>
static __global__ void __launch_bounds__(THREADS)
    gather_kernel(U *y, const U *table, const int32_t *index, int64_t n, int64_t rows, int64_t units)
{
	for (int64_t i = grid_warp(); i < n; i += grid_warps()) {
		const int64_t row = index[i];
		const bool there = row >= 0 && row < rows;
		for (int64_t j = threadIdx.x % WARP; j < units; j += WARP)
			y[i * units + j] = there ? table[row * units + j] : U{};
	}
}

/* What `side` inputs of row `row` in a panel are, `group` groups of them in. */
template <int SIDE>
static __device__ __forceinline__ void unpack(float out[SIDE], const unsigned char *panel, int64_t group, int row)
{
	const unsigned *words = (const unsigned *)(panel + (SIDE == PANEL_GROUP ? sizeof(panel_header) : 0));
	const unsigned word = words[group * PANEL_WIDTH + row];
	const float scale = SIDE == PANEL_GROUP ? ((const panel_header *)panel)->scale[row] : 1.0f;
#pragma unroll
	for (int i = 0; i < SIDE; i++) {
		if (SIDE == 1)
			out[i] = __uint_as_float(word);
		else if (SIDE == PANEL_PAIR)
			out[i] = __uint_as_float(word >> 16 * i << 16);
		else
			out[i] = (float)(int8_t)(word >> 8 * i) * scale;
	}
}

template <int SIDE>
static __global__ void __launch_bounds__(THREADS)
    gather_panels_kernel(float *y, const unsigned char *panels, const int32_t *index, int64_t n, int64_t rows,
                         int64_t width, int64_t stride)
{
	for (int64_t i = grid_warp(); i < n; i += grid_warps()) {
		const int64_t row = index[i];
		const bool there = row >= 0 && row < rows;
		const unsigned char *panel = panels + (there ? row / PANEL_WIDTH : 0) * stride;
		for (int64_t j = threadIdx.x % WARP; j * SIDE < width; j += WARP) {
			float w[SIDE] = {};
			if (there)
				unpack<SIDE>(w, panel, j, (int)(row % PANEL_WIDTH));
#pragma unroll
			for (int k = 0; k < SIDE; k++)
				if (j * SIDE + k < width)
					y[i * width + j * SIDE + k] = w[k];
		}
	}
}

struct gather_arguments {
	backend *b;
	const op_call *call;
	const int32_t *index;
	int64_t n, rows, width;
};

template <class U> static status gather_units(const gather_arguments &o, size_t row_bytes)
{
	return cuda_launch(o.b, gather_kernel<U>, cuda_blocks(o.b, o.n, WARPS), THREADS, 0, (U *)o.call->out[0].data,
	                   (const U *)o.call->in[0].data, o.index, o.n, o.rows, (int64_t)(row_bytes / sizeof(U)));
}

template <int SIDE> static status gather_panels(const gather_arguments &o)
{
	return cuda_launch(o.b, gather_panels_kernel<SIDE>, cuda_blocks(o.b, o.n, WARPS), THREADS, 0,
	                   (float *)o.call->out[0].data, (const unsigned char *)o.call->in[0].data, o.index, o.n,
	                   o.rows, o.width, (int64_t)panel_stride(o.call->in[0].type, o.width));
}

status cuda_gather(backend *b, const op_call *call)
{
	const tensor *table = &call->in[0];
	const gather_arguments o = {b,
	                            call,
	                            (const int32_t *)call->in[1].data,
	                            shape_count(call->in[1].shape),
	                            shape_rows(table->shape),
	                            shape_last(table->shape)};
	if (table->type == DTYPE_PANEL_F32)
		return gather_panels<1>(o);
	if (table->type == DTYPE_PANEL_BF16)
		return gather_panels<PANEL_PAIR>(o);
	if (table->type == DTYPE_PANEL_INT8)
		return gather_panels<PANEL_GROUP>(o);
	const size_t bytes = (size_t)o.width * dtype_bytes(table->type);
	return bytes % 16 == 0  ? gather_units<uint4>(o, bytes)
	       : bytes % 4 == 0 ? gather_units<unsigned>(o, bytes)
	                        : gather_units<uint16_t>(o, bytes);
}

/* --- gather_grad: the sort ------------------------------------------------------------------ */

enum {
	DIGIT_BITS = 8,
	DIGITS = 1 << DIGIT_BITS,
	ROUNDS = 8, /* of places that a thread takes */
	TILE = THREADS * ROUNDS,
	SCAN_THREADS = 1024,
	SCAN_EACH = 4,
	CHUNK = WARP,
};

/* A place, and the row that it adds to; `rows` for one that adds to none. */
struct entry {
	int32_t row, place;
};

struct sort_arguments {
	const entry *from; /* NULL: made of the indices */
	entry *to;
	const int32_t *index;
	unsigned *counts; /* [DIGITS, tiles] */
	int64_t n, rows, padding_row;
	int shift;
};

static __device__ __forceinline__ entry entry_at(const sort_arguments &o, int64_t i)
{
	if (o.from)
		return o.from[i];
	const int32_t row = o.index[i];
	return {row < 0 || row >= o.rows || row == o.padding_row ? (int32_t)o.rows : row, (int32_t)i};
}

static __device__ __forceinline__ unsigned digit_of(const sort_arguments &o, entry e)
{
	return (unsigned)e.row >> o.shift & (DIGITS - 1);
}

/* The place of a thread's round: every warp has ROUNDS · WARP neighbours of the block's tile. */
static __device__ __forceinline__ int64_t place_of(int round)
{
	return (int64_t)blockIdx.x * TILE + (threadIdx.x / WARP * ROUNDS + round) * WARP + threadIdx.x % WARP;
}

static __global__ void __launch_bounds__(THREADS) count_kernel(sort_arguments o)
{
	unsigned *count = shared_memory<unsigned>();
	count[threadIdx.x] = 0;
	__syncthreads();
	for (int i = 0; i < ROUNDS; i++)
		if (place_of(i) < o.n)
			atomicAdd(&count[digit_of(o, entry_at(o, place_of(i)))], 1u);
	__syncthreads();
	o.counts[(int64_t)threadIdx.x * gridDim.x + blockIdx.x] = count[threadIdx.x];
}

/* Each count becomes the sum of those before it; n is a multiple of SCAN_EACH. One block. */
static __global__ void __launch_bounds__(SCAN_THREADS) scan_kernel(unsigned *counts, int64_t n)
{
	unsigned *space = shared_memory<unsigned>();
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	unsigned before = 0;
	for (int64_t first = 0; first < n; first += SCAN_THREADS * SCAN_EACH) {
		const int64_t i = first + threadIdx.x * SCAN_EACH;
		const uint4 mine = i < n ? *(const uint4 *)(counts + i) : uint4{};
		const unsigned own = mine.x + mine.y + mine.z + mine.w;
		unsigned sum = own, total = 0;
		for (int by = 1; by < WARP; by *= 2) {
			const unsigned left = __shfl_up_sync(ALL_LANES, sum, by);
			sum += lane >= by ? left : 0;
		}
		if (lane == WARP - 1)
			space[warp] = sum;
		__syncthreads();
		for (int w = 0; w < SCAN_THREADS / WARP; w++) {
			sum += w < warp ? space[w] : 0;
			total += space[w];
		}
		__syncthreads();
		const unsigned at = before + sum - own;
		if (i < n)
			*(uint4 *)(counts + i) = make_uint4(at, at + mine.x, at + mine.x + mine.y, at + own - mine.w);
		before += total;
	}
}

/* The lanes with this lane's digit, itself included; those without a place have digit DIGITS. */
static __device__ __forceinline__ unsigned lanes_alike(unsigned digit)
{
	unsigned alike = ALL_LANES;
#pragma unroll
	for (int bit = 0; bit <= DIGIT_BITS; bit++) {
		const unsigned set = __ballot_sync(ALL_LANES, digit >> bit & 1);
		alike &= digit >> bit & 1 ? set : ~set;
	}
	return alike;
}

/* Where the next entry of every digit goes, per warp, [WARPS, DIGITS]: first its count, then the sum of what comes
 * before. */
static __global__ void __launch_bounds__(THREADS) place_kernel(sort_arguments o)
{
	unsigned *all = shared_memory<unsigned>(), *next = all + threadIdx.x / WARP * DIGITS;
	const unsigned lane = threadIdx.x % WARP;
	for (int i = threadIdx.x; i < WARPS * DIGITS; i += THREADS)
		all[i] = 0;
	__syncthreads();
	for (int i = 0; i < ROUNDS; i++)
		if (place_of(i) < o.n)
			atomicAdd(&next[digit_of(o, entry_at(o, place_of(i)))], 1u);
	__syncthreads();
	unsigned at = o.counts[(int64_t)threadIdx.x * gridDim.x + blockIdx.x];
	for (int w = 0; w < WARPS; w++) {
		const unsigned count = all[w * DIGITS + threadIdx.x];
		all[w * DIGITS + threadIdx.x] = at;
		at += count;
	}
	__syncthreads();
	for (int i = 0; i < ROUNDS; i++) {
		const bool there = place_of(i) < o.n;
		const entry e = there ? entry_at(o, place_of(i)) : entry{};
		const unsigned digit = there ? digit_of(o, e) : (unsigned)DIGITS, alike = lanes_alike(digit);
		const unsigned rank = __popc(alike & ((1u << lane) - 1));
		if (there)
			o.to[next[digit] + rank] = e;
		__syncwarp();
		if (there && rank == 0)
			next[digit] += __popc(alike);
		__syncwarp();
	}
}

/* --- gather_grad: the sums ------------------------------------------------------------------- */

struct run_arguments {
	const entry *sorted;
	const void *dy;
	float *dtable;
	float *parts; /* [chunks, 2, width]: of the run from the chunk before, of the run into the chunk after */
	int64_t n, rows, width;
};

/* Is there a place i, and is its row this one? */
static __device__ __forceinline__ bool is_row(const run_arguments &o, int64_t i, int32_t row)
{
	return i >= 0 && i < o.n && o.sorted[i].row == row;
}

/* Where the sum of a run goes that ends before place `end`: to the table, or to one of the chunk's parts. */
static __device__ __forceinline__ float *run_target(const run_arguments &o, int64_t chunk, int64_t begin, int64_t end,
                                                    int32_t row)
{
	const int64_t first = chunk * CHUNK;
	if (begin == first && is_row(o, first - 1, row))
		return o.parts + chunk * 2 * o.width;
	if (end == first + CHUNK && is_row(o, end, row))
		return o.parts + (chunk * 2 + 1) * o.width;
	return o.dtable + row * o.width;
}

/* A warp: CHUNK sorted places, WARP · N columns. */
template <class T, int N> static __global__ void __launch_bounds__(THREADS) sum_runs_kernel(run_arguments o)
{
	const int lane = threadIdx.x % WARP;
	const int64_t chunk = grid_warp(), first = chunk * CHUNK, column = ((int64_t)blockIdx.y * WARP + lane) * N;
	const int count = o.n - first < CHUNK ? (int)(o.n - first) : (int)CHUNK;
	const entry mine = lane < count ? o.sorted[first + lane] : entry{(int32_t)o.rows, 0};
	numbers<N> sum = {};
	int begin = 0;
	for (int i = 0; i < count; i++) {
		const int32_t row = __shfl_sync(ALL_LANES, mine.row, i), place = __shfl_sync(ALL_LANES, mine.place, i);
		const int32_t after = __shfl_sync(ALL_LANES, mine.row, i + 1 < count ? i + 1 : i);
		if (row >= o.rows)
			break;
		if (column < o.width)
			sum = sum_of(sum, load<N>((const T *)o.dy + place * o.width + column));
		if (i + 1 < count && after == row)
			continue;
		if (column < o.width)
			store(run_target(o, chunk, first + begin, first + i + 1, row) + column, sum);
		sum = {};
		begin = i + 1;
	}
}

/* Runs over several chunks: the warp of the chunk where one begins adds its parts. */
template <int N> static __global__ void __launch_bounds__(THREADS) join_runs_kernel(run_arguments o)
{
	const int64_t chunk = grid_warp(), last = (chunk + 1) * CHUNK - 1;
	const int64_t column = ((int64_t)blockIdx.y * WARP + threadIdx.x % WARP) * N;
	if (last + 1 >= o.n || column >= o.width)
		return;
	const int32_t row = o.sorted[last].row;
	const bool inside = !(is_row(o, chunk * CHUNK, row) && is_row(o, chunk * CHUNK - 1, row));
	if (row >= o.rows || !inside || !is_row(o, last + 1, row))
		return;
	numbers<N> sum = load<N>(o.parts + (chunk * 2 + 1) * o.width + column);
	for (int64_t c = chunk + 1; is_row(o, c * CHUNK, row); c++)
		sum = sum_of(sum, load<N>(o.parts + c * 2 * o.width + column));
	store(o.dtable + row * o.width + column, sum);
}

/* --- gather_grad ------------------------------------------------------------------------------- */

struct grad_sizes {
	int64_t n, tiles, chunks, entry_bytes, count_bytes, part_bytes;
};

static int64_t cache_lines(int64_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

static grad_sizes grad_sizes_of(const op_call *call)
{
	grad_sizes s;
	s.n = shape_count(call->in[0].shape);
	s.tiles = (s.n + TILE - 1) / TILE;
	s.chunks = (s.n + CHUNK - 1) / CHUNK;
	s.entry_bytes = cache_lines(s.n * (int64_t)sizeof(entry));
	s.count_bytes = cache_lines(s.tiles * DIGITS * (int64_t)sizeof(unsigned));
	s.part_bytes = s.chunks * 2 * shape_last(call->in[1].shape) * (int64_t)sizeof(float);
	return s;
}

size_t cuda_gather_grad_scratch(const backend *b, const op_call *call)
{
	(void)b;
	const grad_sizes s = grad_sizes_of(call);
	return (size_t)(2 * s.entry_bytes + s.count_bytes + s.part_bytes);
}

/* The places in order of their rows, in one of the two `entries`. */
static status sort_places(backend *b, const op_call *call, const grad_sizes &s, entry *const entries[2],
                          unsigned *counts, const entry **sorted)
{
	const gather_grad_params *p = (const gather_grad_params *)call->params;
	sort_arguments o = {};
	o.index = (const int32_t *)call->in[0].data;
	o.counts = counts;
	o.n = s.n;
	o.rows = p->rows;
	o.padding_row = p->padding_row;
	for (int turn = 0; turn == 0 || p->rows >> o.shift; turn ^= 1, o.shift += DIGIT_BITS) {
		o.to = entries[turn];
		TRY(cuda_launch(b, count_kernel, (unsigned)s.tiles, THREADS, DIGITS * sizeof(unsigned), o));
		TRY(cuda_launch(b, scan_kernel, 1, SCAN_THREADS, SCAN_THREADS / WARP * sizeof(unsigned), counts,
		                s.tiles * DIGITS));
		TRY(cuda_launch(b, place_kernel, (unsigned)s.tiles, THREADS, WARPS * DIGITS * sizeof(unsigned), o));
		o.from = *sorted = o.to;
	}
	return STATUS_OK;
}

template <class T, int N> static status sum_runs(backend *b, const run_arguments &o, int64_t chunks)
{
	const dim3 grid((unsigned)((chunks + WARPS - 1) / WARPS), (unsigned)((o.width + WARP * N - 1) / (WARP * N)));
	TRY(cuda_launch(b, sum_runs_kernel<T, N>, grid, THREADS, 0, o));
	return cuda_launch(b, join_runs_kernel<N>, grid, THREADS, 0, o);
}

status cuda_gather_grad(backend *b, const op_call *call)
{
	const grad_sizes s = grad_sizes_of(call);
	const tensor *dy = &call->in[1], *dtable = &call->out[0];
	const int64_t width = shape_last(dy->shape);
	op_call zeros = {};
	const fill_params nothing = {dtable->shape, 0.0f};
	zeros.params = &nothing;
	zeros.n_out = 1;
	zeros.out[0] = *dtable;
	TRY(cuda_fill(b, &zeros));
	if (s.n == 0 || width == 0 || shape_count(dtable->shape) == 0)
		return STATUS_OK;
	char *at = (char *)call->scratch;
	entry *const entries[2] = {(entry *)at, (entry *)(at + s.entry_bytes)};
	at += 2 * s.entry_bytes;
	const entry *sorted = nullptr;
	TRY(sort_places(b, call, s, entries, (unsigned *)at, &sorted));
	const run_arguments o = {
	    sorted, dy->data, (float *)dtable->data, (float *)(at + s.count_bytes), s.n, shape_rows(dtable->shape),
	    width};
	return cuda_by_type(dy->type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		return cuda_packs(dy->type, width) ? sum_runs<T, packed<T>::N>(b, o, s.chunks)
		                                   : sum_runs<T, 1>(b, o, s.chunks);
	});
}
