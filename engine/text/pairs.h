/* pairs.h - datasets of sources with the targets that they become.
 *
 * JSON lines: {"source": "…", "target": "…"}; further keys are ignored, blank lines skipped. A target may be empty. A
 * record is at most `source_length` tokens of the source, with what the tokenizer's template puts before and behind
 * texts, and at most `length` tokens of the target with its end (sequence.h). What is too long loses its end.
 *
 * A cached text is a record_text.h; the number of a record is how many of its tokens are the source's. */
#ifndef ENGINE_TEXT_PAIRS_H
#define ENGINE_TEXT_PAIRS_H

#include "engine/text/dataset.h"
#include "engine/text/record_text.h"

typedef struct pair_lengths {
	int64_t source, target; /* tokens, at least 1 */
} pair_lengths;

/* Source, options and errors as of record_text_build; STATUS_INVALID: a bad line (by its number), or a tokenizer
 * without a token that ends a text (param "tokenizer"). */
status pairs_build(record_text *out, byte_source *source, const tokenizer *t, pair_lengths lengths,
                   const corpus_tokens_options *o, error *err);
/* Of a cached text that was built with this tokenizer and these lengths; fraction as of labelled_make. */
status pairs_make(dataset **train, dataset **valid, const tokenizer *t, const record_text *x, pair_lengths lengths,
                  double fraction, error *err);
/* Of a text in memory. */
status pairs_new(dataset **train, dataset **valid, const tokenizer *t, const char *text, size_t bytes,
                 pair_lengths lengths, double fraction, error *err);

#endif
