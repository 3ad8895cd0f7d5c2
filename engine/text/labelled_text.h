/* labelled_text.h - a labelled text of any size as cached records (record_text.h).
 *
 * The number of a record is its label, in order of first appearance. The entries are followed by the names of the
 * classes, and the numbers of records and classes. labelled.h defines the lines. A build needs the memory of
 * record_text.h and the names of the classes. */
#ifndef ENGINE_TEXT_LABELLED_TEXT_H
#define ENGINE_TEXT_LABELLED_TEXT_H

#include "engine/text/record_text.h"

typedef struct labelled_text {
	record_text text;
	int32_t n_classes;
	char **classes;   /* [n_classes + 1]: names by number, NULL-terminated */
	int32_t *numbers; /* [n_classes]: the number of the class that appeared i-th */
	char *names;      /* storage of `classes` */
} labelled_text;

/* Build records of at most `length` tokens. classes: names of the classes by number (labelled_classes of
 * another dataset), NULL-terminated; another label is an error. With NULL the labels are collected, and there must be
 * two. Source, options and errors as for record_text_build. STATUS_INVALID also: a bad line (by its number), no record,
 * one class, or length (param "sequence_length") under SEQUENCE_MIN_LENGTH. */
status labelled_text_build(labelled_text *out, byte_source *source, const tokenizer *t, int64_t length,
                           const char *const *classes, const corpus_tokens_options *o, error *err);
/* As token_cache_open. */
status labelled_text_open(labelled_text *out, const char *path, uint64_t key, int32_t vocab, error *err);
/* Accepts zeros and partly opened texts. Datasets keep the files open. */
void labelled_text_close(labelled_text *x);

#endif
