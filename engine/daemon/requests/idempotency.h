/* idempotency.h - requests that can be repeated: a request with a key of the client's own is applied once.
 *
 * A request that has succeeded leaves its answer (the RESULT, and the EVENTs before it) under its key; a repeat with
 * the same key and the same content gets that answer and changes nothing. What the request did and its answer become
 * durable in one commit, so that a crash between the two is impossible. Answers about what is gone after a restart
 * (sessions that are not durable) are kept in memory only, the latest IDEMPOTENCY_MAX_ANSWERS of them, up to
 * IDEMPOTENCY_MAX_BYTES. A request that has failed leaves nothing.
 *
 * A handler of a keyed method keeps its answer with what it does: between store_begin and store_commit by
 * idempotency_keep, or by idempotency_begin and idempotency_commit around the changes. The rest happens where a stream
 * begins and ends. A generation with a key goes on when its client has gone: the repeat gets its answer. Loop thread.
 */
#ifndef ENGINE_DAEMON_REQUESTS_IDEMPOTENCY_H
#define ENGINE_DAEMON_REQUESTS_IDEMPOTENCY_H

#include "engine/daemon/net/stream.h"
#include "engine/daemon/requests/engine.h"

enum {
	IDEMPOTENCY_KEY_BYTES = 255,
	IDEMPOTENCY_MAX_ANSWERS = 4096, /* in memory */
	IDEMPOTENCY_MAX_BYTES = 32 << 20,
	IDEMPOTENCY_MAX_EVENTS = 16 << 20, /* bytes of the events of one answer */
	IDEMPOTENCY_SWEEP_SECONDS = 600
};

status idempotency_new(struct idempotency **out);
void idempotency_free(struct idempotency *all);
/* Forget answers that are too old, now and then. */
void idempotency_tick(engine *e);
/* The engine stops: cancel what goes on without its client. */
void idempotency_drain(engine *e);

/* dispatch. Take "idempotency_key" out of the params; false: it is wrong, and the stream has been answered. */
bool idempotency_take(stream *s);
/* Before idempotency_admit: hash what is asked, if it has a key. Pool thread, while the stream waits, or loop thread.
 */
void idempotency_hash(stream *s, const char *method);
/* A request that is in order begins: true. False: it is a repeat, or another one with its key runs; the stream is or
 * will be answered. */
bool idempotency_admit(stream *s, bool upload);

/* Inside a commit: keep `result` as the answer. STATUS_TOO_LARGE when its events are. Without a key nothing happens. */
status idempotency_keep(stream *s, const json_t *result, error *err);
/* Begin a commit for what the request does. */
status idempotency_begin(stream *s, error *err);
/* End it. why: STATUS_OK when all was done; then `result` (borrowed; NULL: out of memory) is kept and all becomes
 * durable. Otherwise, and when that fails, nothing has happened. */
status idempotency_commit(stream *s, status why, const json_t *result, error *err);

#endif
