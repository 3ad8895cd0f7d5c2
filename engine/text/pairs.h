/* pairs.h - datasets of sources and targets.
 *
 * JSON lines: {"source": "…", "target": "…"}; further keys are ignored, blank lines skipped. A target may be empty. A
 * record is at most `source_length` tokens of the source and at most `length` tokens of the target with its end
 * (sequence.h). The source includes the tokens that the tokenizer's template adds around texts. Longer texts lose their
 * end.
 *
 * A cached text is a record_text.h; the number of a record is the number of its source tokens. */
#ifndef ENGINE_TEXT_PAIRS_H
#define ENGINE_TEXT_PAIRS_H

#include "engine/text/dataset.h"
#include "engine/text/record_text.h"

typedef struct pair_lengths {
	int64_t source, target; /* tokens, at least 1 */
} pair_lengths;

/* Source, options and errors as for record_text_build; STATUS_INVALID: a bad line (by its number), or a tokenizer
 * without a token that ends a text (param "tokenizer"). */
status pairs_build(record_text *out, byte_source *source, const tokenizer *t, pair_lengths lengths,
                   const corpus_tokens_options *o, error *err);
/* Build datasets from a cached text that was built with this tokenizer and these lengths; fraction as for
 * labelled_make. */
status pairs_make(dataset **train, dataset **valid, const tokenizer *t, const record_text *x, pair_lengths lengths,
                  double fraction, error *err);

#endif
