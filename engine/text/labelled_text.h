/* labelled_text.h - a labelled text of any size as two cached files (token_cache.h).
 *
 *   PATH           the tokens of all records, one behind the other
 *   PATH.entries   of each record 3 words: where it ends in the tokens (low, high), and its label, by the order of
 * first appearance; then the names of the classes, and how many records and classes there are
 *
 * What a line is: labelled.h. Memory: a piece of the text, two blocks of a cache, and the names of the classes. */
#ifndef ENGINE_TEXT_LABELLED_TEXT_H
#define ENGINE_TEXT_LABELLED_TEXT_H

#include <limits.h>

#include "engine/text/corpus_tokens.h"

enum { LABELLED_ENTRY = 3 /* words */ };

typedef struct labelled_text {
	token_cache *tokens, *entries;
	int64_t records;
	int32_t n_classes;
	char **classes;   /* [n_classes + 1]: names in the order of their numbers, NULL-terminated */
	int32_t *numbers; /* [n_classes]: the number of the class that appeared i-th */
	char *names;      /* what `classes` points to */
} labelled_text;

/* Records of at most `length` tokens. Takes ownership of the source, also on failure; the options' chat, threads and
 * piece_bytes are not used. classes: as of labelled_new. Errors as of labelled_new and corpus_tokens_build; nothing is
 * left of the files then. */
status labelled_text_build(labelled_text *out, byte_source *source, const tokenizer *t, int64_t length,
                           const char *const *classes, const corpus_tokens_options *o, error *err);
/* As token_cache_open. */
status labelled_text_open(labelled_text *out, const char *path, uint64_t key, int32_t vocab, error *err);
/* Zeros are legal, and what is left. Datasets keep the files open. */
void labelled_text_close(labelled_text *x);
/* The second file's path. */
void labelled_text_entries(const char *path, char out[PATH_MAX]);

#endif
