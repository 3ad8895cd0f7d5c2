/* checksum.h - SHA-256 (the Nettle library), by which clients compare what they sent with what was stored.
 *
 * What the engine verifies of its own accord is hashed with XXH3 (digest.h), which is several times as fast. */
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
/* Of all that was added; begins anew. */
void checksum_end(checksum *c, char out[CHECKSUM_TEXT_BYTES]);
void checksum_free(checksum *c); /* NULL is legal */

/* Of a whole file; blocks. */
status checksum_file(const char *path, char out[CHECKSUM_TEXT_BYTES], error *err);
/* 64 hex digits of either case at the beginning of `text`, which may have "sha256:" before them, as lower-case ones.
 * False: there are none. *end: behind them; may be NULL. */
bool checksum_read(const char *text, char out[CHECKSUM_TEXT_BYTES], const char **end);

#endif
