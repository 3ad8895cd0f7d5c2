/* tokenizer.h - text to token ids and back.
 *
 * Types share one interface; today: "bytes" (ids 0 pad, 1 end of text, 2 unknown,
 * byte b is b + 3; 259 ids). A tokenizer is immutable and thread-safe. In a model
 * folder it is tokenizer.json: {"type": "bytes"}; a folder without one uses bytes. */
#ifndef ENGINE_TEXT_TOKENIZER_H
#define ENGINE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "engine/base/error.h"

enum { TOKEN_PAD = 0, TOKEN_END = 1, TOKEN_UNKNOWN = 2 };

typedef struct tokenizer tokenizer;

/* From an API or tokenizer.json object such as {"type": "bytes"}; NULL: bytes.
 * STATUS_UNSUPPORTED for an unknown type (param "type"). */
status tokenizer_new(tokenizer **out, const json_t *spec, error *err);
/* From a model folder. vocab: the model's vocabulary; a tokenizer with more ids than
 * that is STATUS_INVALID. A tokenizer.json that differs from the folder's manifest.json, if it has one, is
 * STATUS_STORAGE. */
status tokenizer_open(tokenizer **out, const char *folder, int64_t vocab, error *err);
status tokenizer_save(const tokenizer *t, const char *folder, error *err);
void tokenizer_free(tokenizer *t);

const char *tokenizer_type(const tokenizer *t);
int32_t tokenizer_size(const tokenizer *t);
/* The ids that fill up a row, and that end a text. */
int32_t tokenizer_pad(const tokenizer *t);
int32_t tokenizer_end(const tokenizer *t);

/* Encode `bytes` bytes of text; *ids is malloc'ed. No special tokens are added. */
status tokenizer_encode(const tokenizer *t, const char *text, size_t bytes, int32_t **ids, size_t *count, error *err);
/* The bytes one token stands for ("" for specials); at most `size` are written,
 * the full count is returned. Not NUL-terminated. */
size_t tokenizer_token_bytes(const tokenizer *t, int32_t id, char *out, size_t size);

/* Incremental detokenizer: bytes in, whole UTF-8 characters out. A character split
 * over tokens is held back until it is whole; an invalid byte becomes U+FFFD. */
typedef struct text_stream {
	unsigned char held[4];
	int n_held;
} text_stream;
/* Append what `bytes` completes to out (room for 3 * (n + 3) bytes); returns the
 * bytes written. flush: nothing more is coming, held bytes become U+FFFD. */
size_t text_stream_push(text_stream *s, const char *bytes, size_t n, bool flush, char *out);

#endif
