/* byte_source.h - the bytes of a text, whatever it is stored in.
 *
 * A file is read as it is, or decompressed where its first bytes are those of gzip (RFC 1952, any number of members) or
 * zstd (RFC 8878, any number of frames, skippable ones too). Zeros after a member or frame are padding. Memory is
 * bounded: a decompressor's window, 128 MiB at most. One thread. */
#ifndef ENGINE_TEXT_BYTE_SOURCE_H
#define ENGINE_TEXT_BYTE_SOURCE_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/text/corpus_form.h"

typedef struct byte_source byte_source;

/* Of a file. */
status byte_source_open(byte_source **out, const char *path, error *err);
/* Of memory, which is borrowed. */
status byte_source_memory(byte_source **out, const void *data, size_t bytes, error *err);
/* Read up to `room` bytes; *bytes is less only at the end. STATUS_INVALID: what is compressed is damaged, ends too
 * early or is followed by something else. */
status byte_source_read(byte_source *s, void *out, size_t room, size_t *bytes, error *err);
bool byte_source_compressed(const byte_source *s);
/* Return what the file's name and its upload say of its form; none for memory. */
corpus_hint byte_source_hint(const byte_source *s);
void byte_source_free(byte_source *s); /* NULL is legal */

#endif
