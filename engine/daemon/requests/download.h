/* download.h - sends bytes as DATA frames, as fast as the peer's credits allow.
 *
 * First an EVENT {"bytes","content_type","filename"}, then the data, then RESULT {"bytes"}. Files are read on the loop
 * in pieces of DOWNLOAD_CHUNK bytes (MANIFEST_CHUNK_BYTES with a manifest), once there is credit to send them. */
#ifndef ENGINE_DAEMON_REQUESTS_DOWNLOAD_H
#define ENGINE_DAEMON_REQUESTS_DOWNLOAD_H

#include "engine/base/manifest.h"
#include "engine/daemon/net/stream.h"
#include "engine/store/store.h"

enum { DOWNLOAD_CHUNK = 256 << 10 };

/* All answer the stream and use s->context. filename: suggested to the client; copied. */
/* Send a file of the store. m: the manifest that lists it, taken over; NULL: nothing to verify. Every chunk is verified
 * before it is sent, and the first one before anything is sent. STATUS_STORAGE, logged: missing, truncated or
 * damaged. */
void download_file(stream *s, const char *path, const char *filename, const char *content_type, store_table table,
                   manifest *m);
/* Likewise, after the bytes `before` (from malloc, taken over; NULL: none) and before `n_after` zeros. */
void download_within(stream *s, const char *path, char *before, size_t n_before, size_t n_after, const char *filename,
                     const char *content_type, store_table table, manifest *m);
/* Send data, which is from malloc and taken over. */
void download_bytes(stream *s, void *data, size_t bytes, const char *filename, const char *content_type);

#endif
