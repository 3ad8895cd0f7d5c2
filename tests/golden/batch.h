/* batch.h - sequences of token ids with their masks and labels, [B, N] each, as tensors of a file have them. */
#ifndef TESTS_GOLDEN_BATCH_H
#define TESTS_GOLDEN_BATCH_H

#include "engine/model/feed.h"
#include "engine/model/safetensors.h"

enum { BATCH_IGNORED = -100 }; /* a label in files, as the reference ecosystem has it */

/* Tensors of a mapped file. */
typedef struct batch_source {
	const safetensors_entry *ids;
	const safetensors_entry *mask, *labels; /* NULL: nothing is masked; the unmasked tokens are their own labels */
} batch_source;

typedef struct batch {
	int64_t sequences, length;
	int32_t *ids;
	int32_t *mask;   /* NULL: nothing is masked */
	/* [B, N]: for position i the token at i + 1, or at i if the model is not causal; negative: ignored */
	int32_t *labels;
} batch;

/* STATUS_INVALID naming the tensor: another shape or type, ids the model lacks, more tokens than its positions (with
 * POSITION_ERROR). *out is to be freed also on failure. */
status batch_read(batch *out, batch_source in, const model_dims *dims, position_policy policy, error *err);
void batch_free(batch *b);

#endif
