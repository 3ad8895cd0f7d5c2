/* idempotency.h - requests that can be repeated: a request with an idempotency key is applied once.
 *
 * A successful request stores its answer (the RESULT and the EVENTs before it) under its key. A repeat with the same
 * key and content receives that answer and changes nothing. The request's changes and its answer become durable in one
 * commit, so no crash can separate them. Answers about objects that a restart deletes (sessions that are not durable)
 * are only kept in memory: the latest IDEMPOTENCY_MAX_ANSWERS, up to IDEMPOTENCY_MAX_BYTES. A failed request stores
 * nothing. Each API key has its own idempotency keys.
 *
 * A handler of a keyed method stores its answer together with its changes: by idempotency_keep between store_begin and
 * store_commit, or by idempotency_begin and idempotency_commit around the changes. Everything else happens where a
 * stream begins and ends. A generation with a key continues when its client has gone, and the repeat receives its
 * answer. Loop thread. */
#ifndef ENGINE_DAEMON_REQUESTS_IDEMPOTENCY_H
#define ENGINE_DAEMON_REQUESTS_IDEMPOTENCY_H

#include "engine/daemon/net/stream.h"
#include "engine/store/store.h"

enum {
	IDEMPOTENCY_KEY_BYTES = 255,
	IDEMPOTENCY_MAX_ANSWERS = 4096, /* in memory */
	IDEMPOTENCY_MAX_BYTES = 32 << 20,
	IDEMPOTENCY_MAX_EVENTS = 16 << 20, /* bytes of the events of one answer */
	IDEMPOTENCY_SWEEP_SECONDS = 600
};

status idempotency_new(struct idempotency **out);
void idempotency_free(struct idempotency *all);
/* Forget expired answers at intervals. */
void idempotency_tick(struct idempotency *all, store *s);
/* The engine stops: cancel requests that run without their client. */
void idempotency_drain(struct idempotency *all);

/* Called by dispatch: remove "idempotency_key" from the params. False: it is invalid, and the stream has been
 * answered. */
bool idempotency_take(stream *s);
/* Hash a keyed request before idempotency_admit. Pool thread while the stream waits, or loop thread. */
void idempotency_hash(stream *s, const char *method);
/* True if a valid request may start. False: it is a repeat, or another request with its key is running; the stream is
 * or will be answered. */
bool idempotency_admit(stream *s, bool upload);

/* Within a commit: store `result` as the answer. STATUS_TOO_LARGE: its events are too large. No effect without a
 * key. */
status idempotency_keep(stream *s, const json_t *result, error *err);
/* Start the commit of the request's changes. */
status idempotency_begin(stream *s, error *err);
/* End the commit. With STATUS_OK in `outcome`, store `result` (borrowed; NULL: out of memory) and make all changes
 * durable. With another status, or if that fails, nothing has changed. */
status idempotency_commit(stream *s, status outcome, const json_t *result, error *err);

#endif
