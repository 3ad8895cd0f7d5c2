/* record_text.h - records of tokens, each with a number, as two cached files (token_cache.h).
 *
 *   PATH           the tokens of all records, concatenated
 *   PATH.entries   3 words for each record: its end in the tokens (low, high), and its number; then further
 *                  words of the kind of text
 *
 * The kind defines the meaning of the number and the members of a line: labelled_text.h, pairs.h. Memory of a build: a
 * piece of the text and two blocks of a cache. */
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

/* Receives the records that a kind makes of lines. */
typedef struct record_writer {
	token_writer *tokens, *entries;
	int64_t end, records; /* tokens and records so far */
} record_writer;
status record_writer_add(record_writer *w, const int32_t *ids, int64_t count, int32_t number, error *err);
/* Add further words after all entries. */
status record_writer_add_words(record_writer *w, const int32_t *words, int64_t n, error *err);

typedef struct record_maker {
	jsonl_object line;                           /* adds a record to *writer */
	status (*finish)(void *context, error *err); /* after the last line; NULL: nothing to do */
	record_writer *writer;                       /* zero at first */
	void *context;
} record_maker;

/* Takes ownership of the source, even on failure; the options chat, threads and piece_bytes are not used. Errors are
 * those of corpus_tokens_build and of the kind; STATUS_INVALID without a record. A failure leaves no files. */
status record_text_build(record_text *out, byte_source *source, const tokenizer *t, const record_maker *m,
                         const corpus_tokens_options *o, error *err);
/* Like token_cache_open. `records`: the number that the entries have room for. */
status record_text_open(record_text *out, const char *path, uint64_t key, int32_t vocab, error *err);
/* Accepts zeros and partly opened texts. Datasets keep the files open. */
void record_text_close(record_text *x);
/* Remove or rename the two files of a path; renaming returns false on failure (errno). Once the tokens have the new
 * name, the entries have it too. */
void record_text_unlink(const char *path);
bool record_text_rename(const char *from, const char *to);
/* STATUS_STORAGE: the words of the entries are inconsistent. */
status record_text_damaged(error *err);

#endif
