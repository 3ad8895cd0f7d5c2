/* byte_source.h - the bytes of a text in any storage form.
 *
 * A file is read unchanged, or decompressed if its first bytes are those of gzip (RFC 1952) or zstd (RFC 8878). Any
 * number of members or frames is read, including skippable frames. Zeros after a member or frame are padding. Memory is
 * bounded by a decompressor's window, at most 128 MiB. One thread. */
#ifndef ENGINE_TEXT_BYTE_SOURCE_H
#define ENGINE_TEXT_BYTE_SOURCE_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/text/corpus_form.h"

typedef struct byte_source byte_source;

/* Open a file. */
status byte_source_open(byte_source **out, const char *path, error *err);
/* Read from memory, which is borrowed. */
status byte_source_memory(byte_source **out, const void *data, size_t bytes, error *err);
/* Read up to `room` bytes; *bytes is less only at the end. STATUS_INVALID: compressed data is damaged, truncated or
 * followed by other data. */
status byte_source_read(byte_source *s, void *out, size_t room, size_t *bytes, error *err);
bool byte_source_compressed(const byte_source *s);
/* The form that the file's name and its upload declare; none for memory. */
corpus_hint byte_source_hint(const byte_source *s);
void byte_source_free(byte_source *s); /* NULL is legal */

#endif
