/* Programs (program.cuh): their kernel and its launch.
 *
 * A phase ends with a barrier of the block and an addition to memory. The next begins with a poll that sees it, a fence
 * and another barrier. Everything that does not depend on the previous phase comes before the poll: the phase's
 * arguments, the weights of layernorm, biases, and the ring's weights. Counters are 128 bytes apart. A poll is a relaxed
 * load, since an acquire would empty the first-level cache each time.
 *
 * With one row a block makes the operands of x once per phase, also if it has several pieces; with more, the sums and
 * scales of layernorm and codes.
 *
 * A stage is STAGE_STEPS steps of a slice of one panel (f32: 16 inputs of four slices), and each warp has its own. So a ring
 * needs no barrier of the block: __syncwarp separates the reads of a stage from the request that overwrites it, and one
 * lane issues that request. Rejected: a warp that only requests. It would have to learn from eight warps that a stage
 * is free, and the kernels' barriers of all threads would have to become barriers of some. */
#include "cuda/program.cuh"

#include <stdlib.h>

#include "cuda/linear_narrow.cuh"
#include "cuda/linear_row.cuh"

enum {
	LEAST_PHASES = 8,       /* for one launch; fewer are launched as kernels */
	MOST_ARGUMENTS = 32764, /* bytes per kernel (CUDA 12.1 and later) */
	MOST_PHASES = (MOST_ARGUMENTS - 64) / sizeof(program_phase),
	PHASE_WORDS = sizeof(program_phase) / sizeof(unsigned),
	APART = 128 / sizeof(unsigned), /* words between counters */
	STAGE_STEPS = 8,
	STAGE_BYTES = STAGE_STEPS * STEP_BYTES,
	MOST_STAGES = 6 /* per warp */
};

struct program {
	int count, stages;
	unsigned rings; /* offset of the rings in shared memory; the running phase precedes them */
	dtype type;     /* all weights have it; DTYPE_F32: no weights yet */
	int lanes;      /* lanes of every head; 0: no heads yet */
	program_phase phase[MOST_PHASES];
};

struct cuda_program {
	unsigned *arrived; /* device memory: blocks that ended each of MOST_PHASES, then the program; zeros between launches */
	status (*launch[MOST_PHASES])(backend *b, const program_phase &phase);
	unsigned shared; /* most bytes of a piece */
	program list;
};

/* --- rings ------------------------------------------------------------------------------------ */

static __device__ __host__ __forceinline__ bool is_product(const program_phase &f)
{
	return f.kind == PROGRAM_ROW || f.kind == PROGRAM_NARROW;
}

/* The running block's first piece of a phase; at least f.blocks if it has none. */
static __device__ __forceinline__ unsigned first_piece(const program_phase &f)
{
	return blockIdx.x + (blockIdx.x < f.first ? gridDim.x : 0) - f.first;
}

/* Weights as floats. */
struct f32_words {
	enum { HEADER = 0 };
};

/* Slices of a warp; bytes of one in a stage; bytes of a panel's unit along K, a step or for f32 an input. */
template <class W> struct ring_form {
	enum { SLICES_EACH = 1, EACH_BYTES = STAGE_BYTES, UNIT_BYTES = STEP_BYTES };
};
template <> struct ring_form<f32_words> {
	enum {
		SLICES_EACH = F32_SLICES / PROGRAM_WARPS,
		EACH_BYTES = STAGE_BYTES / SLICES_EACH,
		UNIT_BYTES = PANEL_WIDTH * sizeof(float)
	};
};

/* Units first … first + count - 1 of the warp's first slice; `rest` units from `first` to the panel's end. */
struct slice_units {
	int first, count, rest;
};

template <class W> static __device__ __forceinline__ slice_units units_of(const panel_product &p)
{
	const int length = (int)p.slice, all = (int)(std::is_same<W, f32_words>::value ? p.k : p.steps);
	const int first = (int)threadIdx.x / WARP * ring_form<W>::SLICES_EACH * length;
	return {first, max(min(all - first, length), 0), all - first};
}

/* A warp's ring. */
struct weight_ring {
	unsigned char *stage; /* [count][STAGE_BYTES] */
	copy_barrier *full;   /* [count] */
	int count;
	int at;          /* the stage that is read next */
	unsigned parity; /* the phase of its copy barrier */
	/* Lane 0: the next request. */
	int phase, to; /* phase -1: before the first */
	unsigned piece;
	const unsigned char *from; /* the warp's first slice, after `done` bytes of each of its slices */
	int done, left;            /* left: bytes of the first slice; 0 at the end of the program */
	int slice, rest;           /* bytes of a whole slice; from the first slice to the panel's end */
};

/* Continue with the next slice that has weights. */
template <class W> static __device__ __forceinline__ void next_slice(const program &p, weight_ring &r)
{
	do {
		r.piece += gridDim.x;
		while (r.phase < 0 || !is_product(p.phase[r.phase]) || r.piece >= p.phase[r.phase].blocks) {
			if (++r.phase >= p.count) {
				r.phase = p.count - 1;
				return;
			}
			r.piece = first_piece(p.phase[r.phase]);
		}
		int64_t panel;
		const panel_product o = panel_product_of<1>(p.phase[r.phase].linear.product,
		                                            p.phase[r.phase].linear.chain.siblings, r.piece, panel);
		const slice_units s = units_of<W>(o);
		r.from = o.panels + panel * o.panel_bytes + W::HEADER + (int64_t)s.first * ring_form<W>::UNIT_BYTES;
		r.done = 0;
		r.left = s.count * ring_form<W>::UNIT_BYTES;
		r.slice = (int)o.slice * ring_form<W>::UNIT_BYTES;
		r.rest = s.rest * ring_form<W>::UNIT_BYTES;
	} while (r.left == 0);
}

/* Request the next stage for place r.to. */
template <class W> static __device__ __forceinline__ void request_stage(const program &p, weight_ring &r)
{
	enum { COUNT = ring_form<W>::SLICES_EACH, EACH = ring_form<W>::EACH_BYTES };
	if (r.left == 0)
		next_slice<W>(p, r);
	if (r.left == 0)
		return;
	int bytes[COUNT], all = 0;
#pragma unroll
	for (int i = 0; i < COUNT; i++) {
		bytes[i] = max(min(min(r.slice, r.rest - i * r.slice) - r.done, (int)EACH), 0);
		all += bytes[i];
	}
	copy_barrier_expect(r.full + r.to, all);
#pragma unroll
	for (int i = 0; i < COUNT; i++)
		if (bytes[i] > 0)
			copy_bulk(r.stage + r.to * STAGE_BYTES + i * EACH, r.from + i * r.slice, bytes[i], r.full + r.to);
	r.from += EACH;
	r.done += EACH;
	r.left = max(r.left - (int)EACH, 0);
	r.to = r.to + 1 == r.count ? 0 : r.to + 1;
}

/* Fill the warp's ring, which follows those of earlier warps. */
template <class W> static __device__ __forceinline__ weight_ring open_ring(const program &p)
{
	const int warp = threadIdx.x / WARP;
	weight_ring r = {};
	r.count = p.stages;
	r.stage = shared_memory<unsigned char>(p.rings) + warp * r.count * STAGE_BYTES;
	r.full = shared_memory<copy_barrier>(p.rings + PROGRAM_WARPS * r.count * STAGE_BYTES) + warp * r.count;
	r.phase = -1;
	if (threadIdx.x % WARP == 0) {
		for (int i = 0; i < r.count; i++)
			copy_barrier_init(r.full + i);
		wgmma_publish(); /* the barriers, to the copies */
		for (int i = 0; i < r.count; i++)
			request_stage<W>(p, r);
	}
	__syncwarp();
	return r;
}

/* End the reads of a stage by all lanes: request another for its place, and continue with the next stage. */
template <class W> static __device__ __forceinline__ void leave_stage(const program &p, weight_ring &r)
{
	wgmma_publish(); /* the copy into the stage follows the reads of it */
	__syncwarp();
	if (threadIdx.x % WARP == 0)
		request_stage<W>(p, r);
	if (++r.at == r.count) {
		r.at = 0;
		r.parity ^= 1;
	}
}

/* Read the lane's weights of the next stage, as load_weights does. */
template <class W>
static __device__ __forceinline__ void take_stage(const program &p, weight_ring &r, int steps, unsigned a[STAGE_STEPS][4])
{
	const int lane = threadIdx.x % WARP, odd = lane % 2 * PANEL_WIDTH * 4;
	const unsigned char *from = r.stage + r.at * STAGE_BYTES + (2 * (lane % 4) * PANEL_WIDTH + 2 * (lane / 4)) * 4;
	copy_barrier_wait(r.full + r.at, r.parity);
#pragma unroll
	for (int i = 0; i < STAGE_STEPS; i++) {
		if (i >= steps)
			break;
		/* Odd lanes read their second word first, which halves the conflicts of banks. */
		const uint2 one = *(const uint2 *)(from + i * STEP_BYTES + odd),
		            two = *(const uint2 *)(from + i * STEP_BYTES + PANEL_WIDTH * 4 - odd);
		a[i][0] = odd ? two.x : one.x;
		a[i][1] = odd ? two.y : one.y;
		a[i][2] = odd ? one.x : two.x;
		a[i][3] = odd ? one.y : two.y;
	}
	leave_stage<W>(p, r);
}

/* --- phases ----------------------------------------------------------------------------------- */

/* Wait until `workers` blocks have arrived; 0: do not wait. */
struct phase_wait {
	const unsigned *arrived;
	unsigned workers;

	__device__ __forceinline__ void operator()(void) const
	{
		if (workers == 0)
			return;
		if (threadIdx.x == 0) {
			while (poll_relaxed(arrived) < workers)
				;
			fence_acquire();
		}
		__syncthreads();
	}
};

/* Shared memory of a piece: sums of two pieces in turn, so that one barrier per piece is enough. The operands follow. */
template <class W> struct row_pieces {
	row_space<W> row;
	typename W::sum others[SLICES][PANEL_WIDTH];
};

/* The block's pieces of a product of one row, from `piece` on; as row_panel of linear_row.cu. */
template <class W, x_source SOURCE>
static __device__ __forceinline__ void run_row(const program &all, const program_phase &f, unsigned piece, weight_ring &ring,
                                               const phase_wait &wait)
{
	typedef typename W::sum sum;
	typedef typename W::operand operand;
	enum { PACKS = STEP_WORDS * (int)W::GROUP / 4 };
	const panel_product &whole = f.linear.product;
	const panel_chain &c = f.linear.chain;
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	const slice_units mine = units_of<W>(whole);
	row_pieces<W> *s = shared_memory<row_pieces<W>>();
	operand *operands = shared_memory<operand>(sizeof *s);
	int64_t panel;
	panel_product p = panel_product_of<1>(whole, c.siblings, piece, panel);
	norm_share m;
	closing o = {};
	if (SOURCE == X_NORM)
		m = norm_share_of(c.norm);
	if (threadIdx.x < PANEL_WIDTH)
		o = closing_of<W::EXACT>(p, panel, 0, 1, threadIdx.x);
	wait();
	if (threadIdx.x < PANEL_WIDTH)
		read_operands(c, o);
	float scale = 0.0f;
	if constexpr (SOURCE == X_NORM)
		scale = make_normalised<W>(p, c, m, piece, &s->row, operands);
	else if constexpr (SOURCE == X_BYTES)
		scale = make_bytes<W>(p, &s->row, operands);
	else
		bring_packs<W>(p, operands, mine.first * PACKS, (mine.first + mine.count) * PACKS);
	const operand *from = operands + mine.first * 4 + lane % 4;
	sum(*sums)[PANEL_WIDTH] = s->row.sums, (*others)[PANEL_WIDTH] = s->others;
	for (;;) {
		const unsigned next = piece + gridDim.x;
		panel_product after = p;
		closing then = {};
		if (next < f.blocks) {
			after = panel_product_of<1>(whole, c.siblings, next, panel);
			if (threadIdx.x < PANEL_WIDTH) {
				then = closing_of<W::EXACT>(after, panel, 0, 1, threadIdx.x);
				read_operands(c, then);
			}
		}
		sum d[4] = {};
#pragma unroll 1
		for (int step = 0; step < mine.count; step += STAGE_STEPS) {
			operand x[STAGE_STEPS];
			unsigned a[STAGE_STEPS][4];
#pragma unroll
			for (int i = 0; i < STAGE_STEPS; i++) {
				x[i] = {};
				if (lane < 4 && step + i < mine.count)
					x[i] = from[(step + i) * 4];
			}
			take_stage<W>(all, ring, mine.count - step, a);
#pragma unroll
			for (int i = 0; i < STAGE_STEPS; i++) {
				if (step + i >= mine.count)
					break;
				W::product(d, a[i], x[i]);
			}
		}
		if (lane % 4 == 0) { /* column 0 of the product; its rows i and i + 8 are outputs 2i and 2i + 1 */
			sums[warp][lane / 2] = d[0];
			sums[warp][lane / 2 + 1] = d[2];
		}
		__syncthreads();
		if (o.exists) {
			sum total = 0;
			for (int j = 0; j < SLICES && j * (int)whole.slice < (int)whole.steps; j++)
				total += sums[j][threadIdx.x];
			if constexpr (W::EXACT)
				close(p, c, o, with_scales(total, scale, o.scale));
			else
				close(p, c, o, total);
		}
		if (next >= f.blocks)
			break;
		piece = next;
		p = after;
		o = then;
		sum(*const swapped)[PANEL_WIDTH] = sums;
		sums = others;
		others = swapped;
	}
}

/* The block's pieces of a product of a few rows; as narrow_panel of linear_narrow.cuh. */
template <class W, x_source SOURCE>
static __device__ __forceinline__ void run_narrow(const program &all, const program_phase &f, unsigned piece,
                                                  weight_ring &ring, const phase_wait &wait)
{
	typedef typename W::sum sum;
	enum { BYTES = (int)W::GROUP == PANEL_GROUP };
	const panel_product &whole = f.linear.product;
	const panel_chain &c = f.linear.chain;
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, rows = (int)whole.rows;
	const slice_units mine = units_of<W>(whole);
	const narrow_space space =
	    narrow_space_of(c.norm, SOURCE, BYTES, ROWS, SLICES, shared_memory<unsigned char>());
	sum *sums = shared_memory<sum>(space.bytes); /* [slice][element][lane] */
	int64_t panel;
	panel_product p = panel_product_of<1>(whole, c.siblings, piece, panel);
	if (SOURCE == X_NORM)
		bring_norm(c.norm, space);
	closing o = closing_of<BYTES>(p, panel, 0, rows, threadIdx.x);
	wait();
	read_operands(c, o);
	open_rows<SOURCE, BYTES>(p, c, space, {piece, f.blocks, 0}, rows);
	narrow_row r = row_of<SOURCE>(p, c.norm, space, 0, lane / 4, rows);
	if (BYTES && r.exists)
		r.scale = scale_of<SOURCE>(p, space, 0, lane / 4);
	for (;;) {
		sum d[4] = {};
#pragma unroll 1
		for (int step = 0; step < mine.count; step += STAGE_STEPS) {
			typename W::operand x[STAGE_STEPS];
			unsigned a[STAGE_STEPS][4];
#pragma unroll
			for (int i = 0; i < STAGE_STEPS; i++)
				x[i] = share_of<W, SOURCE>(p, space, r, lane / 4, (mine.first + step + i) * 4 + lane % 4);
			take_stage<W>(all, ring, mine.count - step, a);
#pragma unroll
			for (int i = 0; i < STAGE_STEPS; i++) {
				if (step + i >= mine.count)
					break;
				W::product(d, a[i], x[i]);
			}
		}
#pragma unroll
		for (int e = 0; e < 4; e++)
			sums[(warp * 4 + e) * WARP + lane] = d[e];
		__syncthreads();
		if (o.exists) {
			const int output = threadIdx.x % PANEL_WIDTH;
			const sum *from = sums + (output % 2 * 2 + o.row % 2) * WARP + output / 2 * 4 + o.row / 2;
			sum total = 0;
			for (int j = 0; j < SLICES && j * (int)whole.slice < (int)whole.steps; j++)
				total += from[j * 4 * WARP];
			if constexpr (BYTES)
				close(p, c, o, with_scales(total, scale_of<SOURCE>(p, space, 0, o.row), o.scale));
			else
				close(p, c, o, total);
		}
		piece += gridDim.x;
		if (piece >= f.blocks)
			break;
		p = panel_product_of<1>(whole, c.siblings, piece, panel);
		o = closing_of<BYTES>(p, panel, 0, rows, threadIdx.x);
		read_operands(c, o);
		if (SOURCE == X_NORM && c.normalised)
			store_normalised(p, c, space, {piece, f.blocks, 0}, rows);
		__syncthreads(); /* the sums have been read */
	}
}

/* The block's pieces of a product of up to R rows with weights as floats; as f32_narrow_kernel of linear_narrow.cu, but
 * with eight lanes per slice and two outputs each. */
template <int R, x_source SOURCE>
static __device__ __forceinline__ void run_f32(const program &all, const program_phase &f, unsigned piece, weight_ring &ring,
                                               const phase_wait &wait)
{
	enum { FORM = ring_form<f32_words>::SLICES_EACH, EACH = ring_form<f32_words>::EACH_BYTES, AT_ONCE = EACH / (PANEL_WIDTH * 4) };
	const panel_product &whole = f.linear.product;
	const panel_chain &c = f.linear.chain;
	const int rows = (int)whole.rows, slice = threadIdx.x / (WARP / FORM), column = threadIdx.x % (WARP / FORM) * 2;
	const int length = (int)whole.slice, slices = ((int)whole.k + length - 1) / length, first = slice * length,
	          last = min(first + length, (int)whole.k), longest = units_of<f32_words>(whole).count;
	const narrow_space space = narrow_space_of(c.norm, SOURCE, false, R, PROGRAM_WARPS, shared_memory<unsigned char>());
	float *sums = shared_memory<float>(space.bytes); /* [slice][row][PANEL_WIDTH] */
	int64_t panel;
	panel_product p = panel_product_of<1>(whole, c.siblings, piece, panel);
	if (SOURCE == X_NORM)
		bring_norm(c.norm, space);
	closing o = closing_of<false>(p, panel, 0, rows, threadIdx.x);
	wait();
	read_operands(c, o);
	open_rows<SOURCE, false>(p, c, space, {piece, f.blocks, 0}, rows);
	narrow_row r[R];
#pragma unroll
	for (int i = 0; i < R; i++)
		r[i] = row_of<SOURCE>(p, c.norm, space, 0, i, rows);
	for (;;) {
		float sum[R][2] = {};
#pragma unroll 1
		for (int k = first; k < first + longest; k += AT_ONCE) {
			const unsigned char *from = ring.stage + ring.at * STAGE_BYTES + slice % FORM * EACH + column * 4;
			float2 w[AT_ONCE];
			copy_barrier_wait(ring.full + ring.at, ring.parity);
#pragma unroll
			for (int i = 0; i < AT_ONCE; i++)
				w[i] = k + i < last ? *(const float2 *)(from + i * PANEL_WIDTH * 4) : make_float2(0.0f, 0.0f);
			leave_stage<f32_words>(all, ring);
#pragma unroll
			for (int four = 0; four < AT_ONCE; four += 4) {
				if (k + four >= last)
					break;
#pragma unroll
				for (int i = 0; i < R; i++) {
					const float4 x = four_of_row<SOURCE>(p, space, r[i], k + four);
					const float each[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
					for (int j = 0; j < 4; j++) {
						sum[i][0] = __fmaf_rn(each[j], w[four + j].x, sum[i][0]);
						sum[i][1] = __fmaf_rn(each[j], w[four + j].y, sum[i][1]);
					}
				}
			}
		}
#pragma unroll
		for (int i = 0; i < R; i++)
			*(float2 *)(sums + (slice * R + i) * PANEL_WIDTH + column) = make_float2(sum[i][0], sum[i][1]);
		__syncthreads();
		if (o.exists) {
			float total = 0.0f;
			for (int j = 0; j < slices; j++)
				total += sums[j * R * PANEL_WIDTH + threadIdx.x];
			close(p, c, o, total);
		}
		piece += gridDim.x;
		if (piece >= f.blocks)
			break;
		p = panel_product_of<1>(whole, c.siblings, piece, panel);
		o = closing_of<false>(p, panel, 0, rows, threadIdx.x);
		read_operands(c, o);
		if (SOURCE == X_NORM && c.normalised)
			store_normalised(p, c, space, {piece, f.blocks, 0}, rows);
		__syncthreads(); /* the sums have been read */
	}
}

template <int LANES, bool CHAINED>
static __device__ __forceinline__ void run_stream(const program_phase &f, unsigned piece, const phase_wait &wait)
{
	enum { HEADS = WARP / LANES };
	const stream_call &c = f.stream;
	const unsigned groups = (unsigned)c.padded_groups, unit = piece * c.warps + threadIdx.x / WARP;
	prefetch_weights(c, unit % groups * HEADS * c.dh, HEADS * c.dh, threadIdx.x % WARP, CHAINED);
	wait();
	for (unsigned i = piece; i < f.blocks; i += gridDim.x) {
		stream_block<LANES, true, CHAINED>(c, i);
		__syncthreads(); /* shared memory is free again */
	}
}

static __device__ __forceinline__ void run_gather(const program_phase &f, unsigned piece, const phase_wait &wait)
{
	wait();
	for (unsigned i = piece; i < f.blocks; i += gridDim.x)
		gather_rows(f.gather, (int64_t)i * PROGRAM_WARPS + threadIdx.x / WARP, (int64_t)f.blocks * PROGRAM_WARPS);
}

template <class W>
static __device__ __forceinline__ void run_product(const program &p, const program_phase &f, unsigned piece, weight_ring &ring,
                                                   const phase_wait &wait)
{
	const bool norm = f.linear.chain.norm.weight, row = f.linear.product.rows == 1;
	if constexpr (std::is_same<W, f32_words>::value) {
		if (row && norm)
			run_f32<1, X_NORM>(p, f, piece, ring, wait);
		else if (row)
			run_f32<1, X_READY>(p, f, piece, ring, wait);
		else if (norm)
			run_f32<F32_MADE_ROWS, X_NORM>(p, f, piece, ring, wait);
		else
			run_f32<F32_MADE_ROWS, X_READY>(p, f, piece, ring, wait);
	} else {
		const x_source plain = W::EXACT ? X_BYTES : X_READY;
		if (f.kind == PROGRAM_ROW && norm)
			run_row<W, X_NORM>(p, f, piece, ring, wait);
		else if (f.kind == PROGRAM_ROW)
			run_row<W, plain>(p, f, piece, ring, wait);
		else if (norm)
			run_narrow<W, X_NORM>(p, f, piece, ring, wait);
		else
			run_narrow<W, plain>(p, f, piece, ring, wait);
	}
}

template <class W, int LANES>
static __device__ __forceinline__ void run_phase(const program &p, const program_phase &f, unsigned piece, weight_ring &ring,
                                                 const phase_wait &wait)
{
	if (f.kind == PROGRAM_STREAM)
		run_stream<LANES, false>(f, piece, wait);
	else if (f.kind == PROGRAM_ROUND)
		run_stream<LANES, true>(f, piece, wait);
	else if (f.kind == PROGRAM_GATHER)
		run_gather(f, piece, wait);
	else
		run_product<W>(p, f, piece, ring, wait);
}

/* The last block to come here clears the counters. The fences order its writes after the additions of all others. */
static __device__ __forceinline__ void leave(unsigned *arrived, int phases)
{
	if (threadIdx.x > 0)
		return;
	__threadfence();
	const unsigned before = atomicAdd(arrived + MOST_PHASES * APART, 1u);
	__threadfence();
	if (before < gridDim.x - 1)
		return;
	for (int i = 0; i < phases; i++)
		arrived[i * APART] = 0;
	arrived[MOST_PHASES * APART] = 0;
}

template <class W, int LANES>
static __global__ void __launch_bounds__(PROGRAM_THREADS, 1)
    program_kernel(const __grid_constant__ program p, unsigned *arrived)
{
	if (HAS_WGMMA) {
		program_phase *f = shared_memory<program_phase>(p.rings - sizeof *f);
		weight_ring ring = open_ring<W>(p);
#pragma unroll 1
		for (int i = 0; i < p.count; i++) {
			const unsigned piece = first_piece(p.phase[i]);
			if (piece >= p.phase[i].blocks)
				continue;
			for (int word = threadIdx.x; word < (int)PHASE_WORDS; word += PROGRAM_THREADS)
				((unsigned *)f)[word] = ((const unsigned *)&p.phase[i])[word];
			__syncthreads();
			run_phase<W, LANES>(p, *f, piece, ring, {arrived + (i - 1) * APART, i > 0 ? p.phase[i - 1].workers : 0});
			__syncthreads(); /* results are written, and shared memory is free again */
			if (threadIdx.x == 0)
				add_release(arrived + i * APART, 1);
		}
		leave(arrived, p.count);
	}
}

/* Store whether the loaded code has programs. */
static __global__ void program_exists_kernel(unsigned *out)
{
	*out = HAS_WGMMA;
}

/* --- the host's side ------------------------------------------------------------------------------ */

template <class W> static status load_kernels(cuda_backend *c)
{
	void (*const kernels[])(program, unsigned *) = {program_kernel<W, 4>, program_kernel<W, 8>, program_kernel<W, 16>,
	                                                program_kernel<W, 32>};
	cudaFuncAttributes loaded;
	for (const auto kernel : kernels)
		TRY(cuda_status(c, cudaFuncGetAttributes(&loaded, (const void *)kernel)));
	return STATUS_OK;
}

status cuda_program_open(cuda_backend *c)
{
	backend *b = &c->base;
	unsigned exists = 0;
	c->program = (cuda_program *)calloc(1, sizeof *c->program);
	if (!c->program)
		return STATUS_NOMEM;
	c->program->list.type = DTYPE_F32;
	unsigned **arrived = &c->program->arrived;
	TRY(b->allocate(b, (MOST_PHASES + 1) * APART * sizeof(unsigned), (void **)arrived));
	TRY(cuda_launch(b, program_exists_kernel, 1, 1, 0, *arrived));
	TRY(b->download(b, &exists, *arrived, sizeof exists));
	c->persistent = exists ? c->persistent : 0;
	if (exists) { /* code that is loaded later would be loaded within a recording */
		TRY(load_kernels<f32_words>(c));
		TRY(load_kernels<bf16_words>(c));
		TRY(load_kernels<int8_words>(c));
	}
	return b->clear(b, *arrived, sizeof exists);
}

void cuda_program_close(cuda_backend *c)
{
	if (c->program)
		c->base.release(&c->base, c->program->arrived);
	free(c->program);
	c->program = nullptr;
}

static bool is_stream(const program_phase &f)
{
	return f.kind == PROGRAM_STREAM || f.kind == PROGRAM_ROUND;
}

bool cuda_program_streams(const panel_product &p)
{
	const int64_t inputs = p.type == DTYPE_PANEL_F32 ? 1 : STEP_WORDS * (p.type == DTYPE_PANEL_INT8 ? PANEL_GROUP : PANEL_PAIR);
	return p.packed && p.k > 0 && p.k % inputs == 0 && p.rows <= (p.type == DTYPE_PANEL_F32 ? F32_MADE_ROWS : ROWS);
}

bool cuda_program_add(backend *b, const program_phase &phase, size_t shared,
                      status (*launch)(backend *b, const program_phase &phase))
{
	cuda_backend *c = cuda_of(b);
	cuda_program *p = c->program;
	if (!c->recording || c->persistent == 0 || shared > PROGRAM_SHARED)
		return false;
	const dtype type = is_product(phase) ? phase.linear.product.type : p->list.type;
	const int lanes = is_stream(phase) ? phase.lanes : p->list.lanes;
	if (p->list.count == MOST_PHASES || (p->list.type != DTYPE_F32 && type != p->list.type) ||
	    (p->list.lanes != 0 && lanes != p->list.lanes))
		(void)cuda_program_end(c); /* a failure ends the recording */
	p->list.type = type;
	p->list.lanes = lanes;
	p->shared = shared > p->shared ? (unsigned)shared : p->shared;
	p->launch[p->list.count] = launch;
	p->list.phase[p->list.count++] = phase;
	return true;
}

/* Give the pieces of all phases to `grid` blocks. */
static void share_out(program *p, unsigned grid)
{
	unsigned first = 0;
	for (int i = 0; i < p->count; i++) {
		program_phase *f = &p->phase[i];
		f->first = first;
		f->workers = f->blocks < grid ? f->blocks : grid;
		first = (first + f->blocks % grid) % grid;
	}
}

template <class W, int LANES> static status launch_heads(cuda_backend *c, const program &p, unsigned grid, size_t shared)
{
	void (*const kernel)(program, unsigned *) = program_kernel<W, LANES>;
	cudaLaunchAttribute attribute = {};
	attribute.id = cudaLaunchAttributeCooperative;
	attribute.val.cooperative = 1;
	cudaLaunchConfig_t config = {};
	config.gridDim = dim3(grid);
	config.blockDim = dim3(PROGRAM_THREADS);
	config.dynamicSmemBytes = shared;
	config.stream = c->stream;
	config.attrs = &attribute;
	config.numAttrs = 1;
	TRY(cuda_status(c, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared)));
	c->after_kernel = false; /* the next kernel does not begin early */
	return cuda_launched(c, cudaLaunchKernelEx(&config, kernel, p, c->program->arrived), (const void *)kernel);
}

template <class W> static status launch_as(cuda_backend *c, const program &p, unsigned grid, size_t shared)
{
	return p.lanes == 4    ? launch_heads<W, 4>(c, p, grid, shared)
	       : p.lanes == 8  ? launch_heads<W, 8>(c, p, grid, shared)
	       : p.lanes == 16 ? launch_heads<W, 16>(c, p, grid, shared)
	                       : launch_heads<W, 32>(c, p, grid, shared);
}

static status launch_program(cuda_backend *c, cuda_program *all)
{
	enum { ALIGNED = 128, STAGE_OF_ALL = PROGRAM_WARPS * (STAGE_BYTES + sizeof(copy_barrier)) };
	program *p = &all->list;
	unsigned grid = 0;
	for (int i = 0; i < p->count; i++)
		grid = p->phase[i].blocks > grid ? p->phase[i].blocks : grid;
	grid = grid < (unsigned)c->persistent ? grid : (unsigned)c->persistent;
	p->rings = (unsigned)((all->shared + sizeof(program_phase) + ALIGNED - 1) / ALIGNED * ALIGNED);
	p->stages = (int)((c->shared_limit - p->rings) / STAGE_OF_ALL);
	p->stages = p->stages < MOST_STAGES ? p->stages : (int)MOST_STAGES;
	c->recorded_program = true;
	share_out(p, grid);
	const size_t shared = p->rings + p->stages * STAGE_OF_ALL;
	return p->type == DTYPE_PANEL_F32    ? launch_as<f32_words>(c, *p, grid, shared)
	       : p->type == DTYPE_PANEL_INT8 ? launch_as<int8_words>(c, *p, grid, shared)
	                                     : launch_as<bf16_words>(c, *p, grid, shared);
}

status cuda_program_end(cuda_backend *c)
{
	cuda_program *p = c->program;
	if (!p || p->list.count == 0)
		return STATUS_OK;
	status s = STATUS_OK;
	const int count = p->list.count;
	if (count >= LEAST_PHASES)
		s = launch_program(c, p);
	p->list.count = 0; /* also for launches below, which end the program before them */
	p->list.type = DTYPE_F32;
	p->list.lanes = 0;
	p->shared = 0;
	for (int i = 0; i < count && count < LEAST_PHASES && s == STATUS_OK; i++)
		s = p->launch[i](&c->base, p->list.phase[i]);
	return s;
}
