/* received.h - the files of an upload, received one after the other in their own folder below DATA/tmp. */
#ifndef ENGINE_DAEMON_REQUESTS_RECEIVED_H
#define ENGINE_DAEMON_REQUESTS_RECEIVED_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"

enum { RECEIVED_MAX_FILES = 1100, RECEIVED_NAME_BYTES = 128 };

typedef struct received {
	char folder[PATH_MAX];
	char name[RECEIVED_NAME_BYTES]; /* name of the file being written */
	int fd;                         /* -1: no file is open */
	int64_t bytes, limit;           /* bytes of that file; its limit */
	int files;
} received;

/* True for 1 to 127 characters A-Z a-z 0-9 . _ -, not starting with a dot. */
bool received_valid_name(const char *name);
/* Create the folder, whose path is set. */
status received_open(received *r, error *err);
/* Close the current file and start one of at most `limit` bytes. STATUS_INVALID, naming the file: it exists, or there
 * are too many. */
status received_begin(received *r, const char *name, int64_t limit, error *err);
/* STATUS_TOO_LARGE; STATUS_FULL. */
status received_write(received *r, const void *data, size_t bytes, error *err);
void received_end(received *r);
/* Delete the files. */
status received_clear(received *r, error *err);
/* Delete the folder and its contents. */
void received_remove(received *r);

#endif
