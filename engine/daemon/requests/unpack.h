/* unpack.h - extracts the expected files from an uploaded tar archive.
 *
 * They must be in one folder, anywhere in the archive: the one nearest to the top that has any of those that decide.
 * Other files and those in folders below it are skipped. A file that does not decide is kept if it is in that folder;
 * until the end of the archive it waits in a folder beside that of the upload. */
#ifndef ENGINE_DAEMON_REQUESTS_UNPACK_H
#define ENGINE_DAEMON_REQUESTS_UNPACK_H

#include "engine/base/tar.h"
#include "engine/daemon/requests/received.h"

typedef struct unpack_aside {
	char *path;
	bool large; /* over its limit, and not kept */
} unpack_aside;

typedef struct unpack {
	tar_reader tar;
	received *files;
	int64_t (*accepts)(const char *name);           /* maximum bytes of a file with this name; -1: not expected */
	bool (*decides)(const char *name);              /* true if the file can decide the folder; NULL: each can */
	received *into;                                 /* where the current file goes; NULL: it is skipped */
	received aside;                                 /* files that do not decide; without a folder before the first */
	unpack_aside *asides;                           /* their paths in the archive */
	int n_asides, room;
	int depth;                                      /* depth of the folder; -1: no file found so far */
	char folder[TAR_MAX_PATH], other[TAR_MAX_PATH]; /* other: another folder of the same depth, or "" */
} unpack;

void unpack_begin(unpack *u, received *files, int64_t (*accepts)(const char *name), bool (*decides)(const char *name));
status unpack_feed(unpack *u, const void *bytes, size_t count, error *err);
/* STATUS_INVALID: two folders qualify, or none. */
status unpack_finish(unpack *u, error *err);
void unpack_fini(unpack *u);

#endif
