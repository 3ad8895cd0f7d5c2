/* dataset.h - a corpus as records in a reproducible random order.
 *
 * A record is a sequence of tokens: a block of text, a text with a label (labelled.h), or a source with the target that
 * it becomes (pairs.h).
 *
 * Blocks come from one or several cached texts (token_cache.h). The tokens of a text are cut into blocks of `length`;
 * the remainder is dropped. So a block may hold the end of one document and the beginning of the next, unless
 * reset_at_document asks for blocks of one document each: every document begins a block, and its last one is shorter.
 * Tokens that nothing should predict (prompts, where the loss is on completions) are marked in a record.
 *
 * An epoch shows every block of a text `weight` times, rounded to whole blocks; a text of weight 0.5 shows one half of
 * its blocks in one epoch and the other half in the next. The order of an epoch is a Philox permutation of (seed,
 * epoch): the same everywhere, and resumable from the number of a record alone. With several texts, or a weight that is
 * not 1, that permutation gives the place in the texts laid end to end, and a second one, of each text's own passes,
 * the block (dataset_record). A dataset is immutable and thread-safe; its tokens stay on the disk.
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

#include "engine/text/token_cache.h"

typedef struct dataset dataset;

enum { DATASET_MAX_SENTINELS = 256 };

typedef enum record_kind {
	RECORD_BLOCK,    /* `length` tokens of running text */
	RECORD_LABELLED, /* at most `length` tokens, and the class that they belong to */
	RECORD_PAIR      /* a source of at most `source_length` tokens, and behind it a target of at most `length` */
} record_kind;

typedef struct text_record {
	int32_t *ids;                 /* [count] */
	unsigned char *not_predicted; /* [count]: token i is not to be predicted; NULL: all are, but the first */
	int64_t count;
	bool continues; /* not shuffled: its text stands right behind that of record i - 1, of the same document with
	                 * reset_at_document */
	int32_t label;  /* RECORD_LABELLED: the number of the class */
	int32_t source; /* RECORD_PAIR: tokens of the source; the other count - source are the target */
	/* private */
	int64_t room;
	unsigned char *flags;
} text_record;
/* Make room for records of so many tokens, which dataset_record otherwise does when it needs it. STATUS_NOMEM. */
status text_record_reserve(text_record *r, int64_t count, error *err);
void text_record_fini(text_record *r);

typedef struct dataset_text {
	token_cache *tokens; /* shared */
	double weight;       /* > 0 */
} dataset_text;

typedef struct dataset_options {
	int64_t length;   /* at least 2 */
	double held_back; /* share of each text's tokens that validates; 0: none */
	/* A text is divided before a document: the last documents that hold at least the share of the tokens. */
	bool split_documents;
	bool completions; /* predict no token of a prompt; one of the texts has to have some */
	bool reset_at_document;
} dataset_options;

/* valid: NULL without held_back. STATUS_INVALID (param "sequence_length", "validation_fraction", "loss_on"): too few
 * tokens for a block, held_back is not in [0, 1), no text has a prompt, or no block has a token to predict. */
status dataset_make(dataset **train, dataset **valid, const tokenizer *t, const dataset_text *texts, size_t n,
                    const dataset_options *o, error *err);
/* Of a text in memory, which is plain UTF-8 or JSON lines (corpus_tokens.h). STATUS_INVALID: as dataset_make and
 * corpus_tokens_build. */
status dataset_new(dataset **out, const tokenizer *t, const char *text, size_t bytes, int64_t length, error *err);
/* The same text split in two: the last ⌊fraction · tokens⌋ tokens are the second set;
 * 0 < fraction < 1, and each set needs a block. */
status dataset_split(dataset **train, dataset **valid, const tokenizer *t, const char *text, size_t bytes,
                     int64_t length, double fraction, error *err);
void dataset_free(dataset *d);

record_kind dataset_kind(const dataset *d);
/* Tokens of a record, at most; of pairs: of a target, and of a source (0: there is none). */
int64_t dataset_length(const dataset *d);
int64_t dataset_source_length(const dataset *d);
int64_t dataset_records(const dataset *d);
int64_t dataset_tokens(const dataset *d);
/* Ids of the tokenizer: what fills up a record (tokenizer_filler), and, or TOKEN_NONE, what ends a text, what stands
 * for a token that is to be guessed, and what a decoder begins with (tokenizer_start). */
int32_t dataset_pad(const dataset *d);
int32_t dataset_end(const dataset *d);
int32_t dataset_mask(const dataset *d);
int32_t dataset_start(const dataset *d);
/* Of blocks: the ids that stand for spans which are left out (tokenizer_sentinels), and how many there are. */
const int32_t *dataset_sentinels(const dataset *d, int *count);
/* Of blocks: bytes of text that the tokens of all of them stand for (for bits per byte). */
int64_t dataset_bytes(const dataset *d);
/* Of blocks: bytes of text that a token stands for. */
int64_t dataset_token_bytes(const dataset *d, int32_t id);
/* Of blocks: has that text white space (ASCII's) at its beginning, or is it nothing else? */
typedef enum token_space { SPACE_ELSEWHERE, SPACE_FIRST, SPACE_ALL } token_space;
token_space dataset_token_space(const dataset *d, int32_t id);
/* Of blocks: does a word begin at a token of text, behind a token of text? A word is white space and what follows up to
 * the next: it begins at a token whose bytes begin with white space, unless those of the token before are nothing else.
 */
bool dataset_begins_word(const dataset *d, int32_t before, int32_t id);
/* Of blocks: what the tokenizer puts before and behind the texts that encoders read (tokenizer_source_frame). */
const tokenizer_frame *dataset_source_frame(const dataset *d);
/* Bytes of memory that the tokens take. */
int64_t dataset_memory(const dataset *d);
/* What the bytes of the text are worth by their frequencies alone, in bits per byte: -Σ p log2 p. A model that has
 * learned nothing else comes to this. NaN of other records than blocks. */
double dataset_byte_entropy(const dataset *d);
/* Every id is below this: the tokenizer's size. */
int32_t dataset_vocab(const dataset *d);
/* Add how often each id is in the records of an epoch to counts [vocab]: reads all of them. STATUS_STORAGE as
 * dataset_record, STATUS_NOMEM. */
status dataset_count(const dataset *d, int64_t *counts, error *err);
/* Add the number of records of each length to counts [dataset_length + 1], and of each length of a source to sources
 * [dataset_source_length + 1]. Not for blocks. STATUS_STORAGE, STATUS_NOMEM. */
status dataset_count_lengths(const dataset *d, int64_t *counts, int64_t *sources, error *err);
/* A 64-bit hash of the records' tokens, to check that a run resumes on the data it began with. */
uint64_t dataset_fingerprint(const dataset *d);

/* Record number i of the order of `epoch`: shuffled when seed != 0, else in order. out: zero at first; its memory is
 * used again by the next call. STATUS_STORAGE: the tokens on the disk are damaged. */
status dataset_record(const dataset *d, uint64_t seed, int64_t epoch, int64_t i, text_record *out, error *err);

#endif
