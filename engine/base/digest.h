/* digest.h - the hash that detects damaged data: XXH3, 64 bits (the xxHash library).
 *
 * It detects damage by disks, copies and crashes. It does not protect against deliberate changes. */
#ifndef ENGINE_BASE_DIGEST_H
#define ENGINE_BASE_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DIGEST_TEXT_BYTES = 17 }; /* 16 hex digits and a NUL */

uint64_t digest_bytes(const void *data, size_t bytes);

/* A digest of data that comes in pieces. The result does not depend on how the data is cut. */
typedef struct digest_stream digest_stream;
/* NULL when out of memory. */
digest_stream *digest_stream_new(void);
void digest_stream_add(digest_stream *d, const void *data, size_t bytes);
/* Digest of all data added so far. */
uint64_t digest_stream_value(const digest_stream *d);
/* 128 bits for the same data, for counting: collisions are negligible up to 2^40 texts. */
typedef struct digest_wide {
	uint64_t low, high;
} digest_wide;
digest_wide digest_stream_wide(const digest_stream *d);
/* Forget all data. */
void digest_stream_reset(digest_stream *d);
void digest_stream_free(digest_stream *d); /* NULL is legal */

/* Digest of `bytes` bytes of an open file from offset `at`, read in pieces without heap memory. False if they cannot be
 * read (errno) or there are fewer (errno is 0). */
bool digest_file(int fd, int64_t at, size_t bytes, uint64_t *out);

/* Write 16 lower-case hex digits. */
void digest_write(uint64_t digest, char out[DIGEST_TEXT_BYTES]);
/* Read the first 16 characters of `text`; false if they are not hex digits. */
bool digest_read(const char *text, uint64_t *out);

#endif
