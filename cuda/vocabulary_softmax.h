/* vocabulary_softmax.h - linear_cross_entropy on tensor cores without logits in memory, for bf16 with few channels; and
 * helpers that it shares with the plain form (linear_cross_entropy.cu). */
#ifndef CUDA_VOCABULARY_SOFTMAX_H
#define CUDA_VOCABULARY_SOFTMAX_H

#include "cuda/backend.h"

/* Counts by a block, and over all rows. */
struct loss_tally {
	double loss;
	int64_t count;
};

static inline int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}
/* Number of parts of `each` elements that cover n; the last part may be smaller. */
static inline int64_t parts_of(int64_t n, int64_t each)
{
	return (n + each - 1) / each;
}

/* Return the offset of the next `count` items of `each` bytes in scratch memory. *bytes: how much is in use. */
static inline size_t loss_scratch(size_t *bytes, int64_t count, size_t each)
{
	enum { LINE = 64 };
	const size_t at = *bytes;
	*bytes = (at + (size_t)count * each + LINE - 1) / LINE * LINE;
	return at;
}

static inline bool loss_has_gradients(const op_call *call)
{
	return call->out[2].data || call->out[3].data || call->out[4].data;
}

/* out [n] (0 instead of its contents with `first`) += factor Σ_parts part [parts, n], in their order.
 * linear_cross_entropy.cu. */
status cuda_loss_sum_parts(backend *b, float *out, const float *part, int64_t parts, int64_t n, float factor,
                           bool first);

/* True if this form can run the call, judged by shapes, types and the outputs that are requested. */
bool cuda_vocabulary_takes(const backend *b, const op_call *call);
size_t cuda_vocabulary_scratch(const backend *b, const op_call *call);
/* Losses [rows] of the rows that count, hits and gradients. all: number of rows that count, on the device. */
status cuda_vocabulary_softmax(backend *b, const op_call *call, char *scratch, const loss_tally *all, float *loss);

#endif
