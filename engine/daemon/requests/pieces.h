/* pieces.h - an answer made in pieces on the libuv pool and sent as DATA frames, as fast as the peer's credits allow.
 *
 * The frames are those of a download (download.h): an EVENT with "content_type", and "bytes" and "filename" if known,
 * then the data, then RESULT {"bytes"}. JSON of up to PIECES_WHOLE bytes is the RESULT itself, which is faster. A piece
 * is made when the previous one has been sent, so only one is in memory. */
#ifndef ENGINE_DAEMON_REQUESTS_PIECES_H
#define ENGINE_DAEMON_REQUESTS_PIECES_H

#include "engine/daemon/net/stream.h"

enum { PIECES_WHOLE = 2 << 20 };

typedef struct pieces_head {
	const char *content_type;
	const char *filename; /* suggested to the client; NULL: none */
	int64_t bytes;        /* total of all pieces; -1: unknown */
	bool json;            /* JSON text that ends with NUL; if short, it is the RESULT itself */
} pieces_head;

typedef struct pieces_source {
	/* Pool thread: return the next piece, from malloc. *bytes 0 without memory: no more pieces. STATUS_NOMEM does
	 * not need err. */
	status (*next)(void *context, char **data, size_t *bytes, error *err);
	/* Loop thread, after the first piece. */
	pieces_head (*head)(const void *context);
	/* Loop thread, at the end. */
	void (*release)(void *context);
	void *context;
} pieces_source;

/* Answer the stream; uses its watch and context. */
void pieces_send(stream *s, const pieces_source *source);

#endif
