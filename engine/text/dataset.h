/* dataset.h - a corpus as fixed-length training blocks.
 *
 * Input: plain UTF-8 text, or JSON lines with "text" or "prompt"/"completion"
 * (documents are joined with an end-of-text token). Tokens are concatenated and cut
 * into blocks of `length`; the remainder is dropped. Block order in an epoch is a
 * Philox permutation of (seed, epoch): the same everywhere, and resumable from a
 * block number alone. */
#ifndef ENGINE_TEXT_DATASET_H
#define ENGINE_TEXT_DATASET_H

#include "engine/text/tokenizer.h"

typedef struct dataset dataset;

/* Tokenise text in memory. jsonl is told by content: the first non-blank line parses as a
 * JSON object with one of the keys above. Errors name the line. STATUS_INVALID for
 * invalid UTF-8, or when there are fewer than length + 1 tokens. */
status dataset_new(dataset **out, const tokenizer *t, const char *text, size_t bytes, int64_t length, error *err);
/* The same corpus split in two: the last `fraction` of the tokens is the second set. */
status dataset_split(dataset **train, dataset **valid, const tokenizer *t, const char *text, size_t bytes,
		     int64_t length, double fraction, error *err);
void dataset_free(dataset *d);

int64_t dataset_blocks(const dataset *d);
int64_t dataset_tokens(const dataset *d);
/* Bytes of text that the tokens of all whole blocks stand for (for bits per byte). */
int64_t dataset_bytes(const dataset *d);

/* Block number i of the order of `epoch` (shuffled when seed != 0, else in order):
 * ids[length] and labels[length]; labels[j] = ids[j + 1], and -1 (ignored) at the end of
 * the block, as in the reference recipe. */
void dataset_block(const dataset *d, uint64_t seed, int64_t epoch, int64_t i, int32_t *ids, int32_t *labels);

#endif
