/* sessions.h - the table of sessions, and the methods that only read it (session_task.h has the others).
 *
 * The table lists the sessions. The state of one is in a slot of a device (the session is live), in host memory or on
 * the disk. There may be many more sessions (session_parts.max_known) than slots. When a session needs a slot and none
 * is free, the one that is idle longest moves to host memory. While that is over its budget, the ones that are idle
 * longest move to the disk. A session returns to a slot when it is used (sessions_tiers.c). No request scans the table.
 *
 * A durable session is stored after each change. It also returns from the store after a restart and after a failure of
 * its device. Another session that was live on a failed device is lost. Its file on the disk is removed at the next
 * start.
 *
 * To use a session, take it: it becomes busy, so a second request is refused "session_busy". The executor works through
 * its ticket (session_ticket.h). Then return it, with sessions_return if it was only read, or with session_settle if it
 * has changed (session_settle.h). The entry keeps what was last stored of a durable session, so a change that is
 * not acknowledged can be undone.
 *
 * Expiry is measured on the monotonic clock. The wall clock is only displayed, and used at start to compute the
 * remaining lifetime. A durable session then has at least SESSIONS_GRACE_SECONDS (or its lifetime, if shorter) and
 * never more than its lifetime, whatever the wall clock says.
 *
 * Loop thread, except where stated. */
#ifndef ENGINE_DAEMON_SESSIONS_SESSIONS_H
#define ENGINE_DAEMON_SESSIONS_SESSIONS_H

#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/compute/fleet.h"
#include "engine/daemon/net/stream.h"
#include "engine/daemon/sessions/session_ticket.h"
#include "engine/daemon/sessions/snapshots.h"

enum { SESSIONS_TTL_SECONDS = 900, SESSIONS_GRACE_SECONDS = 600 };
/* Defaults. */
enum {
	SESSIONS_MAX_KNOWN = 1 << 18,
	SESSIONS_MAX_SNAPSHOTS = 64,
	SESSIONS_SNAPSHOT_BYTES = 1 << 30,
	SESSIONS_MEMORY_BYTES = 1 << 30
};
static const int64_t SESSIONS_DISK_BYTES = INT64_C(16) << 30;

typedef struct sessions sessions;

typedef struct session_entry session_entry; /* an entry of the table */

/* Parts of the engine that sessions use. */
typedef struct session_parts {
	store *store;
	catalog *catalog;
	fleet *fleet;
	uv_loop_t *loop;
	int max_live, max_known;           /* sessions with a slot on one device; live and stored sessions */
	int max_snapshots;                 /* per session */
	int64_t snapshot_bytes;            /* host memory for the snapshots of all sessions that are not durable */
	const atomic_llong *snapshot_used; /* bytes in use, without automatic ones */
	int64_t memory_bytes;              /* host memory for sessions without a slot */
	int64_t disk_bytes;                /* files of sessions that are not durable */
} session_parts;

/* Where the state of a session is. */
typedef enum session_tier { TIER_DEVICE, TIER_HOST, TIER_DISK, TIERS } session_tier;

typedef struct sessions_stats {
	int64_t sessions[TIERS], bytes[TIERS]; /* now; a durable session counts no bytes on the disk */
	uint64_t moves[TIERS][TIERS];          /* [from][to] */
	/* Times from a request to the return of its session to a slot, as device_stats.tick_count. */
	uint64_t returns[DEVICE_TICK_BUCKETS + 1];
	double return_seconds;
} sessions_stats;

/* Load the stored sessions. The parts are copied. */
status sessions_new(sessions **out, const session_parts *parts, error *err);
const session_parts *sessions_parts(const sessions *all);
void sessions_free(sessions *all);
void sessions_tick(sessions *all); /* applies expiry */
/* The engine stops: write no more idle sessions to the disk, whose files the next start removes. */
void sessions_drain(sessions *all);
bool sessions_use_model(const sessions *all, const char *id);
int sessions_count(const sessions *all);
void sessions_stats_read(const sessions *all, sessions_stats *out);
/* True if no session is in use, and the store has all of them but those that are lost. */
bool sessions_are_stored(const sessions *all);

/* The snapshots that a session makes by itself. */
typedef struct automatic_snapshots {
	int64_t every;     /* tokens between them; 0: none are made so */
	bool before_calls; /* before the first call of an answer */
} automatic_snapshots;

/* The members of a new session that the scheduler does not know. */
typedef struct session_traits {
	int64_t ttl; /* seconds of life without use; -1: the default */
	automatic_snapshots automatic;
	const char *adapter; /* id, copied; NULL or "": none */
} session_traits;

/* Add a new session of the request's project, which is busy. STATUS_RATE_LIMITED. */
status sessions_add(sessions *all, const model_entry *c, const session_options *o, const session_traits *traits,
                    const stream *s, session_entry **out, error *err);
/* Likewise a session that no other request finds, and that does not count. */
status sessions_add_hidden(sessions *all, const model_entry *c, const session_options *o, session_entry **out,
                           error *err);
/* STATUS_INVALID "snapshot_every" or "snapshot_before_calls" if a session with these options cannot make them. */
status sessions_check_automatic(const sessions *all, const model_entry *c, const session_options *o,
                                automatic_snapshots automatic, error *err);
/* Add a fork: a session with the options, lifetime and project of another one. from: the id of that one's snapshot, or
 * NULL. */
status sessions_add_like(sessions *all, const model_entry *c, session_entry *other, const char *from, const stream *s,
                         session_entry **out, error *err);
/* Take a session: it becomes busy; return it with its ticket and its model's entry. NULL: the stream has been answered
 * with the error, or its method will be called again when the session has moved. */
session_entry *sessions_take(sessions *all, stream *s, const char *id, session_ticket *ticket, model_entry **c);
/* Return a session that was not used. */
void sessions_release(sessions *all, session_entry *e);
/* Return a session that was read; `ticket` is its ticket. A lost session is removed from the table: STATUS_NOT_FOUND,
 * and *taken becomes NULL. */
status sessions_return(sessions *all, session_entry **taken, const session_ticket *ticket, const session_change *change,
                       error *err);
/* Copy the change to the entry, which stays busy. */
void sessions_adopt(sessions *all, session_entry *e, const session_change *change);
/* Count the bytes that the session will have on the disk with a state of this size, and its snapshots.
 * STATUS_RATE_LIMITED: they grow beyond the request's quota. sessions_settled or sessions_revert follows. */
status sessions_reserve_bytes(session_entry *e, const stream *s, int64_t bytes, error *err);
/* Release an entry whose state of this size has been stored. */
void sessions_settled(sessions *all, session_entry *e, int64_t bytes);
/* Free what memory has of a durable session without a slot, before another stored state replaces it. */
void sessions_forget_away(sessions *all, session_entry *e, session_ticket *ticket);
/* Reset a durable session to its stored state: free its slot, so the next use reads the stored state. */
void sessions_revert(sessions *all, session_entry *e);
/* Remove a session everywhere; only the caller's request may use it. */
status sessions_remove(sessions *all, session_entry *e, error *err);
const char *sessions_id(const session_entry *e);
/* Return the model of a session; NULL if the request sees no such session. */
const char *sessions_model(const sessions *all, const stream *s, const char *id);
/* Return the number of the device that has the session's slot, or had it last. */
int sessions_device(const session_entry *e);
int64_t sessions_tokens(const session_entry *e); /* read so far */
bool sessions_is_durable(const session_entry *e);
/* True if tokens past the model's positions are refused. */
bool sessions_is_bounded(const session_entry *e);
const snapshot_list *sessions_snapshots(const session_entry *e);
/* True if the session's next document has the snapshot. */
bool sessions_has_snapshot(const session_entry *e, const char *id);
automatic_snapshots sessions_automatic(const session_entry *e);
/* Return the id of its adapter; "": none. */
const char *sessions_adapter(const session_entry *e);
/* True if a session has the adapter. */
bool sessions_use_adapter(const sessions *all, const char *id);
/* Begin to add a snapshot of the present state to a busy session: from now on its document contains it. One at a time.
 * Returned: borrowed, until it is kept or cancelled. STATUS_CONFLICT: the session has its maximum. STATUS_BUSY: no
 * memory is left for snapshots. STATUS_STORAGE: the stored state is missing. */
status sessions_begin_snapshot(sessions *all, session_entry *e, const char *name, const snapshot **out, error *err);
/* Return the snapshot that sessions_begin_snapshot has begun to add. */
snapshot *sessions_adding(const session_entry *e);
/* Likewise for an automatic snapshot with a stored state: from now on the document contains it, without the oldest
 * automatic ones that are too many. STATUS_NOMEM. */
status sessions_begin_automatic(session_entry *e, const char *id, int64_t tokens, int64_t bytes, int64_t version);
/* Set the size of its stored file, once that is known. */
void sessions_note_snapshot_bytes(session_entry *e, const char *id, int64_t bytes);
/* Keep the snapshots that are being added, or free them. Does nothing if there are none. */
void sessions_keep_snapshots(sessions *all, session_entry *e);
void sessions_cancel_snapshots(sessions *all, session_entry *e);
/* Remove a snapshot that the scheduler has, or does not have any more. */
void sessions_remove_snapshot(session_entry *e, const char *id);
/* Remove a snapshot of a durable session, which is not busy, from the store. */
status sessions_delete_snapshot(sessions *all, session_entry *e, const char *id, error *err);
/* Record that the state of a stored snapshot could not be read. */
void sessions_note_snapshot_damage(session_entry *e, const char *id);
/* Record whether the stored state, which was needed, could be read. */
void sessions_note_damage(session_entry *e, bool damaged);
/* Return the row's document. NULL: out of memory. */
json_t *sessions_document(const session_entry *e);
/* Parse "error", "clamp" or "wrap"; anything else is "error". */
position_policy sessions_policy(const char *name);
/* Return the API's object. NULL: out of memory. */
json_t *sessions_object(const session_entry *e);
/* Return {"id","tokens","snapshot"?}, as answers of generations contain it. made: the snapshot's id; "": none. */
json_t *sessions_position(const session_entry *e, const char *made);

/* Find a session that the request sees; NULL: the stream has been answered. */
session_entry *sessions_named(sessions *all, stream *s, const char *id);
bool sessions_is_busy(const session_entry *e);

void sessions_list(stream *s);
void sessions_get(stream *s);
void sessions_delete(stream *s);
void sessions_tree(stream *s);

#endif
