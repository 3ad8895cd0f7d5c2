/* checksum.h - SHA-256 (the Nettle library), with which clients compare what they sent and what was stored.
 *
 * Data that the engine verifies on its own is hashed with XXH3 (digest.h), which is several times as fast. */
#ifndef ENGINE_BASE_CHECKSUM_H
#define ENGINE_BASE_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"

enum { CHECKSUM_TEXT_BYTES = 65 }; /* 64 lower-case hex digits and a NUL */

typedef struct checksum checksum;

/* NULL when out of memory. */
checksum *checksum_new(void);
void checksum_add(checksum *c, const void *data, size_t bytes);
/* Write the hash of all bytes added so far and reset. */
void checksum_end(checksum *c, char out[CHECKSUM_TEXT_BYTES]);
void checksum_free(checksum *c); /* NULL is legal */

/* Hash a whole file; blocks. */
status checksum_file(const char *path, char out[CHECKSUM_TEXT_BYTES], error *err);
/* Read 64 hex digits of either case at the beginning of `text`, optionally after "sha256:", and write them in lower
 * case. False if there are none. *end (may be NULL): the first character after them. */
bool checksum_read(const char *text, char out[CHECKSUM_TEXT_BYTES], const char **end);

#endif
