/* download.h - send bytes as DATA frames, as fast as the peer's credits allow.
 *
 * An EVENT {"bytes","content_type","filename"} first, then the data, then RESULT {"bytes"}. Files are read on the
 * loop, DOWNLOAD_CHUNK bytes at a time (with a manifest MANIFEST_CHUNK_BYTES), when a credit is there to send them. */
#ifndef ENGINE_DAEMON_REQUESTS_DOWNLOAD_H
#define ENGINE_DAEMON_REQUESTS_DOWNLOAD_H

#include "engine/base/manifest.h"
#include "engine/daemon/net/stream.h"
#include "engine/store/store.h"

enum { DOWNLOAD_CHUNK = 256 << 10 };

/* Both answer the stream; s->context is theirs. filename: what a client should call it; copied. */
/* A file of the store. m: the manifest that lists it, taken over; every chunk is verified before a byte of it is sent,
 * the first one before anything. NULL: nothing to verify. STATUS_STORAGE, logged: missing, truncated or damaged. */
void download_file(stream *s, const char *path, const char *filename, const char *content_type, store_table table,
                   manifest *m);
/* data is malloc'ed and taken over. */
void download_bytes(stream *s, void *data, size_t bytes, const char *filename, const char *content_type);

#endif
