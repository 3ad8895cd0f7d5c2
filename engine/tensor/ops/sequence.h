/* sequence.h - the tokens of each sequence in a call of a recurrent form (*_stream). [B, N] gives each sequence N
 * tokens; `start` gives sequence s those from start[s] to start[s + 1] (ops.h). */
#ifndef ENGINE_TENSOR_OPS_SEQUENCE_H
#define ENGINE_TENSOR_OPS_SEQUENCE_H

#include <assert.h>

#include "engine/tensor/op.h"

typedef struct sequence {
	int64_t first, room; /* in tokens of the call; the sequence reads at most `room` */
} sequence;

/* The sequences of a call, whose input `i` (of `n_in`) is start. */
static inline int64_t sequence_count(const op_call *call, int i)
{
	return i < call->n_in && call->in[i].data ? call->in[i].shape.dim[0] : call->in[0].shape.dim[0];
}

static inline sequence sequence_at(const op_call *call, int i, int64_t s)
{
	const int64_t n = call->in[0].shape.dim[1];
	if (i >= call->n_in || !call->in[i].data)
		return (sequence){s * n, n};
	const int32_t *start = call->in[i].data;
	const int64_t end = s + 1 < call->in[i].shape.dim[0] ? start[s + 1] : n;
	assert((s > 0 || start[s] == 0) && start[s] <= end && end <= n);
	return (sequence){start[s], end - start[s]};
}

#endif
