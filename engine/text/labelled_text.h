/* labelled_text.h - a labelled text of any size as cached records (record_text.h).
 *
 * The number of a record is its label, by the order of first appearance. Behind the entries stand the names of the
 * classes, and how many records and classes there are. What a line is: labelled.h. Memory of a build, beside that of
 * record_text.h: the names of the classes. */
#ifndef ENGINE_TEXT_LABELLED_TEXT_H
#define ENGINE_TEXT_LABELLED_TEXT_H

#include "engine/text/record_text.h"

typedef struct labelled_text {
	record_text text;
	int32_t n_classes;
	char **classes;   /* [n_classes + 1]: names in the order of their numbers, NULL-terminated */
	int32_t *numbers; /* [n_classes]: the number of the class that appeared i-th */
	char *names;      /* what `classes` points to */
} labelled_text;

/* Records of at most `length` tokens. classes: as of labelled_new. Source, options and errors as of record_text_build;
 * further errors as of labelled_new. */
status labelled_text_build(labelled_text *out, byte_source *source, const tokenizer *t, int64_t length,
                           const char *const *classes, const corpus_tokens_options *o, error *err);
/* As token_cache_open. */
status labelled_text_open(labelled_text *out, const char *path, uint64_t key, int32_t vocab, error *err);
/* Zeros are legal, and what is left. Datasets keep the files open. */
void labelled_text_close(labelled_text *x);

#endif
