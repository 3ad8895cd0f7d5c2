/* upload.h - receive the parts of an upload into a folder of their own below DATA/tmp.
 *
 * Frames are written as they come, on the loop: the page cache takes them. Checking and syncing, which
 * can take long, happen on the pool. At most UPLOAD_WINDOW frames are under way per upload. */
#ifndef ENGINE_DAEMON_REQUESTS_UPLOAD_H
#define ENGINE_DAEMON_REQUESTS_UPLOAD_H

#include "engine/daemon/net/stream.h"
#include "engine/store/store.h"

enum { UPLOAD_WINDOW = 8, UPLOAD_MAX_PARTS = 6 };

typedef enum upload_kind {
	UPLOAD_FILE,   /* a file of that name, at most once */
	UPLOAD_NAMED,  /* a file whose name stands in the frame; any number of them */
	UPLOAD_ARCHIVE /* a tar archive, of which files are kept (unpack.h) */
} upload_kind;

typedef struct upload_part {
	const char *name; /* in the frame */
	const char *file; /* in the folder */
	int64_t limit;    /* bytes */
	bool required;
	upload_kind kind;
} upload_part;

typedef struct upload_plan {
	const upload_part *parts; /* ends with a NULL name */
	/* Of named files and archives: the most bytes that a file may have; -1: no such file is expected. */
	int64_t (*accepts)(const char *file);
	/* Pool thread: judge the complete folder; of the stream, target and params may be read. May be NULL. This or
	 * `seal` makes the files durable. */
	status (*check)(const stream *s, const char *folder, error *err);
	/* Pool thread, then: make the row of a file from the request's params, and seal it; may be NULL. */
	status (*seal)(const json_t *params, const char *folder, store_file *out, error *err);
	/* The upload has one part, which is read into memory on the pool: see upload_take. */
	bool in_memory;
	/* Loop thread: everything is on disk and has passed. Answers the stream. What is left of
	 * the folder afterwards is removed. */
	void (*finished)(stream *s, const char *folder);
} upload_plan;

/* Begin receiving; from here to `finished` the stream belongs to the upload, which answers every failure itself.
 * s->context is its. */
void upload_begin(stream *s, const upload_plan *plan);
/* In `finished`: what `seal` has made. */
store_file *upload_sealed(stream *s);
/* In `finished` of an upload in memory: its bytes, which are the caller's now. */
void *upload_take(stream *s, size_t *bytes);

#endif
