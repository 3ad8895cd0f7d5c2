/* gather, gather_grad.
 *
 * gather: a warp copies a row, in the widest units that divide it. For packed tables (panel.h) a lane reads a word of
 * 32 bits, which has 1, 2 or 4 inputs of the row. Bytes per element: the stored ones, read and written. Words of a row
 * are 64 bytes apart in a panel, so each costs a sector of 32.
 *
 * gather_grad: the positions in `index` are sorted by index, stably, so the positions of a table's row follow one
 * another in order. The sort is a radix sort, DIGIT_BITS per pass (count, place), of 8 bytes per position and pass.
 * Every block of the placing kernel adds up the counts of all tiles itself, so that no single-block kernel is needed
 * between; there are at most MOST_TILES. A position with an index out of range is sorted with the last row's and
 * skipped.
 *
 * Then a warp takes CHUNK sorted positions and a strip of columns, and sums runs of equal indices. A run within the
 * chunk is a row of the result. For a run that spans several chunks, every chunk leaves a partial sum, and a second
 * kernel adds these in order. So a very frequent row is summed by many warps, an absent one costs only its zeros, and
 * repeated calls give equal bits.
 *
 * Bytes per element: 4 or 2 read of dy; 4 of dtable for zeros, and 4 where there is an entry. Partial sums, in f32,
 * have at most a quarter of dy's elements. */
#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"
#include "cuda/panels.cuh"
#include "cuda/program.cuh"

enum { THREADS = GATHER_THREADS };

/* Index of the warp in the grid. */
static __device__ __forceinline__ int64_t grid_warp(void)
{
	return grid_first() / WARP;
}
static __device__ __forceinline__ int64_t grid_warps(void)
{
	return grid_stride() / WARP;
}

/* --- gather ------------------------------------------------------------------------------- */

template <class U> static __global__ void __launch_bounds__(THREADS) gather_kernel(gather_call<U> c)
{
	gather_rows(c, grid_warp(), grid_warps());
}

template <int SIDE>
static __global__ void __launch_bounds__(THREADS)
    gather_panels_kernel(float *y, const unsigned char *panels, const int32_t *index, int64_t n, int64_t rows,
                         int64_t width, int64_t stride)
{
	for (int64_t i = grid_warp(); i < n; i += grid_warps()) {
		const int64_t row = index[i];
		const bool exists = row >= 0 && row < rows;
		const unsigned char *panel = panels + (exists ? row / PANEL_WIDTH : 0) * stride;
		for (int64_t j = threadIdx.x % WARP; j * SIDE < width; j += WARP) {
			float w[SIDE] = {};
			if (exists)
				panel_unpack<SIDE>(w, panel, j, (int)(row % PANEL_WIDTH));
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

template <class U> static status launch_gather(backend *b, const gather_call<U> &c)
{
	return cuda_launch(b, gather_kernel<U>, cuda_blocks(b, c.n, GATHER_WARPS), THREADS, 0, c);
}

static status launch_phase(backend *b, const program_phase &f)
{
	return launch_gather(b, f.gather);
}

/* Add the call to a program as a phase, with GATHER_WARPS rows per piece. */
static bool add_phase(backend *b, const gather_call<uint4> &c)
{
	program_phase f = {};
	f.kind = PROGRAM_GATHER;
	f.blocks = cuda_blocks(b, c.n, GATHER_WARPS);
	f.gather = c;
	return c.n > 0 && c.n <= ROWS && cuda_program_add(b, f, 0, launch_phase);
}

template <class U> static status gather_units(const gather_arguments &o, size_t row_bytes)
{
	const gather_call<U> c = {(U *)o.call->out[0].data, (const U *)o.call->in[0].data, o.index, o.n, o.rows,
	                          (int64_t)(row_bytes / sizeof(U))};
	if constexpr (std::is_same_v<U, uint4>)
		if (add_phase(o.b, c))
			return STATUS_OK;
	return launch_gather(o.b, c);
}

template <int SIDE> static status gather_panels(const gather_arguments &o)
{
	return cuda_launch(o.b, gather_panels_kernel<SIDE>, cuda_blocks(o.b, o.n, GATHER_WARPS), THREADS, 0,
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
	ROUNDS = 8, /* entries per thread; more if there would be too many tiles */
	MOST_TILES = 256,
	CHUNK = WARP,
};
static_assert((int)DIGITS == (int)THREADS, "a thread for every digit");

/* A position in `index` and the row that it adds to; -1, sorted with the last row, if it adds to none. */
struct entry {
	int32_t row, place;
};

struct sort_arguments {
	const entry *from; /* NULL: built from the indices */
	entry *to;
	const int32_t *index;
	unsigned *counts; /* [tiles, DIGITS] */
	int64_t n, rows, padding_row;
	int shift, rounds;
};

static __device__ __forceinline__ entry entry_at(const sort_arguments &o, int64_t i)
{
	if (o.from)
		return o.from[i];
	const int32_t row = o.index[i];
	const bool adds = row >= 0 && row < o.rows && row != o.padding_row;
	return {adds ? row : (int32_t)(o.rows - 1), adds ? (int32_t)i : -1};
}

static __device__ __forceinline__ unsigned digit_of(const sort_arguments &o, entry e)
{
	return (unsigned)e.row >> o.shift & (DIGITS - 1);
}

/* Position of a thread in a round; every warp has rounds · WARP neighbours of the block's tile. */
static __device__ __forceinline__ int64_t place_of(const sort_arguments &o, int round)
{
	return (((int64_t)blockIdx.x * GATHER_WARPS + threadIdx.x / WARP) * o.rounds + round) * WARP + threadIdx.x % WARP;
}

/* Count how many of the thread's entries in this round have each digit, in the counts of its block or warp. */
static __device__ __forceinline__ void count_places(const sort_arguments &o, unsigned *count)
{
	for (int i = 0; i < o.rounds; i++)
		if (place_of(o, i) < o.n)
			atomicAdd(&count[digit_of(o, entry_at(o, place_of(o, i)))], 1u);
}

static __global__ void __launch_bounds__(THREADS) count_kernel(sort_arguments o)
{
	unsigned *count = shared_memory<unsigned>();
	count[threadIdx.x] = 0;
	__syncthreads();
	count_places(o, count);
	__syncthreads();
	o.counts[blockIdx.x * DIGITS + threadIdx.x] = count[threadIdx.x];
}

/* Lanes with this lane's digit, including itself; those without an entry have digit DIGITS. */
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

/* Offset of the block's first entry with the thread's digit: after all smaller digits, and after this digit in earlier
 * tiles. space: GATHER_WARPS numbers. */
static __device__ __forceinline__ unsigned first_of_digit(const sort_arguments &o, unsigned *space)
{
	const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	unsigned before = 0, total = 0;
	for (unsigned tile = 0; tile < gridDim.x; tile++) {
		const unsigned count = o.counts[tile * DIGITS + threadIdx.x];
		before += tile < blockIdx.x ? count : 0;
		total += count;
	}
	unsigned sum = total;
	for (unsigned by = 1; by < WARP; by *= 2) {
		const unsigned left = __shfl_up_sync(ALL_LANES, sum, by);
		sum += lane >= by ? left : 0;
	}
	if (lane == WARP - 1)
		space[warp] = sum;
	__syncthreads();
	for (unsigned w = 0; w < warp; w++)
		before += space[w];
	return before + sum - total;
}

/* Offset of the next entry of every digit, per warp, [GATHER_WARPS, DIGITS]: first its count, then the sum of the
 * earlier counts. */
static __global__ void __launch_bounds__(THREADS) place_kernel(sort_arguments o)
{
	unsigned *all = shared_memory<unsigned>() + GATHER_WARPS, *next = all + threadIdx.x / WARP * DIGITS;
	const unsigned lane = threadIdx.x % WARP;
	for (int i = threadIdx.x; i < GATHER_WARPS * DIGITS; i += THREADS)
		all[i] = 0;
	__syncthreads();
	count_places(o, next);
	unsigned at = first_of_digit(o, shared_memory<unsigned>()); /* has a barrier, after which all have counted */
	for (int w = 0; w < GATHER_WARPS; w++) {
		const unsigned count = all[w * DIGITS + threadIdx.x];
		all[w * DIGITS + threadIdx.x] = at;
		at += count;
	}
	__syncthreads();
	for (int i = 0; i < o.rounds; i++) {
		const bool exists = place_of(o, i) < o.n;
		const entry e = exists ? entry_at(o, place_of(o, i)) : entry{};
		const unsigned digit = exists ? digit_of(o, e) : (unsigned)DIGITS, alike = lanes_alike(digit);
		const unsigned rank = __popc(alike & ((1u << lane) - 1));
		if (exists)
			o.to[next[digit] + rank] = e;
		__syncwarp();
		if (exists && rank == 0)
			next[digit] += __popc(alike);
		__syncwarp();
	}
}

/* --- gather_grad: the sums ------------------------------------------------------------------- */

struct run_arguments {
	const entry *sorted;
	const void *dy;
	float *dtable;
	float *parts; /* [chunks, 2, width]: the runs that continue from the previous chunk and in the next */
	int64_t n, width;
};

/* True if sorted entry i exists and its row is this one. */
static __device__ __forceinline__ bool is_row(const run_arguments &o, int64_t i, int32_t row)
{
	return i >= 0 && i < o.n && o.sorted[i].row == row;
}

/* Address for the sum of a run that ends before entry `end`: in the table, or in one of the chunk's parts. */
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

/* A warp: CHUNK sorted entries, WARP · N columns. */
template <class T, int N> static __global__ void __launch_bounds__(THREADS) sum_runs_kernel(run_arguments o)
{
	const int lane = threadIdx.x % WARP;
	const int64_t chunk = grid_warp(), first = chunk * CHUNK, column = ((int64_t)blockIdx.y * WARP + lane) * N;
	const int count = o.n - first < CHUNK ? (int)(o.n - first) : (int)CHUNK;
	const int32_t my_row = lane < count ? o.sorted[first + lane].row : -1;
	const int32_t my_place = lane < count ? o.sorted[first + lane].place : -1;
	const int64_t from = column < o.width ? column : 0; /* past the width: column 0, no branch */
	numbers<N> sum = {};
	int begin = 0;
	for (int i = 0; i < count; i++) {
		const int32_t row = __shfl_sync(ALL_LANES, my_row, i), place = __shfl_sync(ALL_LANES, my_place, i);
		const int32_t after = __shfl_sync(ALL_LANES, my_row, i + 1 < count ? i + 1 : i);
		const numbers<N> more = load<N>((const T *)o.dy + (place < 0 ? 0 : place) * o.width + from);
#pragma unroll
		for (int j = 0; j < N; j++)
			sum.at[j] = __fadd_rn(sum.at[j], place < 0 ? 0.0f : more.at[j]);
		if (i + 1 < count && after == row)
			continue;
		float *target = run_target(o, chunk, first + begin, first + i + 1, row);
		if (column < o.width)
			store(target + column, sum);
		sum = {};
		begin = i + 1;
	}
}

/* One past the run of this row that contains entry `at`. */
static __device__ __forceinline__ int64_t run_end(const run_arguments &o, int64_t at, int32_t row)
{
	int64_t end = o.n;
	while (at + 1 < end) {
		const int64_t middle = (at + end) / 2;
		if (o.sorted[middle].row == row)
			at = middle;
		else
			end = middle;
	}
	return end;
}

/* Runs over several chunks: the block of the chunk in which a run begins adds its parts, each warp every
 * GATHER_WARPS-th, since a frequent token has thousands. */
template <int N> static __global__ void __launch_bounds__(THREADS) join_runs_kernel(run_arguments o)
{
	float *space = shared_memory<float>(); /* [GATHER_WARPS, WARP · N] */
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	const int64_t chunk = blockIdx.x, next = (chunk + 1) * CHUNK;
	const int64_t column = ((int64_t)blockIdx.y * WARP + lane) * N;
	if (next >= o.n)
		return; /* here and below: for the whole block */
	const int32_t row = o.sorted[next].row;
	const bool before = is_row(o, chunk * CHUNK, row) && is_row(o, chunk * CHUNK - 1, row);
	if (o.sorted[next - 1].row != row || before)
		return;
	const int64_t last = (run_end(o, next, row) - 1) / CHUNK;
	numbers<N> sum = {};
	if (column < o.width && warp == 0)
		sum = load<N>(o.parts + (chunk * 2 + 1) * o.width + column);
#pragma unroll 4
	for (int64_t c = chunk + 1 + warp; c <= last; c += GATHER_WARPS)
		if (column < o.width)
			sum = sum_of(sum, load<N>(o.parts + c * 2 * o.width + column));
	store(space + threadIdx.x * N, sum);
	__syncthreads();
	if (warp > 0 || column >= o.width)
		return;
	for (int w = 1; w < GATHER_WARPS; w++)
		sum = sum_of(sum, load<N>(space + (w * WARP + lane) * N));
	store(o.dtable + row * o.width + column, sum);
}

/* --- gather_grad ------------------------------------------------------------------------------- */

struct grad_sizes {
	int64_t n, rounds, tiles, chunks, entry_bytes, count_bytes, part_bytes;
};

static int64_t cache_lines(int64_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

static grad_sizes grad_sizes_of(const op_call *call)
{
	grad_sizes s;
	s.n = shape_count(call->in[0].shape);
	s.rounds = (s.n + MOST_TILES * THREADS - 1) / (MOST_TILES * THREADS);
	s.rounds = s.rounds < ROUNDS ? (int64_t)ROUNDS : s.rounds;
	s.tiles = (s.n + s.rounds * THREADS - 1) / (s.rounds * THREADS);
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

/* Sort the positions by row, into one of the two `entries`. */
static status sort_places(backend *b, const op_call *call, const grad_sizes &s, entry *const entries[2],
                          unsigned *counts, const entry **sorted)
{
	const gather_grad_params *p = (const gather_grad_params *)call->params;
	sort_arguments o = {};
	o.index = (const int32_t *)call->in[0].data;
	o.counts = counts;
	o.n = s.n;
	o.rows = shape_rows(call->out[0].shape);
	o.padding_row = p->padding_row;
	o.rounds = (int)s.rounds;
	for (int turn = 0; o.shift == 0 || (o.rows - 1) >> o.shift; turn ^= 1, o.shift += DIGIT_BITS) {
		o.to = entries[turn];
		TRY(cuda_launch(b, count_kernel, cuda_extent(s.tiles), THREADS, DIGITS * sizeof(unsigned), o));
		TRY(cuda_launch(b, place_kernel, cuda_extent(s.tiles), THREADS, GATHER_WARPS * (1 + DIGITS) * sizeof(unsigned),
		                o));
		o.from = *sorted = o.to;
	}
	return STATUS_OK;
}

template <class T, int N> static status sum_runs(backend *b, const run_arguments &o, int64_t chunks)
{
	const unsigned strips = cuda_parts(o.width, WARP * N);
	TRY(cuda_launch(b, sum_runs_kernel<T, N>, dim3(cuda_parts(chunks, GATHER_WARPS), strips), THREADS, 0, o));
	return cuda_launch(b, join_runs_kernel<N>, dim3(cuda_extent(chunks), strips), THREADS,
	                   THREADS * N * sizeof(float), o);
}

status cuda_gather_grad(backend *b, const op_call *call)
{
	const grad_sizes s = grad_sizes_of(call);
	const tensor *dy = &call->in[1], *dtable = &call->out[0];
	const int64_t width = shape_last(dy->shape);
	op_call zeros = {};
	fill_params nothing = {};
	nothing.shape = dtable->shape;
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
	    sorted, dy->data, (float *)dtable->data, (float *)(at + s.count_bytes), s.n, width};
	return cuda_by_type(dy->type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		return cuda_packs(dy->type, width) ? sum_runs<T, packed<T>::N>(b, o, s.chunks)
		                                   : sum_runs<T, 1>(b, o, s.chunks);
	});
}
