/* sequence.h - a text, or a pair of texts, as tokens for a classifier, an encoder or a decoder.
 *
 * For a classifier:
 *
 *   text [end]      or      text [end] second [end]
 *
 * or as the tokenizer's own files define it (tokenizer_frame_of): RoBERTa's [begin] text [end] [end] second [end].
 *
 * At most `length` tokens in all. Longer texts lose their end: in a pair the longer text, token by token, until both
 * fit (the second one if equally long). The tokens around the texts are kept. */
#ifndef ENGINE_TEXT_SEQUENCE_H
#define ENGINE_TEXT_SEQUENCE_H

#include "engine/text/tokenizer.h"

/* Room for the shortest pair: a token of each, and both ends. */
enum { SEQUENCE_MIN_LENGTH = 4 };
enum { SEQUENCE_FORMAT = 2 /* part of the key of texts that are cached in this form */ };

/* ids: room for `length` >= SEQUENCE_MIN_LENGTH. second: NULL for a single text. *count: the number of tokens written.
 * STATUS_INVALID "sequence_length": the tokens around the texts alone are longer. */
status sequence_encode(const tokenizer *t, const char *text, size_t bytes, const char *second, size_t second_bytes,
                       int64_t length, int32_t *ids, int64_t *count, error *err);

/* Encode for an encoder: the text with the tokens that the tokenizer's template adds around texts. A long text loses
 * its end. ids: room for `length`; STATUS_INVALID if the template alone is longer. */
status sequence_encode_source(const tokenizer *t, const char *text, size_t bytes, int64_t length, int32_t *ids,
                              int64_t *count, error *err);
/* Encode a decoder's target: text [end]. The tokenizer has an end; length >= 1. */
status sequence_encode_target(const tokenizer *t, const char *text, size_t bytes, int64_t length, int32_t *ids,
                              int64_t *count, error *err);

#endif
