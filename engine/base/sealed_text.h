/* sealed_text.h - bytes as base64 text, with a keyed hash if there is a key (HMAC-SHA-256, the Nettle library).
 *
 *   without a key   base64(bytes)
 *   with a key      "hs256." base64(bytes, HMAC of the bytes)
 *
 * The hash proves that an owner of the key wrote the bytes. It does not hide them. */
#ifndef ENGINE_BASE_SEALED_TEXT_H
#define ENGINE_BASE_SEALED_TEXT_H

#include <stddef.h>

#include "engine/base/error.h"

enum { SEAL_KEY_MIN_BYTES = 16, SEAL_KEY_MAX_BYTES = 4096 };

typedef struct seal_key {
	size_t bytes; /* 0: none */
	unsigned char key[SEAL_KEY_MAX_BYTES];
} seal_key;

/* Read a key from a file, without the newlines at its end. STATUS_INVALID: fewer or more bytes than a key has. Other
 * errors as file_read. */
status seal_key_read(seal_key *out, const char *path, error *err);

/* Return the text, from malloc; NULL: out of memory. */
char *sealed_text_write(const void *data, size_t bytes, const seal_key *key);
/* Decode a text; *data is from malloc. STATUS_CORRUPT: not base64, the hash is wrong, or a hash is missing where there
 * is a key, or there is one without a key. STATUS_NOMEM. */
status sealed_text_read(const char *text, size_t length, const seal_key *key, unsigned char **data, size_t *bytes,
                        error *err);

#endif
