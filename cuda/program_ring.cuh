/* program_ring.cuh - a program's arguments (program.cuh), and the rings through which its weights come.
 *
 * A stage is STAGE_STEPS steps of a slice of one panel (f32: 16 inputs of four slices), and each warp has its own. So a ring
 * needs no barrier of the block: __syncwarp separates the reads of a stage from the request that overwrites it, and one
 * lane issues that request. Rejected: a warp that only requests. It would have to learn from eight warps that a stage
 * is free, and the kernels' barriers of all threads would have to become barriers of some. */
#ifndef CUDA_PROGRAM_RING_CUH
#define CUDA_PROGRAM_RING_CUH

#include "cuda/linear_row.cuh"
#include "cuda/program.cuh"

enum {
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

/* Units first … first + count - 1 of the warp's first slice. int8: the panel's last unit may be a part of a step. */
struct slice_units {
	int first, count;
};

template <class W> static __device__ __forceinline__ slice_units units_of(const panel_product &p)
{
	const int length = (int)p.slice, all = (int)(std::is_same<W, f32_words>::value ? p.k : p.steps);
	const int first = (int)threadIdx.x / WARP * ring_form<W>::SLICES_EACH * length;
	return {first, max(min(all - first, length), 0)};
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
		r.rest = (int)o.panel_bytes - W::HEADER - s.first * ring_form<W>::UNIT_BYTES;
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

/* Words along K of the warp's slice; int8: from the lane's first one on, since the last step may be a part of one. */
template <class W> static __device__ __forceinline__ int words_of(const panel_product &p, const slice_units &s)
{
	const int words = min((int)p.k / (int)W::GROUP - s.first * STEP_WORDS, s.count * STEP_WORDS);
	return W::EXACT ? words - (int)threadIdx.x % 4 * 2 : words;
}

/* Read the lane's weights of the next stage, as load_weights does. words: from the stage on, as words_of. */
template <class W>
static __device__ __forceinline__ void take_stage(const program &p, weight_ring &r, int words, unsigned a[STAGE_STEPS][4])
{
	const int lane = threadIdx.x % WARP, odd = lane % 2 * PANEL_WIDTH * 4;
	const unsigned char *from = r.stage + r.at * STAGE_BYTES + (2 * (lane % 4) * PANEL_WIDTH + 2 * (lane / 4)) * 4;
	copy_barrier_wait(r.full + r.at, r.parity);
#pragma unroll
	for (int i = 0; i < STAGE_STEPS; i++) {
		const bool exists = i * STEP_WORDS < words;
		if (!exists && !W::EXACT)
			break;
		/* Odd lanes read their second word first, which halves the conflicts of banks. int8: other lanes may have a
		 * part of the step. */
		uint2 one = make_uint2(0, 0), two = one;
		if (exists) {
			one = *(const uint2 *)(from + i * STEP_BYTES + odd);
			two = *(const uint2 *)(from + i * STEP_BYTES + PANEL_WIDTH * 4 - odd);
		}
		a[i][0] = odd ? two.x : one.x;
		a[i][1] = odd ? two.y : one.y;
		a[i][2] = odd ? one.x : two.x;
		a[i][3] = odd ? one.y : two.y;
	}
	leave_stage<W>(p, r);
}

#endif
