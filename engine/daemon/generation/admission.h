/* admission.h - decides which generations run if there are more requests than slots.
 *
 * Each choice of a request (n, each prompt of a list) takes one of `slots` slots from its admission to its end. An
 * owner is an API key or a peer address, named by the front end. Requests without a name have one common owner. An
 * owner's share is `slots` divided by the number of owners that hold or request slots.
 *
 *   - While slots are free, every request is admitted, so a single owner may hold them all.
 *   - When they are used up, streams that have not been read for ADMISSION_STALL_MS are evicted: those of owners above
 *     their share, and the requesting owner's own. The owner with most slots loses its longest stalled stream first.
 *   - An owner within its share is then admitted in any case. At most `slots` more generations run for that reason, or
 *     because an evicted one has not ended (admission_limit).
 *   - Any other request is refused, with the time after which to retry.
 *
 * Retry time: a running request is expected to generate its maximum of tokens at its own pace, mixed with the mean
 * pace of the latest requests. The weight of that mean falls as its tokens grow. Refused requests are expected to
 * return at the time they were given and to take the slots that are free by then.
 *
 * Requests in the background take none of these slots. They have `slots` of their own, without owners: the scheduler
 * lets them wait for all others.
 *
 * Loop thread only; times are the loop's, in milliseconds. */
#ifndef ENGINE_DAEMON_GENERATION_ADMISSION_H
#define ENGINE_DAEMON_GENERATION_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"

enum { ADMISSION_STALL_MS = 2000, ADMISSION_MAX_RETRY = 60 };

typedef struct admission admission;
typedef struct admission_owner admission_owner;

/* A request that holds slots; a member of the caller's object. */
typedef struct admitted {
	struct admitted *previous, *next;
	admission_owner *owner; /* NULL: holds no slots */
	int slots;
	bool background; /* set by the caller */
	bool evicted;
	uint64_t started_ms;
	/* Set by the caller: */
	int64_t tokens, most_tokens; /* tokens of all choices so far; their maximum */
	uint64_t first_ms;           /* time of the first token */
	bool stalled;                /* the peer has read nothing since stalled_ms, and nothing more can be sent */
	uint64_t stalled_ms;
	void (*evict)(struct admitted *x); /* cancel the request; admission_leave follows later */
} admitted;

/* STATUS_NOMEM; slots > 0. */
status admission_new(admission **out, int slots);
void admission_free(admission *a);
/* Return the maximum number of slots in use at one time. */
int admission_limit(int slots);

/* Take x->slots slots for owner (copied). STATUS_BUSY, with *retry_after in seconds (1 … ADMISSION_MAX_RETRY).
 * STATUS_NOMEM. Calls `evict` of others. */
status admission_enter(admission *a, admitted *x, const char *owner, uint64_t now_ms, int *retry_after, error *err);
/* Release the slots; x may hold none. */
void admission_leave(admission *a, admitted *x, uint64_t now_ms);

#endif
