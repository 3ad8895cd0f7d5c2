/* received.h - the files of an upload, one after the other, in a folder of their own below DATA/tmp. */
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
	char name[RECEIVED_NAME_BYTES]; /* of the file being written */
	int fd;                         /* -1: none */
	int64_t bytes, limit;           /* of it */
	int files;
} received;

/* 1 to 127 of A-Z a-z 0-9 . _ -, and the first is no dot. */
bool received_valid_name(const char *name);
/* Make the folder, whose path is set. */
status received_open(received *r, error *err);
/* End the file before it, and begin one of at most `limit` bytes. STATUS_INVALID, its name as the param: it came
 * already, or there are too many. */
status received_begin(received *r, const char *name, int64_t limit, error *err);
/* STATUS_TOO_LARGE; STATUS_FULL. */
status received_write(received *r, const void *data, size_t bytes, error *err);
void received_end(received *r);
/* Forget the files. */
status received_clear(received *r, error *err);
/* Remove the folder and what is left in it. */
void received_remove(received *r);

#endif
