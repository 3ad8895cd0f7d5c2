/* tokens.h - tokens in answers, and the methods tokenize and detokenize. Loop thread, except where said. */
#ifndef ENGINE_DAEMON_GENERATION_TOKENS_H
#define ENGINE_DAEMON_GENERATION_TOKENS_H

#include "engine/daemon/net/stream.h"
#include "engine/daemon/catalog/catalog.h"
#include "engine/text/tokenizer.h"

/* True if the request's text begins with the tokens that the tokenizer puts before one (add_special_tokens). */
bool tokens_begin(const json_t *params);
/* Encode a text to continue or explain, without the tokens that end a text. For a classifier, encode it as in training.
 * Any thread. */
status tokens_of_text(token_list *out, const model_entry *m, const char *text, size_t bytes, bool begin, error *err);

/* STATUS_INVALID if a text of this many bytes certainly has more than `limit` tokens and need not be encoded. */
status tokens_check_bytes(const model_entry *m, size_t bytes, int64_t limit, const char *param, error *err);

/* Return [{"id","text","offset"}…]. `text` is the characters that the token completes, so all texts joined are the
 * whole text; a character split over tokens belongs to the last of them. `offset` is the bytes of text before it. NULL:
 * out of memory. Any thread. */
json_t *tokens_pieces(const tokenizer *t, const int32_t *ids, int64_t n);

/* Return the characters that the last of n tokens completes; three tokens before it are enough context. New reference;
 * any thread. */
json_t *tokens_text(const tokenizer *t, const int32_t *ids, int64_t n);
/* Return the text of n tokens. whole: nothing follows, so an unfinished character becomes U+FFFD. New reference; NULL:
 * out of memory. Any thread. */
json_t *tokens_join(const tokenizer *t, const int32_t *ids, int64_t n, bool whole);
/* True if the bytes of these tokens end with this text, which is not empty. Any thread. */
bool tokens_end_with(const tokenizer *t, const int32_t *ids, int64_t n, const char *text);
/* Return the bytes of the characters that a token completes, after those added to `text` before. Any thread. */
int64_t tokens_advance(const tokenizer *t, text_stream *text, int32_t id);
/* Return the character at which a token begins in the text, and add the characters that it completes to *characters.
 * Any thread. */
int64_t tokens_place(const tokenizer *t, text_stream *text, int32_t id, int64_t *characters);
/* Return one token as log-probabilities name it: its characters, the name of a special token, or "bytes:\xe2\x82" if it
 * is not whole characters. New reference; any thread. */
json_t *tokens_name(const tokenizer *t, int32_t id);

void tokens_encode(stream *s); /* tokenize */
void tokens_decode(stream *s); /* detokenize */

#endif
