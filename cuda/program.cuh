/* program.cuh - several kernels of a decode step as one launch: a program of phases.
 *
 * A phase is what one kernel does otherwise: `blocks` pieces of work that depend on all pieces of the phase before, and
 * on nothing else of their own phase. While a plan is recorded, kernels of the kinds below are not launched but added
 * to the backend's program; whatever is issued next and is no phase launches it first, and so does record_end. A
 * program of a few phases is launched kernel by kernel.
 *
 * The launch is cooperative: its blocks are all resident, so they may wait for each other. Piece i of a phase is block
 * (first + i) modulo the grid's; a phase begins behind the block at which the one before it ended. So a block has work
 * in about every other phase of a model of width 768, and brings the weights of its next piece to registers and the
 * L2 cache while other blocks are still busy with the phases before: what a kernel that begins early does, without
 * the end and the beginning of a kernel.
 *
 * Each phase has a counter, to which a block adds 1 (a release) when all its pieces of the phase are complete. A block
 * that has a piece of the next phase waits (acquires) until the counter has reached the number of blocks that work in
 * the phase before; those have waited likewise, so all earlier phases are complete too. A block without a piece of a
 * phase neither waits nor adds. The last block to end clears the counters for the next launch.
 *
 * Device code is that of the kernels (linear_row.cuh, linear_narrow.cuh, additive_stream.cuh, gather.cuh), so the bits
 * are the same. The program is the kernel's argument, from which a block copies the phase that it works on to shared
 * memory; no memory of the device belongs to a recording. */
#ifndef CUDA_PROGRAM_CUH
#define CUDA_PROGRAM_CUH

#include "cuda/additive_stream.cuh"
#include "cuda/gather.cuh"
#include "cuda/linear_panels.cuh"

enum {
	PROGRAM_THREADS = SLICES * WARP,
	PROGRAM_WARPS = PROGRAM_THREADS / WARP,
	PROGRAM_SHARED = 47 << 10, /* bytes that a piece of a phase may ask for; there is a phase beside them */
};

enum program_kind {
	PROGRAM_ROW,    /* linear_row.cuh */
	PROGRAM_NARROW, /* linear_narrow.cuh, of up to ROWS rows */
	PROGRAM_STREAM, /* additive_stream.cuh, packed */
	PROGRAM_ROUND,  /* the same, chained */
	PROGRAM_GATHER, /* gather.cuh, of packs */
};

struct program_phase {
	program_kind kind;
	int lanes;       /* of a stream's head */
	unsigned blocks; /* pieces of work, at least 1 */
	unsigned first, workers; /* filled in with the grid: the block of piece 0, and how many blocks have a piece */
	union {
		struct {
			panel_product product;
			panel_chain chain;
		} linear;
		stream_call stream;
		gather_call<uint4> gather;
	};
};

/* Add a phase whose pieces have `shared` bytes of shared memory each; launch(b, phase) issues it as a kernel. False: it is
 * to be issued now, since nothing is recorded, there are no programs, or this one is full. */
bool cuda_program_add(backend *b, const program_phase &phase, size_t shared,
                      status (*launch)(backend *b, const program_phase &phase));

#endif
