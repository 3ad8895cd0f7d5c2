/* program.cuh - several kernels of a decode step as one launch: a program of phases.
 *
 * A phase does the work of one kernel: `blocks` pieces that depend on all pieces of the previous phase, and on no piece
 * in their own phase. While a plan is recorded, kernels of the kinds below are not launched but added to the backend's
 * program. The next call that is not a phase launches the program first, and so does record_end. A program of a few
 * phases is launched kernel by kernel.
 *
 * The launch is cooperative: its blocks are all resident, so they may wait for each other. Piece i of a phase is block
 * (first + i) modulo the grid's size; a phase begins after the block at which the previous one ended. So a block has
 * work in about every other phase of a model of width 768. While other blocks work on earlier phases, it brings the
 * weights of its next piece to registers and the L2 cache. A kernel that begins early does the same, but a phase also
 * saves the end and the start of a kernel.
 *
 * Each phase has a counter, to which a block adds 1 (a release) when all its pieces of the phase are complete. A block
 * that has a piece of the next phase waits (acquires) until the counter has reached the number of blocks that work in
 * the previous phase. Those blocks have waited likewise, so all earlier phases are complete too. A block without a
 * piece of a phase neither waits nor adds. The last block to end clears the counters for the next launch.
 *
 * The device code is that of the kernels (linear_row.cuh, linear_narrow.cuh, additive_stream.cuh, gather.cuh), so the
 * bits are the same. The program is the kernel's argument, from which a block copies its current phase to shared
 * memory. A recording owns no device memory.
 *
 * Off by default (ADDITIVE_CUDA_PERSISTENT): cuda/BENCHMARKS.md has a prediction, but no measurement yet. */
#ifndef CUDA_PROGRAM_CUH
#define CUDA_PROGRAM_CUH

#include "cuda/additive_stream.cuh"
#include "cuda/gather.cuh"
#include "cuda/linear_panels.cuh"

enum {
	PROGRAM_THREADS = SLICES * WARP,
	PROGRAM_WARPS = PROGRAM_THREADS / WARP,
	PROGRAM_SHARED = 47 << 10, /* bytes per piece; the phase itself is stored after them */
};

enum program_kind {
	PROGRAM_ROW,    /* linear_row.cuh */
	PROGRAM_NARROW, /* linear_narrow.cuh, up to ROWS rows */
	PROGRAM_STREAM, /* additive_stream.cuh, packed */
	PROGRAM_ROUND,  /* additive_stream.cuh, packed and chained */
	PROGRAM_GATHER, /* gather.cuh, of packs */
};

struct program_phase {
	program_kind kind;
	int lanes;              /* lanes of a stream's head */
	unsigned blocks;         /* pieces of work, at least 1 */
	unsigned first, workers; /* set with the grid: the block of piece 0; the number of blocks with a piece */
	union {
		struct {
			panel_product product;
			panel_chain chain;
		} linear;
		stream_call stream;
		gather_call<uint4> gather;
	};
};

/* Add a phase whose pieces need `shared` bytes of shared memory each; launch(b, phase) issues it as a kernel. False if
 * the caller has to issue the kernel now: nothing is recorded, programs are off, or this one is full. */
bool cuda_program_add(backend *b, const program_phase &phase, size_t shared,
                      status (*launch)(backend *b, const program_phase &phase));

#endif
