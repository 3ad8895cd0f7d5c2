/* tar.h - read the files of a tar archive (ustar, pax, GNU) as its bytes arrive; headers of a new one.
 *
 *    tar_reader t = {.events = {begin, data, end}, .context = x};
 *    TRY(tar_feed(&t, piece, bytes, err));        // pieces of any size
 *    TRY(tar_finish(&t, err));
 *
 * An archive is hostile. Only regular files and folders are accepted: links, devices and sparse files are refused.
 * Paths are relative and without "..", numbers are checked, and headers have checksums. A reader needs memory for one
 * path, whatever the archive holds; it touches no disk. */
#ifndef ENGINE_BASE_TAR_H
#define ENGINE_BASE_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"

enum { TAR_BLOCK = 512, TAR_MAX_PATH = 1024, TAR_MAX_EXTENSION = 64 << 10, TAR_MAX_ENTRIES = 10000 };

/* Callbacks for each regular file, in order: begin, data until all of its bytes have come, end. An error ends reading.
 * The path has no "./" at its beginning and is not empty. */
typedef struct tar_events {
	status (*begin)(void *context, const char *path, int64_t bytes, error *err);
	status (*data)(void *context, const void *data, size_t bytes, error *err);
	status (*end)(void *context, error *err);
} tar_events;

typedef struct tar_reader {
	tar_events events;
	void *context;
	/* private */
	unsigned char block[TAR_BLOCK]; /* being filled */
	size_t used;                    /* bytes of `block` in use */
	char kind;                      /* type of the entry whose data comes; 0: headers */
	int64_t left, padding;          /* bytes left of its data, and of the zeros that follow it */
	char *extension;                /* data of an entry that describes the next one */
	size_t extension_used;
	char path[TAR_MAX_PATH]; /* from an entry that describes the next one; "" and -1: not given */
	int64_t bytes;
	int entries;
	bool ended; /* a block of zeros was read */
} tar_reader;

/* STATUS_CORRUPT: not a tar archive. STATUS_INVALID: an entry is refused; the message holds its path. */
status tar_feed(tar_reader *t, const void *data, size_t bytes, error *err);
/* STATUS_CORRUPT when the archive is not whole. */
status tar_finish(tar_reader *t, error *err);
/* Release memory; may be called at any time. */
void tar_fini(tar_reader *t);

enum { TAR_END = 2 * TAR_BLOCK }; /* zeros after the last file */
/* Write the header of a file of 0 … 2^33 - 1 bytes, with a name of at most 99 bytes. Its data follows, and tar_padding
 * zeros. */
void tar_header(unsigned char block[TAR_BLOCK], const char *name, int64_t bytes);
int64_t tar_padding(int64_t bytes);

#endif
