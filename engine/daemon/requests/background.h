/* background.h - answers that take long are made on the libuv pool. */
#ifndef ENGINE_DAEMON_REQUESTS_BACKGROUND_H
#define ENGINE_DAEMON_REQUESTS_BACKGROUND_H

#include "engine/daemon/net/stream.h"

typedef struct background_work {
	/* Pool thread: return the answer (new reference), or NULL with err set. */
	json_t *(*make)(void *context, error *err);
	/* Loop thread, afterwards: free the context. */
	void (*release)(void *context);
	void *context;
} background_work;

/* Answer the stream with the result of `make`. */
void background_answer(stream *s, const background_work *work);
/* Release a document that may be large; NULL is legal. */
void background_drop(uv_loop_t *loop, json_t *document);

#endif
