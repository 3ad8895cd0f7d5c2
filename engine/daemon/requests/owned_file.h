/* owned_file.h - the files that a request may name: those of the projects that it sees. */
#ifndef ENGINE_DAEMON_REQUESTS_OWNED_FILE_H
#define ENGINE_DAEMON_REQUESTS_OWNED_FILE_H

#include "engine/daemon/net/stream.h"
#include "engine/store/store.h"

/* Find a file. STATUS_NOT_FOUND "id": there is none, or the request does not see it. */
status owned_file_find(const stream *s, const char *id, store_file *out, error *err);
/* Likewise, before its contents are read (store_file_use). param: the field of the request that names the file. */
status owned_file_use(const stream *s, const char *id, const char *param, store_file *out, error *err);

#endif
