/* unpack.h - a tar archive that is uploaded, as the files that are wanted of it.
 *
 * The files of interest are those of one folder, wherever it is in the archive: the one nearest to the top that holds
 * any. Files that are not wanted, and those in folders below, are read over. */
#ifndef ENGINE_DAEMON_REQUESTS_UNPACK_H
#define ENGINE_DAEMON_REQUESTS_UNPACK_H

#include "engine/base/tar.h"
#include "engine/daemon/requests/received.h"

typedef struct unpack {
	tar_reader tar;
	received *files;
	int64_t (*accepts)(const char *name); /* most bytes that a file of that name may have; -1: not wanted */
	int depth;                            /* of the folder; -1: no file was wanted so far */
	char folder[TAR_MAX_PATH], other[TAR_MAX_PATH]; /* other: one of the same depth, or "" */
} unpack;

void unpack_begin(unpack *u, received *files, int64_t (*accepts)(const char *name));
status unpack_feed(unpack *u, const void *bytes, size_t count, error *err);
/* STATUS_INVALID: two folders have equal claims, or none holds anything. */
status unpack_finish(unpack *u, error *err);
void unpack_fini(unpack *u);

#endif
