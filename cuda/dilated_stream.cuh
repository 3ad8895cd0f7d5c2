/* dilated_stream.cuh - the call of dilated_stream as its kernels see it, and its keys and values.
 *
 * Attend (dilated_stream.cu) has one query of one head in a block. In a call of prompts, sequences of more than FEW
 * tokens are left to the kernel of dilated_stream_long.cu, which reads keys for 64 queries at once. Both read the call's
 * keys and values from its inputs, older ones from the ring of engine/tensor/ops/dilated.h. A last kernel, append,
 * writes the call's last tokens into the ring, so no token overwrites one that an earlier query still needs.
 *
 * The keys that a branch keeps of a segment are cut into tiles of 32, from the segment's first on. Both forms compute m,
 * z and Σ e^{s-m} v of each tile that the query sees, in the order of sums of softmax_tile.cuh. They merge the tiles in
 * order, branch after branch. Keys that a query does not see leave its sums unchanged. So y depends on the tokens and
 * the position alone: not on the batch, nor on how the tokens are cut into calls. */
#ifndef CUDA_DILATED_STREAM_CUH
#define CUDA_DILATED_STREAM_CUH

#include "cuda/kernels.h"
#include "cuda/softmax_tile.cuh"

extern "C" {
#include "engine/tensor/ops/dilated.h"
}

enum { FEW = 8 /* most tokens of a sequence that a call of prompts leaves to attend */ };

/* Arguments of the call. */
struct dilated_ring {
	dilated_pattern pattern;
	const float *q, *k, *v;
	float *pool, *y;                                        /* y may be NULL */
	const int32_t *slot, *position, *length, *mask, *start; /* the last two may be NULL */
	int64_t n, d, heads, dh, window;
	int64_t slot_floats, offset;
	int64_t tokens, rows; /* in all sequences; number of sequences */
	int64_t quads;        /* attend: per lane */
	unsigned places;      /* attend: tiles whose sums fit in shared memory */
	bool split;           /* sequences of more than FEW tokens have the kernel of long runs */
	float scale;
};

/* A sequence, from a head's first channel on. */
struct sequence_rows {
	const float *query, *key, *value, *ring; /* the call's first token; the state */
	const float *present;
	const int32_t *mask; /* the call's tokens; may be NULL */
	unsigned position, length;
	token_span tokens;
};

static __device__ __forceinline__ sequence_rows sequence_rows_of(const dilated_ring &c, int64_t row, int64_t head)
{
	const token_span tokens = tokens_of(c.start, c.rows, c.n, row);
	const float *state = c.pool + c.slot[row] * c.slot_floats + c.offset;
	const int64_t first = tokens.first * c.d + head * c.dh;
	return {c.q + first,
	        c.k + first,
	        c.v + first,
	        state + head * c.dh,
	        state + dilated_there(c.d, c.window, 0),
	        c.mask ? c.mask + tokens.first : nullptr,
	        (unsigned)c.position[row],
	        (unsigned)c.length[row],
	        tokens};
}

/* The key of position j, or its value. */
static __device__ __forceinline__ const float *row_at(const dilated_ring &c, const sequence_rows &s, unsigned j,
                                                      bool value)
{
	if (j >= s.position)
		return (value ? s.value : s.key) + (int64_t)(j - s.position) * c.d;
	const int64_t place = j % (unsigned)c.window;
	return s.ring + (value ? dilated_value(c.d, c.window, place) : dilated_key(c.d, place));
}

static __device__ __forceinline__ bool is_present(const dilated_ring &c, const sequence_rows &s, unsigned j)
{
	if (j >= s.position)
		return !s.mask || s.mask[j - s.position] != 0;
	return s.present[j % (unsigned)c.window] != 0.0f;
}

/* True if the kernel of long runs has the sequence. */
static __device__ __forceinline__ bool is_long(const dilated_ring &c, const sequence_rows &s)
{
	return c.split && s.length > FEW;
}

/* True if the kernel of long runs can have the call. */
bool cuda_dilated_long_fits(const backend *b, const dilated_ring *c);
status cuda_dilated_long(backend *b, const dilated_ring *c);

#endif
