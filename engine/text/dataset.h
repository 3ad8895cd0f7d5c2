/* dataset.h - a corpus as records in a reproducible random order.
 *
 * A record is a sequence of tokens: a block of text, or a text with a label (labelled.h).
 *
 * Blocks: plain UTF-8 text, or JSON lines with "text" or "prompt"/"completion"
 * (each document is followed by an end-of-text token). A byte order mark at the beginning is
 * dropped. Tokens are concatenated and cut into blocks of `length`; the remainder is dropped.
 * The order of an epoch is a Philox permutation of (seed, epoch): the same everywhere, and
 * resumable from the number of a record alone. A dataset is immutable and thread-safe.
 *
 * The permutation of 0…n-1 is a Feistel network on pairs of h-bit halves, h >= 1 the least
 * with 4^h >= n, walked until the result is below n:
 *     repeat   (l, r) = (x >> h, x mod 2^h)
 *              for round = 0…7:
 *                  word = philox(seed, PHILOX_STREAM_SHUFFLE, epoch, round·2^32 + r).word[0]
 *                  (l, r) = (r, l xor (word mod 2^h))
 *              x = l·2^h + r
 *     until x < n */
#ifndef ENGINE_TEXT_DATASET_H
#define ENGINE_TEXT_DATASET_H

#include "engine/text/tokenizer.h"

typedef struct dataset dataset;

typedef enum record_kind {
	RECORD_BLOCK,   /* `length` tokens of running text */
	RECORD_LABELLED /* at most `length` tokens, and the class that they belong to */
} record_kind;

typedef struct text_record {
	const int32_t *ids; /* valid as long as the dataset */
	int64_t count;
	int32_t label; /* RECORD_LABELLED: the number of the class */
} text_record;

/* Tokenise text in memory. JSON lines are recognised by their content (jsonl_detect). STATUS_INVALID: invalid UTF-8
 * (the message has the byte's offset), a bad line (its number), or fewer than `length` tokens (param "sequence_length";
 * length must be at least 2). */
status dataset_new(dataset **out, const tokenizer *t, const char *text, size_t bytes, int64_t length, error *err);
/* The same corpus split in two: the last ⌊fraction · tokens⌋ tokens are the second set;
 * 0 < fraction < 1, and each set needs a block. */
status dataset_split(dataset **train, dataset **valid, const tokenizer *t, const char *text, size_t bytes,
                     int64_t length, double fraction, error *err);
void dataset_free(dataset *d);

record_kind dataset_kind(const dataset *d);
/* Tokens of a record, at most. */
int64_t dataset_length(const dataset *d);
int64_t dataset_records(const dataset *d);
int64_t dataset_tokens(const dataset *d);
/* Ids of the tokenizer: what fills up a record, and what ends a text. */
int32_t dataset_pad(const dataset *d);
int32_t dataset_end(const dataset *d);
/* Of blocks: bytes of text that the tokens of all of them stand for (for bits per byte). */
int64_t dataset_bytes(const dataset *d);
/* Of blocks: bytes of text that the tokens of the first `blocks` of them stand for, without the first token of each,
 * which nothing predicts. */
int64_t dataset_label_bytes(const dataset *d, int64_t blocks);
/* What the bytes of the text are worth by their frequencies alone, in bits per byte: -Σ p log2 p. A model that has
 * learned nothing else comes to this. NaN of other records than blocks. */
double dataset_byte_entropy(const dataset *d);
/* Every id is below this: the tokenizer's size. */
int32_t dataset_vocab(const dataset *d);
/* A 64-bit hash of the records, to check that a run resumes on the data it began with. */
uint64_t dataset_fingerprint(const dataset *d);

/* Record number i of the order of `epoch`: shuffled when seed != 0, else in order. */
text_record dataset_record(const dataset *d, uint64_t seed, int64_t epoch, int64_t i);

#endif
