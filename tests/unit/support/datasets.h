/* datasets.h - datasets built from a text in memory, one for training or also one for validation.
 *
 * Lines and errors are those of corpus_tokens.h, labelled.h, pairs.h and preferences.h. */
#ifndef TESTS_UNIT_SUPPORT_DATASETS_H
#define TESTS_UNIT_SUPPORT_DATASETS_H

#include "engine/text/labelled.h"
#include "engine/text/pairs.h"
#include "engine/text/preferences.h"

status dataset_new(dataset **out, const tokenizer *t, const char *text, size_t bytes, int64_t length, error *err);
/* The last ⌊fraction · tokens⌋ tokens are the second set. */
status dataset_split(dataset **train, dataset **valid, const tokenizer *t, const char *text, size_t bytes,
                     int64_t length, double fraction, error *err);
status labelled_new(dataset **out, const tokenizer *t, const char *text, size_t bytes, int64_t length,
                    const char *const *classes, error *err);
status labelled_split(dataset **train, dataset **valid, const tokenizer *t, const char *text, size_t bytes,
                      int64_t length, double fraction, error *err);
/* valid: may be NULL if fraction is 0. */
status pairs_new(dataset **train, dataset **valid, const tokenizer *t, const char *text, size_t bytes,
                 pair_lengths lengths, double fraction, error *err);
status preferences_new(dataset **train, dataset **valid, const tokenizer *t, const char *text, size_t bytes,
                       int64_t length, double fraction, error *err);

#endif
