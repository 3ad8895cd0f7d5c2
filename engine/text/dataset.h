/* dataset.h - a corpus as records in a reproducible random order.
 *
 * A record is a sequence of tokens: a block of text, a text with a label (labelled.h), or a source with its target
 * (pairs.h). Or it is two sequences: a prompt with each of two completions (preferences.h).
 *
 * Blocks come from one or several cached texts (token_cache.h). The tokens of a text are cut into blocks of `length`;
 * the remainder is dropped. A block may therefore contain the end of one document and the beginning of the next. With
 * reset_at_document a block has tokens of one document only: every document begins a block, and its last block is
 * shorter. Tokens that must not be predicted (prompts, if the loss is on completions) are marked in a record.
 *
 * An epoch shows every block of a text `weight` times, rounded to whole blocks; a text of weight 0.5 shows one half of
 * its blocks in one epoch and the other half in the next. The order of an epoch is a Philox permutation of (seed,
 * epoch). It is the same on every machine, and can be resumed from the number of a record. With several texts, or a
 * weight that is not 1, that permutation gives the place in the concatenated texts; a second one, of each text's own
 * passes, gives the block (dataset_record). A dataset is immutable and thread-safe; its tokens stay on the disk.
 *
 * Memory: 1 KiB per 2^18 tokens, and 8 bytes per block with reset_at_document. A file of labelled texts or pairs that
 * is divided in two takes half a byte per record. tests/reference/train.py repeats the order.
 *
 * The permutation of 0…n-1 is a Feistel network on pairs of h-bit halves, h >= 1 the least with 4^h >= n, walked until
 * the result is below n:
 *     repeat   (l, r) = (x >> h, x mod 2^h)
 *              for round = 0…7:
 *                  word = philox(seed, PHILOX_STREAM_SHUFFLE, epoch, round·2^32 + r).word[0]
 *                  (l, r) = (r, l xor (word mod 2^h))
 *              x = l·2^h + r
 *     until x < n */
#ifndef ENGINE_TEXT_DATASET_H
#define ENGINE_TEXT_DATASET_H

#include "engine/text/token_cache.h"

typedef struct dataset dataset;

enum { DATASET_MAX_SENTINELS = 256 };

typedef enum record_kind {
	RECORD_BLOCK,     /* `length` tokens of running text */
	RECORD_LABELLED,  /* at most `length` tokens, and their class */
	RECORD_PAIR,      /* a source of at most `source_length` tokens, followed by a target of at most `length` */
	RECORD_PREFERENCE /* two sequences of at most `length` tokens that begin with the same prompt */
} record_kind;

typedef struct text_record {
	int32_t *ids;                 /* [count] */
	unsigned char *not_predicted; /* [count]: token i is not to be predicted; NULL: all except the first are */
	int64_t count;
	bool continues; /* not shuffled: its text directly follows that of record i - 1, in the same document with
	                 * reset_at_document */
	int32_t label;  /* RECORD_LABELLED: number of the class */
	int32_t source; /* RECORD_PAIR: tokens of the source; the other count - source are the target.
	                 * RECORD_PREFERENCE: tokens of the prompt in each sequence */
	int64_t second; /* RECORD_PREFERENCE: where the rejected sequence begins */
	int64_t number; /* its place in the order that is not shuffled */
	/* private */
	int64_t room;
	unsigned char *flags;
} text_record;
/* Make room for records of this many tokens; otherwise dataset_record does so when needed. STATUS_NOMEM. */
status text_record_reserve(text_record *r, int64_t count, error *err);
void text_record_fini(text_record *r);

typedef struct dataset_text {
	token_cache *tokens; /* shared */
	double weight;       /* > 0 */
} dataset_text;

typedef struct dataset_options {
	int64_t length;   /* at least 2 */
	double held_back; /* share of each text's tokens used for validation; 0: none */
	/* Split a text before a document: the last documents that hold at least the share of the tokens. */
	bool split_documents;
	bool completions; /* predict no token of a prompt; at least one text must have prompts */
	bool reset_at_document;
} dataset_options;

/* valid: NULL without held_back. STATUS_INVALID (param "sequence_length", "validation_fraction", "loss_on"): too few
 * tokens for a block, held_back is not in [0, 1), no text has a prompt, or no block has a token to predict. */
status dataset_make(dataset **train, dataset **valid, const tokenizer *t, const dataset_text *texts, size_t n,
                    const dataset_options *o, error *err);
void dataset_free(dataset *d);

record_kind dataset_kind(const dataset *d);
/* Maximum number of tokens of a record; for pairs: of a target, and of a source (0: no source); for preferences: of a
 * sequence. */
int64_t dataset_length(const dataset *d);
int64_t dataset_source_length(const dataset *d);
int64_t dataset_records(const dataset *d);
int64_t dataset_tokens(const dataset *d);
/* Ids of the tokenizer. pad: fills up a record (tokenizer_filler). The others may be TOKEN_NONE: end of a text, mask,
 * and beginning of a decoder's sequence (tokenizer_start). */
int32_t dataset_pad(const dataset *d);
int32_t dataset_end(const dataset *d);
int32_t dataset_mask(const dataset *d);
int32_t dataset_start(const dataset *d);
/* Blocks only: the ids that represent removed spans (tokenizer_sentinels), and their number. */
const int32_t *dataset_sentinels(const dataset *d, int *count);
/* Blocks only: bytes of text of a token. */
int64_t dataset_token_bytes(const dataset *d, int32_t id);
/* Blocks only: the white space (ASCII's) at the beginning of a token's text, or its being all white space. */
typedef enum token_space { SPACE_ELSEWHERE, SPACE_FIRST, SPACE_ALL } token_space;
token_space dataset_token_space(const dataset *d, int32_t id);
/* Blocks only: true if a word begins at a token of text that follows another token of text. A word is white space and
 * the characters up to the next white space. It begins at a token whose bytes begin with white space, unless the token
 * before is all white space. */
bool dataset_begins_word(const dataset *d, int32_t before, int32_t id);
/* Blocks only: the tokens that the tokenizer adds before and after the texts that encoders read
 * (tokenizer_source_frame). */
const tokenizer_frame *dataset_source_frame(const dataset *d);
/* Bytes of memory that the tokens take. */
int64_t dataset_memory(const dataset *d);
/* Entropy of the text's bytes by their frequencies alone, in bits per byte: -Σ p log2 p. A model that has learned
 * nothing else reaches this. NaN for records other than blocks. */
double dataset_byte_entropy(const dataset *d);
/* Every id is below this: the tokenizer's size. */
int32_t dataset_vocab(const dataset *d);
/* Add the number of occurrences of each id in an epoch's records to counts [vocab]; reads all records. STATUS_STORAGE
 * as dataset_record, STATUS_NOMEM. */
status dataset_count(const dataset *d, int64_t *counts, error *err);
/* Bound of the tokens of a record: text_record.count. */
int64_t dataset_room(const dataset *d);
/* Add the number of records, or sequences, of each length to counts [dataset_length + 1], and of each length of a
 * source to sources [dataset_source_length + 1]. Not for blocks. STATUS_STORAGE, STATUS_NOMEM. */
status dataset_count_lengths(const dataset *d, int64_t *counts, int64_t *sources, error *err);
/* A 64-bit hash of the records' tokens, to check that a run resumes with the same data. */
uint64_t dataset_fingerprint(const dataset *d);

/* Record number i in the order of `epoch`: shuffled if seed != 0, else in order. out: zero at first; its memory is
 * reused by the next call. STATUS_STORAGE: the tokens on the disk are damaged. */
status dataset_record(const dataset *d, uint64_t seed, int64_t epoch, int64_t i, text_record *out, error *err);

#endif
