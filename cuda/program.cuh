/* program.cuh - many kernels of a decode step as one launch: a program of phases.
 *
 * A phase does the work of one kernel: `blocks` pieces. They depend on all pieces of the previous phase, and not on
 * each other. A phase that `joins` the previous one depends on the phases before both. While a plan is recorded,
 * kernels of the kinds below are not launched but added to the backend's program. The next call that is not a phase
 * launches the program first, and so does record_end. A program of a few phases is launched kernel by kernel.
 *
 * The launch is cooperative and has one block per processor, or fewer if ADDITIVE_CUDA_PERSISTENT says so. Piece i of a
 * phase is block (first + i) modulo the grid's size; a phase begins after the block at which the previous one ended.
 *
 * Weights do not depend on activations, so they do not wait for phases. Each warp has a ring in shared memory. It holds
 * the next weights of the warp's slice of K, in the order in which the program uses them, across pieces and phases. Bulk
 * copies fill it. When a warp has read a stage into registers, it requests the next stage for the same place. So up to
 * 192 KB a processor are in flight while blocks wait for each other.
 *
 * Each phase has a counter, which it shares with those that join it. A block adds 1 (a release) when all its pieces of
 * the phase are complete. A block that has a piece of the next phase waits until the previous counter has reached the
 * number of such additions. The blocks that add have waited likewise, so all earlier phases are complete too. A block
 * without a piece of a phase neither waits nor adds. The last block to end clears the counters for the next launch.
 *
 * A layer of additive2 (program_layer.cu) or additive (program_rounds.cu) is a group of phases with four waits. Rows that
 * are cheap to compute are not a phase: each block computes them into its shared memory, as x of its product
 * (program_source). Attention's state is read by all blocks then, so another phase (PROGRAM_KEEP, PROGRAM_STREAM)
 * computes it once more and writes it when all have read it.
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
	PROGRAM_SHARED = 96 << 10 /* most bytes of a piece, besides the rings */
};

enum program_kind {
	PROGRAM_ROW,    /* linear_row.cuh */
	PROGRAM_NARROW, /* linear_narrow.cuh, up to ROWS rows; fp32: 4 */
	PROGRAM_STREAM, /* additive_stream.cuh, packed */
	PROGRAM_ROUND,  /* additive_stream.cuh, packed and chained */
	PROGRAM_GATHER, /* gather.cuh, of packs */
	PROGRAM_LAYER,  /* arguments of phases that follow; no pieces */
	PROGRAM_KEEP    /* write the state of a layer; a piece per row */
};

/* Where x of a product comes from. All but the first: each block computes it (program_rows.cuh, program_rounds.cuh). */
enum program_source {
	SOURCE_MEMORY,
	SOURCE_SHIFT,  /* norm of h, mixed with that of the previous token */
	SOURCE_ROUND,  /* norm of what the heads have pooled, gated */
	SOURCE_NORM,   /* norm of the feed-forward's h */
	SOURCE_GLU,    /* gated inner values of the feed-forward */
	SOURCE_POOLED, /* pooled values of additive_stream */
	SOURCE_GATED   /* base + factor ⊙ pooled values of layernorm(base) */
};

/* normalize of rows of floats (normalize.cu). */
struct rms_norm {
	const float *x, *gain;
	float scale, floor, eps;
	int width, parts, group; /* channels of a part, parts of a row, threads for a part */
};

/* A layer of attention that forgets, and its feed-forward (engine/model/architectures/additive2.c). */
struct forgetting_layer {
	float *pool;
	const int32_t *slot, *position, *length, *mask; /* mask may be NULL */
	int64_t slot_floats, ring, state;               /* in a slot: the previous token's norm; the heads */
	int64_t segment;                                /* segment of shift_stream; 0: none */
	rms_norm before, pooled, after;                 /* norms of h, of the heads (x NULL), of the feed-forward */
	const float *mixtures;                          /* [mixtures][width of h] */
	const float *v, *a, *f, *gate;                  /* before log σ and SiLU */
	const float *inner;                             /* u | q */
	int rows, heads;
	int inner_width;
	bool gate_first; /* u is the gate */
};

struct program_phase {
	program_kind kind;
	int lanes;               /* lanes of a stream's head */
	bool joins;              /* depends on nothing that the previous phase writes, and writes nothing that it reads */
	program_source source;   /* for a product */
	int arguments;           /* with a source, PROGRAM_KEEP: how many phases after this one its PROGRAM_LAYER or, for the
	                          * last two sources, its PROGRAM_STREAM is */
	int mixture;             /* SOURCE_SHIFT */
	unsigned made;           /* with a source: offset of x in shared memory */
	unsigned blocks;         /* pieces of work, at least 1; PROGRAM_LAYER: 0 */
	unsigned first;          /* set with the grid: the block of piece 0 */
	int counter;             /* set with the grid; the one to wait for precedes it */
	unsigned arrivals;       /* set with the grid: additions to wait for */
	union {
		struct {
			panel_product product;
			panel_chain chain;
		} linear;
		stream_call stream;
		gather_call<uint4> gather;
		forgetting_layer layer_arguments;
	};
};

/* Calls that run in place of a group of phases, which cannot be launched one by one. */
struct program_calls {
	backend_fused_kernel run;
	const op_call *const *calls; /* must be valid until the program ends */
};

/* Add a phase whose pieces need `shared` bytes of shared memory each; launch(b, phase) issues it as a kernel. A program
 * that is full, or has another type of weights or width of heads, is launched first. False if the caller has to issue
 * the kernel now: nothing is recorded, programs are off, or `shared` is too much. */
bool cuda_program_add(backend *b, const program_phase &phase, size_t shared,
                      status (*launch)(backend *b, const program_phase &phase));
/* Add `count` phases that a program has all of, or none. */
bool cuda_program_add_group(backend *b, const program_phase *phases, int count, size_t shared, const program_calls &calls);
/* True if a program can have the product: few rows, whole packs of x, and whole steps; int8: whole words of a lane. */
bool cuda_program_streams(const panel_product &p);
/* Set the phase of a call of additive_stream, and the shared memory of a piece; false if it cannot be a phase. */
bool cuda_stream_phase(const op_call *call, program_phase *out, size_t *shared);
/* Set the phase of a chain, likewise. */
bool cuda_stream_chain_phase(const backend *b, const stream_chain *chain, program_phase *out, size_t *shared);
/* Set the phase of a product with its chain, likewise. */
bool cuda_panels_phase(const backend *b, const panel_chain_calls *calls, program_phase *out, size_t *shared);
/* The phase of a product (linear_narrow.cu). */
bool cuda_panels_phase_of(const panel_product &p, const panel_chain &c, dtype type, program_phase *out, size_t *shared);

/* fuse for a layer of additive2, its attention or its feed-forward, where programs are on (program_layer.cu). */
int cuda_fuse_layer(const backend *b, const op_id *ids, const op_call *const *calls, int n, unsigned dead,
                    backend_fused_kernel *out);
/* fuse for a layer of additive, or its attention, likewise (program_rounds.cu). */
int cuda_fuse_rounds(const backend *b, const op_id *ids, const op_call *const *calls, int n, unsigned dead,
                     backend_fused_kernel *out);
/* Run calls kernel by kernel, in the chains of fuse_serving.cu. Others read the last call's result alone. */
status cuda_run_chains(backend *b, const op_id *ids, const op_call *const *calls, int n);

#endif
