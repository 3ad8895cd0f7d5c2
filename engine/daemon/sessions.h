/* sessions.h - the table of sessions, and the methods that only read it (visits.h has the others).
 *
 * The table says what sessions there are; the states are the scheduler's. Three things may be true of a session:
 * it is known (in the table), it is live (has a slot on the device) and, when durable, it is stored. A
 * durable session is brought back from the store when it is used and not live: after a restart, after a
 * device failure, or after it gave its slot to another. A session that is not durable lives and dies with its slot.
 *
 * Using a session is: take it (it becomes busy, so a second request is refused "session_busy"), let the
 * executor work on it through its ticket, then settle what has changed: a durable session is stored before the
 * client hears of the change. Loop thread, except where said. */
#ifndef ENGINE_DAEMON_SESSIONS_H
#define ENGINE_DAEMON_SESSIONS_H

#include "engine/daemon/cards.h"
#include "engine/daemon/device.h"
#include "engine/daemon/stream.h"

enum { SESSIONS_MAX_KNOWN = 4096, SESSIONS_TTL_SECONDS = 3600 };

typedef struct sessions sessions;

typedef struct session_entry {
	struct session_entry *next; /* newest first */
	char id[STORE_ID_BYTES], model[STORE_ID_BYTES];
	session_options options;
	int64_t tokens, state_bytes, created;
	int64_t ttl;     /* seconds it lives unused; -1: SESSIONS_TTL_SECONDS, a durable one for ever */
	int64_t expires; /* Unix time; 0: never */
	uint64_t used;   /* a counter: the lowest was used the longest ago */
	bool busy, live;
} session_entry;

status sessions_new(sessions **out, engine *e, error *err); /* reads the stored ones */
void sessions_free(sessions *all);
void sessions_tick(sessions *all); /* expiry */
bool sessions_use_model(const sessions *all, const char *id);
int sessions_count(const sessions *all);

/* What the executor needs to find a session, or to make or restore it. */
typedef struct session_ticket {
	char id[STORE_ID_BYTES];
	session_options options;
	bool create;
	char state[PATH_MAX]; /* the stored state; "": there is none */
} session_ticket;

/* What has become of it. */
typedef struct session_change {
	bool live;
	session_info info;
	void *blob; /* durable: the new state, malloc'ed */
	size_t bytes;
	error error; /* the state could not be exported */
} session_change;

/* Executor thread. */
status sessions_redeem(const session_ticket *t, device *d, served_model *m, session **out, error *err);
void sessions_look(session_change *out, device *d, const char *id, bool export);

/* A new session, busy and in the table. */
status sessions_add(sessions *all, const card *c, const session_options *o, int64_t ttl, session_entry **out,
                    error *err);
/* Take the session of an id: busy, with its ticket and its model's card. On failure the stream has been
 * answered and the result is NULL. */
session_entry *sessions_take(sessions *all, stream *s, const char *id, session_ticket *ticket, card **c);
/* Give it back unused. */
void sessions_release(sessions *all, session_entry *e);
/* Give it back. Stores a durable session that changed; frees the blob. A session that was lost is removed from the
 * table: STATUS_NOT_FOUND, and *taken becomes NULL. */
status sessions_settle(sessions *all, session_entry **taken, session_change *change, error *err);
/* Remove it everywhere; nobody else uses it. */
status sessions_remove(sessions *all, session_entry *e, error *err);
/* "error", "clamp" or "wrap"; anything else is "error". */
position_policy sessions_policy(const char *name);
json_t *sessions_object(const session_entry *e);
/* {"id","tokens"}, as answers of generations carry it. */
json_t *sessions_position(const session_entry *e);

void sessions_list(stream *s);
void sessions_get(stream *s);
void sessions_delete(stream *s);

#endif
