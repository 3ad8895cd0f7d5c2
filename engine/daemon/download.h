/* download.h - send bytes as DATA frames, as fast as the peer's credits allow.
 *
 * An EVENT {"bytes","content_type"} first, then the data, then RESULT {"bytes"}. Files are read on the
 * loop, DOWNLOAD_CHUNK bytes at a time, each chunk when a credit is there to send it. */
#ifndef ENGINE_DAEMON_DOWNLOAD_H
#define ENGINE_DAEMON_DOWNLOAD_H

#include "engine/daemon/stream.h"

enum { DOWNLOAD_CHUNK = 256 << 10 };

/* Both answer the stream; s->context is theirs. */
void download_file(stream *s, const char *path, const char *content_type);
/* data is malloc'ed and taken over. */
void download_bytes(stream *s, void *data, size_t bytes, const char *content_type);

#endif
