/* admission.h - which generations may run when more are asked for than there are slots.
 *
 * Each choice of a request (n, each prompt of a list) takes one slot from its admission to its end. There are `slots`
 * of them. An owner is an API key or a peer address, named by the front end; requests without a name have one owner
 * together. An owner's share is `slots` divided by the number of owners that hold slots or ask for some.
 *
 *   - While slots are free, every request is admitted, so a single owner may have them all.
 *   - When they are used up, streams that have not been read for ADMISSION_STALL_MS are evicted: those of owners above
 *     their share, and the asking owner's own. The owner with most slots loses one first, the longest stalled stream.
 *   - An owner that stays within its share is then admitted in any case. What runs beyond `slots` for that reason, or
 *     because an evicted generation has not ended yet, is at most `slots` more (admission_limit).
 *   - Any other request is refused, with the time after which to try again.
 *
 * Time to try again: a running request is expected to generate all tokens that it may, at its own pace so far, mixed
 * with the pace of the latest requests while it has few. Requests that were refused before are expected to
 * come back at the time that they were given, and to take the slots that are free by then.
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

/* A request that holds slots; a member of what it stands for. */
typedef struct admitted {
	struct admitted *previous, *next;
	admission_owner *owner; /* NULL: holds nothing */
	int slots;
	bool evicted;
	uint64_t begun_ms;
	/* The caller's: */
	int64_t tokens, most_tokens; /* generated so far by all choices, and at most */
	uint64_t first_ms;           /* when the first of them came */
	bool stalled;                /* the peer has taken nothing since stalled_ms, and nothing more can be sent */
	uint64_t stalled_ms;
	void (*evict)(struct admitted *x); /* end it soon: admission_leave follows, later */
} admitted;

/* STATUS_NOMEM; slots > 0. */
status admission_new(admission **out, int slots);
void admission_free(admission *a);
/* Slots that can be in use at one time. */
int admission_limit(int slots);

/* Take x->slots slots for owner (copied). STATUS_BUSY, with *retry_after in seconds (1 … ADMISSION_MAX_RETRY);
 * STATUS_NOMEM. Calls `evict` of others. */
status admission_enter(admission *a, admitted *x, const char *owner, uint64_t now_ms, int *retry_after, error *err);
/* Give the slots back. x may hold none. */
void admission_leave(admission *a, admitted *x, uint64_t now_ms);

#endif
