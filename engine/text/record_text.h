/* record_text.h - records of tokens, each with a number, as two cached files (token_cache.h).
 *
 *   PATH           the tokens of all records, one behind the other
 *   PATH.entries   of each record 3 words: where it ends in the tokens (low, high), and its number; then what the
 *                  kind of text adds
 *
 * What the number means, and what a line of JSON must have, is the kind's: labelled_text.h, pairs.h. Memory of a build:
 * a piece of the text and two blocks of a cache. */
#ifndef ENGINE_TEXT_RECORD_TEXT_H
#define ENGINE_TEXT_RECORD_TEXT_H

#include <limits.h>

#include "engine/text/corpus_tokens.h"
#include "engine/text/jsonl.h"

enum { RECORD_ENTRY = 3 /* words */ };

typedef struct record_text {
	token_cache *tokens, *entries;
	int64_t records;
} record_text;

/* What the lines of a text become. */
typedef struct record_writer {
	token_writer *tokens, *entries;
	int64_t end, records; /* tokens and records so far */
} record_writer;
status record_writer_add(record_writer *w, const int32_t *ids, int64_t count, int32_t number, error *err);
/* Further words behind all entries. */
status record_writer_add_words(record_writer *w, const int32_t *words, int64_t n, error *err);

typedef struct record_maker {
	jsonl_object line;                           /* adds a record to *writer */
	status (*finish)(void *context, error *err); /* behind the last line; NULL: nothing is to do */
	record_writer *writer;                       /* zero at first */
	void *context;
} record_maker;

/* Takes ownership of the source, also on failure; of the options, chat, threads and piece_bytes are not used. Errors
 * are those of corpus_tokens_build and of the maker; STATUS_INVALID without a record. After a failure nothing is left
 * of the files. */
status record_text_build(record_text *out, byte_source *source, const tokenizer *t, const record_maker *m,
                         const corpus_tokens_options *o, error *err);
/* As token_cache_open. `records` is what the entries have room for. */
status record_text_open(record_text *out, const char *path, uint64_t key, int32_t vocab, error *err);
/* Zeros are legal, and what is left. Datasets keep the files open. */
void record_text_close(record_text *x);
/* The two files of a path: remove them; give them another, false where that fails (errno). Where the tokens have their
 * name, the entries have theirs. */
void record_text_unlink(const char *path);
bool record_text_rename(const char *from, const char *to);
/* STATUS_STORAGE: the words of the entries contradict each other. */
status record_text_damaged(error *err);

#endif
