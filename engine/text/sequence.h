/* sequence.h - a text, or a pair of texts, as the tokens that a classifier, an encoder or a decoder reads.
 *
 * A classifier's:
 *
 *   text [end]      or      text [end] second [end]
 *
 * or as the tokenizer's own files have it (tokenizer_frame_of): RoBERTa's [begin] text [end] [end] second [end].
 *
 * At most `length` tokens in all. What is too long loses its end: of a pair the longer text, token by token, until both
 * fit (the second of two equally long ones). What stands around the texts stays. */
#ifndef ENGINE_TEXT_SEQUENCE_H
#define ENGINE_TEXT_SEQUENCE_H

#include "engine/text/tokenizer.h"

/* Room for the shortest pair: a token of each, and both ends. */
enum { SEQUENCE_MIN_LENGTH = 4 };
enum { SEQUENCE_FORMAT = 2 /* a part of the key of texts that were kept in this form */ };

/* ids: room for `length` >= SEQUENCE_MIN_LENGTH. second: NULL for a single text. *count: the tokens that were written.
 * STATUS_INVALID "sequence_length": what stands around the texts alone is longer. */
status sequence_encode(const tokenizer *t, const char *text, size_t bytes, const char *second, size_t second_bytes,
                       int64_t length, int32_t *ids, int64_t *count, error *err);

/* The same of what an encoder reads: the text with what the tokenizer's template puts before and behind texts. One that
 * is too long loses the end of the text. ids: room for `length`; STATUS_INVALID if the template alone is longer. */
status sequence_encode_source(const tokenizer *t, const char *text, size_t bytes, int64_t length, int32_t *ids,
                              int64_t *count, error *err);
/* And of what a decoder is to write: text [end]. The tokenizer has an end; length >= 1. */
status sequence_encode_target(const tokenizer *t, const char *text, size_t bytes, int64_t length, int32_t *ids,
                              int64_t *count, error *err);

#endif
