/* upload.h - receives the parts of an upload into their own folder below DATA/tmp.
 *
 * Frames are written on the loop as they arrive; the page cache absorbs them. Checking and syncing, which can take
 * long, run on the pool. At most UPLOAD_WINDOW frames are in flight per upload. */
#ifndef ENGINE_DAEMON_REQUESTS_UPLOAD_H
#define ENGINE_DAEMON_REQUESTS_UPLOAD_H

#include "engine/daemon/net/stream.h"
#include "engine/store/store.h"

enum { UPLOAD_WINDOW = 8, UPLOAD_MAX_PARTS = 6 };

typedef enum upload_kind {
	UPLOAD_FILE,   /* a file with this name, at most once */
	UPLOAD_NAMED,  /* files whose names are in the frames, any number */
	UPLOAD_ARCHIVE /* a tar archive; expected files are kept (unpack.h) */
} upload_kind;

typedef struct upload_part {
	const char *name; /* name in the frame */
	const char *file; /* name in the folder */
	int64_t limit;    /* bytes */
	bool required;
	upload_kind kind;
} upload_part;

typedef struct upload_plan {
	const upload_part *parts; /* terminated by a NULL name */
	/* For named files and archives: the maximum bytes of a file; -1: not expected. */
	int64_t (*accepts)(const char *file);
	/* For archives: true if the file can decide the folder that is kept (unpack.h); NULL: each can. */
	bool (*decides)(const char *file);
	/* Pool thread: check the complete folder. May read target and params of the stream. May be NULL. Either this or
	 * `seal` makes the files durable. */
	status (*check)(const stream *s, const char *folder, error *err);
	/* Pool thread, after `check`: make a file's row from the request and seal it. May be NULL. */
	status (*seal)(const stream *s, const char *folder, store_file *out, error *err);
	/* The single part is read into memory on the pool; see upload_take. */
	bool in_memory;
	/* Loop thread: everything is on disk and checked. Must answer the stream. The rest of the folder is deleted
	 * afterwards. */
	void (*finished)(stream *s, const char *folder);
} upload_plan;

/* Start receiving. Until `finished` the upload owns the stream and s->context, and answers every failure. */
void upload_begin(stream *s, const upload_plan *plan);
/* Call in `finished`: return the row that `seal` has made. */
store_file *upload_sealed(stream *s);
/* Call in `finished` of an upload in memory: return its bytes, which the caller then owns. */
void *upload_take(stream *s, size_t *bytes);

#endif
