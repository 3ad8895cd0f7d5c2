/* pieces.h - an answer that is made in pieces on the libuv pool, and sent as DATA frames as fast as the peer's credits
 * allow.
 *
 * As a download (download.h): an EVENT with "content_type", and "bytes" and "filename" where they are known, then the
 * data, then RESULT {"bytes"}. JSON of up to PIECES_WHOLE bytes is the RESULT itself, which takes less time and little
 * memory. A piece is made when the one before it has been sent, so one is in memory at a time. */
#ifndef ENGINE_DAEMON_REQUESTS_PIECES_H
#define ENGINE_DAEMON_REQUESTS_PIECES_H

#include "engine/daemon/net/stream.h"

enum { PIECES_WHOLE = 2 << 20 };

typedef struct pieces_head {
	const char *content_type;
	const char *filename; /* what a client should call it; NULL: nothing */
	int64_t bytes;        /* of all pieces; -1: not known */
	bool json;            /* a text that ends with a NUL: the RESULT itself where it is short */
} pieces_head;

typedef struct pieces_source {
	/* Pool thread: the next piece, malloc'ed; *bytes 0, and no memory: there are no more. STATUS_NOMEM without err.
	 */
	status (*next)(void *context, char **data, size_t *bytes, error *err);
	/* Loop thread, after the first piece. */
	pieces_head (*head)(const void *context);
	/* Loop thread, at the end. */
	void (*release)(void *context);
	void *context;
} pieces_source;

/* Answers the stream; its watch and context are used. */
void pieces_send(stream *s, const pieces_source *source);

#endif
