/* responses.h - generations that the engine keeps under an id, so that they outlive their client and their front end.
 *
 * A request for text with the member "response" (engine.yaml, KeptResponse) becomes a response. Its generation runs on
 * a stream of its own, whose peer is the record instead of a connection. The record keeps every event and the outcome.
 * Streams that follow it, the requesting one first, send what it keeps from the first event on and then what comes. A
 * follower therefore costs no credit of the generation, and any number may come and go.
 *
 *   queued ──first event──▶ in_progress ──▶ completed | failed | cancelled ──limits.seconds──▶ gone
 *
 * A background response has a row in the ledger before its request is answered; one that is not in the background gets
 * its row when it has completed, and is cancelled and forgotten when its client leaves. An outcome is sent to followers
 * after it has been committed. At the start, rows without an outcome are failed responses.
 *
 * Memory is bounded by limits.bytes in all and limits.owner_bytes for each owner. The oldest ended responses, of the
 * same owner or of all, make room for new ones; a running one for which there is still no room fails. Loop thread. */
#ifndef ENGINE_DAEMON_REQUESTS_RESPONSES_H
#define ENGINE_DAEMON_REQUESTS_RESPONSES_H

#include "engine/daemon/net/stream.h"
#include "engine/store/store.h"

enum {
	RESPONSES_SECONDS = 3600,
	RESPONSES_BYTES = 256 << 20,
	RESPONSES_OWNER_BYTES = 64 << 20,
	RESPONSES_GONE = 4096 /* ids that are answered with 410 */
};

typedef struct responses_limits {
	int64_t seconds; /* lifetime of an ended response */
	int64_t bytes, owner_bytes;
} responses_limits;

typedef struct responses_counts {
	int known, running;
	int64_t bytes;
	uint64_t expired, evicted; /* removed after limits.seconds; removed to make room */
} responses_counts;

/* Read the rows of the ledger. */
status responses_new(struct responses **out, net *n, const responses_limits *limits, error *err);
void responses_free(struct responses *all);
/* Remove expired responses. */
void responses_tick(struct responses *all);
/* The engine stops: cancel the generations. */
void responses_drain(struct responses *all);
responses_counts responses_count(const struct responses *all);

/* Run a request that has been checked: call `begin` with its stream, or with that of the response that it becomes. A
 * response that `begin` refuses at once does not exist: the request gets the error. Replaces "previous_response_id" by
 * the state of that response. */
void responses_run(stream *s, const char *method, void (*begin)(stream *s, void *context), void *context);

/* Methods. */
void responses_get(stream *s);    /* response.get */
void responses_cancel(stream *s); /* response.cancel */
void responses_delete(stream *s); /* response.delete */
void responses_input(stream *s);  /* response.input */

#endif
