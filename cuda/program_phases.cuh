/* program_phases.cuh - the kernel of programs (program.cuh): phases, and the waits between them.
 *
 * A phase ends with a barrier of the block and an addition to memory. The next begins with a poll that sees it, a fence
 * and another barrier. What does not depend on the previous phase comes before the poll: the phase's arguments, the
 * weights of layernorm, biases, and the ring's weights. If the blocks compute x of a product (program_source), its norm's
 * weights and its biases come after the poll. Counters are 128 bytes apart. A poll is a relaxed load, since an acquire
 * would empty the first-level cache each time.
 *
 * With one row a block makes the operands of x once per phase, also if it has several pieces; with more, the sums and
 * scales of layernorm and codes. */
#ifndef CUDA_PROGRAM_PHASES_CUH
#define CUDA_PROGRAM_PHASES_CUH

#include "cuda/linear_narrow.cuh"
#include "cuda/linear_row.cuh"
#include "cuda/program_ring.cuh"
#include "cuda/program_rounds.cuh"
#include "cuda/program_rows.cuh"

/* Wait for `arrivals` additions; 0: do not wait. */
struct phase_wait {
	const unsigned *arrived;
	unsigned arrivals;

	__device__ __forceinline__ void operator()(void) const
	{
		if (arrivals == 0)
			return;
		if (threadIdx.x == 0) {
			while (poll_relaxed(arrived) < arrivals)
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
	const int lane = threadIdx.x % WARP;
	const slice_units mine = units_of<W>(whole);
	const int words = words_of<W>(whole, mine);
	row_pieces<W> *s = shared_memory<row_pieces<W>>();
	operand *operands = shared_memory<operand>(sizeof *s);
	int64_t panel;
	panel_product p = panel_product_of<1>(whole, c.siblings, piece, panel);
	closing o = {};
	const float scale = open_row<W, SOURCE>(p, c, panel, piece, mine.first * PACKS, (mine.first + mine.count) * PACKS,
	                                        &s->row, operands, wait, o);
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
			take_stage<W>(all, ring, words - step * STEP_WORDS, a);
#pragma unroll
			for (int i = 0; i < STAGE_STEPS; i++) {
				if (step + i >= mine.count)
					break;
				W::product(d, a[i], x[i]);
			}
		}
		close_row<W>(p, c, o, scale, d, sums);
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

/* Set the product and the output of the thread for a piece of a product of a few rows, without what comes with x. */
template <bool BYTES>
static __device__ __forceinline__ void set_piece(const program_phase &f, unsigned piece, panel_product &p, closing &o)
{
	int64_t panel;
	p = panel_product_of<1>(f.linear.product, f.linear.chain.siblings, piece, panel);
	o = closing_of<BYTES>(p, panel, 0, (int)p.rows, threadIdx.x);
}

/* The first piece: set it, wait, and compute what depends on the rows of x alone. */
template <x_source SOURCE, bool BYTES>
static __device__ __forceinline__ void open_pieces(const program_phase &f, const narrow_space &space, unsigned piece,
                                                   const phase_wait &wait, panel_product &p, closing &o)
{
	const panel_chain &c = f.linear.chain;
	if (SOURCE == X_NORM)
		bring_norm(c.norm, space);
	set_piece<BYTES>(f, piece, p, o);
	wait();
	read_operands(c, o);
	open_rows<SOURCE, BYTES>(p, c, space, {piece, f.blocks, 0}, (int)p.rows);
}

/* The block's next piece; false if there is none. */
template <x_source SOURCE, bool BYTES>
static __device__ __forceinline__ bool next_piece(const program_phase &f, const narrow_space &space, unsigned &piece,
                                                  panel_product &p, closing &o)
{
	const panel_chain &c = f.linear.chain;
	piece += gridDim.x;
	if (piece >= f.blocks)
		return false;
	set_piece<BYTES>(f, piece, p, o);
	read_operands(c, o);
	if (SOURCE == X_NORM && c.normalised)
		store_normalised(p, c, space, {piece, f.blocks, 0}, (int)p.rows);
	__syncthreads(); /* the sums have been read */
	return true;
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
	const int words = words_of<W>(whole, mine);
	const narrow_space space =
	    narrow_space_of(c.norm, SOURCE, BYTES, ROWS, SLICES, shared_memory<unsigned char>());
	sum *sums = shared_memory<sum>(space.bytes); /* [slice][element][lane] */
	panel_product p;
	closing o;
	open_pieces<SOURCE, BYTES>(f, space, piece, wait, p, o);
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
			take_stage<W>(all, ring, words - step * STEP_WORDS, a);
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
		if (!next_piece<SOURCE, BYTES>(f, space, piece, p, o))
			break;
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
	panel_product p;
	closing o;
	open_pieces<SOURCE, false>(f, space, piece, wait, p, o);
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
		if (!next_piece<SOURCE, false>(f, space, piece, p, o))
			break;
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

static __device__ __forceinline__ void run_keep(const forgetting_layer &l, const program_phase &f, unsigned piece,
                                                const phase_wait &wait)
{
	wait();
	for (unsigned row = piece; row < f.blocks; row += gridDim.x)
		keep_row(l, (int)row, shared_memory<float>());
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
static __device__ __forceinline__ void run_phase(const program &p, const program_phase &f, const forgetting_layer &layer,
                                                 unsigned piece, weight_ring &ring, const phase_wait &wait)
{
	if (f.kind == PROGRAM_STREAM)
		run_stream<LANES, false>(f, piece, wait);
	else if (f.kind == PROGRAM_ROUND)
		run_stream<LANES, true>(f, piece, wait);
	else if (f.kind == PROGRAM_GATHER)
		run_gather(f, piece, wait);
	else if (f.kind == PROGRAM_KEEP)
		run_keep(layer, f, piece, wait);
	else
		run_product<W>(p, f, piece, ring, wait);
}

/* Wait, and compute x of the phase's product in shared memory. `from` has the arguments. */
template <int LANES>
static __device__ __forceinline__ void make_x(const program_phase &from, unsigned piece, const phase_wait &wait, program_phase *f)
{
	const panel_product &p = f->linear.product;
	float *x = shared_memory<float>(f->made), *space = x + p.rows * p.k;
	if (f->source == SOURCE_POOLED) {
		make_round<LANES, false>(from.stream, wait, false, x, space);
	} else if (f->source == SOURCE_GATED) {
		make_round<LANES, true>(from.stream, wait, piece == 0, x, space);
	} else {
		wait();
		make_rows(from.layer_arguments, f->source, f->mixture, x, space);
	}
	if (threadIdx.x == 0)
		f->linear.product.x = x;
	__syncthreads();
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
			const program_phase &from = p.phase[i + f->arguments];
			phase_wait wait = {arrived + (f->counter - 1) * APART, f->arrivals};
			if (f->source != SOURCE_MEMORY) {
				make_x<LANES>(from, piece, wait, f);
				wait.arrivals = 0;
			}
			run_phase<W, LANES>(p, *f, from.layer_arguments, piece, ring, wait);
			__syncthreads(); /* results are written, and shared memory is free again */
			if (threadIdx.x == 0)
				add_release(arrived + p.phase[i].counter * APART, 1);
		}
		leave(arrived, p.count);
	}
}

/* Store whether the loaded code has programs. */
static __global__ void program_exists_kernel(unsigned *out)
{
	*out = HAS_WGMMA;
}

#endif
