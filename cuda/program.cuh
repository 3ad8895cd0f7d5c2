/* program.cuh - many kernels of a decode step as one launch: a program of phases.
 *
 * A phase does the work of one kernel: `blocks` pieces. They depend on all pieces of the previous phase, and not on
 * each other. While a plan is recorded, kernels of the kinds below are not launched but added to the backend's
 * program. The next call that is not a phase launches the program first, and so does record_end. A program of a few
 * phases is launched kernel by kernel.
 *
 * The launch is cooperative and has one block per processor, or fewer if ADDITIVE_CUDA_PERSISTENT says so. Piece i of a
 * phase is block (first + i) modulo the grid's size; a phase begins after the block at which the previous one ended.
 *
 * Weights do not depend on activations, so they do not wait for phases. Each warp has a ring in shared memory. It holds
 * the next weights of the warp's slice of K, in the order in which the program uses them, across pieces and phases. Bulk
 * copies fill it. When a warp has read a stage into registers, it requests the next stage for the same place. So up to
 * 192 KB a processor are in flight while blocks wait for each other.
 *
 * Each phase has a counter, to which a block adds 1 (a release) when all its pieces of the phase are complete. A block
 * that has a piece of the next phase waits until the counter has reached the number of blocks that work in the previous
 * phase. Those blocks have waited likewise, so all earlier phases are complete too. A block without a piece of a phase
 * neither waits nor adds. The last block to end clears the counters for the next launch.
 *
 * All blocks are resident at the same time. Those with a processor wait for the others, which begin when kernels of other
 * streams have ended. A kernel of NCCL may not end before a peer's, so a process that sums gradients over devices must
 * not use programs. A block waits only for earlier phases, and a stage only for memory. A block that faults ends the
 * whole launch: the device stops all its blocks and is lost.
 *
 * The order of sums is that of the kernels (linear_row.cuh, linear_narrow.cuh, additive_stream.cuh), so the bits are the
 * same. The program is the kernel's argument. A recording owns no device memory. */
#ifndef CUDA_PROGRAM_CUH
#define CUDA_PROGRAM_CUH

#include "cuda/additive_stream.cuh"
#include "cuda/gather.cuh"
#include "cuda/linear_panels.cuh"

enum {
	PROGRAM_WARPS = SLICES,
	PROGRAM_THREADS = PROGRAM_WARPS * WARP,
	PROGRAM_SHARED = 48 << 10 /* most bytes of a piece, besides the rings */
};

enum program_kind {
	PROGRAM_ROW,    /* linear_row.cuh */
	PROGRAM_NARROW, /* linear_narrow.cuh, up to ROWS rows; fp32: 4 */
	PROGRAM_STREAM, /* additive_stream.cuh, packed */
	PROGRAM_ROUND,  /* additive_stream.cuh, packed and chained */
	PROGRAM_GATHER  /* gather.cuh, of packs */
};

struct program_phase {
	program_kind kind;
	int lanes;               /* lanes of a stream's head */
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

/* Add a phase whose pieces need `shared` bytes of shared memory each; launch(b, phase) issues it as a kernel. A program
 * that is full, or has another type of weights or width of heads, is launched first. False if the caller has to issue
 * the kernel now: nothing is recorded, programs are off, or `shared` is too much. */
bool cuda_program_add(backend *b, const program_phase &phase, size_t shared,
                      status (*launch)(backend *b, const program_phase &phase));
/* True if a program can have the product: few rows, whole packs of x, and whole steps. */
bool cuda_program_streams(const panel_product &p);

#endif
