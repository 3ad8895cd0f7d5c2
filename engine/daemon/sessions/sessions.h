/* sessions.h - the table of sessions, and the methods that only read it (session_task.h has the others).
 *
 * The table lists the sessions; their states belong to the scheduler. A session is known (in the table), may be live
 * (has a slot on the device) and, if durable, stored. A durable session that is not live is restored from the store
 * when it is used: after a restart, after a device failure, or after another session took its slot. A session that is
 * not durable exists only as long as its slot. There may be many more known sessions
 * (session_parts.max_known) than slots; no request scans them.
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
enum { SESSIONS_MAX_KNOWN = 65536, SESSIONS_MAX_SNAPSHOTS = 64, SESSIONS_SNAPSHOT_BYTES = 1 << 30 };

typedef struct sessions sessions;

typedef struct session_entry session_entry; /* an entry of the table */

/* Parts of the engine that sessions use. */
typedef struct session_parts {
	store *store;
	catalog *catalog;
	fleet *fleet;
	int max_live, max_known; /* sessions with a slot on one device; live and stored sessions */
	int max_snapshots;       /* per session */
	int64_t snapshot_bytes;  /* host memory for the snapshots of all sessions that are not durable */
} session_parts;

/* Load the stored sessions. The parts are copied. */
status sessions_new(sessions **out, const session_parts *parts, error *err);
const session_parts *sessions_parts(const sessions *all);
void sessions_free(sessions *all);
void sessions_tick(sessions *all); /* applies expiry */
bool sessions_use_model(const sessions *all, const char *id);
int sessions_count(const sessions *all);
/* True if no session is in use, and the store has all of them but those that are lost. */
bool sessions_are_stored(const sessions *all);

/* Add a new session, which is busy. */
status sessions_add(sessions *all, const model_entry *c, const session_options *o, int64_t ttl, session_entry **out,
                    error *err);
/* Add a fork: a session with the options and lifetime of another one. from: the id of that one's snapshot, or
 * NULL. */
status sessions_add_like(sessions *all, const model_entry *c, session_entry *other, const char *from,
                         session_entry **out, error *err);
/* Take a session: it becomes busy; return it with its ticket and its model's entry. NULL: the stream has been answered
 * with the error. */
session_entry *sessions_take(sessions *all, stream *s, const char *id, session_ticket *ticket, model_entry **c);
/* Return a session that was not used. */
void sessions_release(sessions *all, session_entry *e);
/* Return a session that was read; `ticket` is its ticket. A lost session is removed from the table: STATUS_NOT_FOUND,
 * and *taken becomes NULL. */
status sessions_return(sessions *all, session_entry **taken, const session_ticket *ticket, const session_change *change,
                       error *err);
/* Copy the change to the entry, which stays busy. */
void sessions_adopt(sessions *all, session_entry *e, const session_change *change);
/* Release an entry whose state has been stored. */
void sessions_settled(sessions *all, session_entry *e);
/* Reset a durable session to its stored state: free its slot, so the next use reads the stored state. */
void sessions_revert(sessions *all, session_entry *e);
/* Remove a session everywhere; only the caller's request may use it. */
status sessions_remove(sessions *all, session_entry *e, error *err);
/* Let no other request find the session. */
void sessions_hide(session_entry *e);
const char *sessions_id(const session_entry *e);
/* Return the model of a session; NULL if there is no such session. */
const char *sessions_model(const sessions *all, const char *id);
/* Return the number of the device that has the session's slot, or had it last. */
int sessions_device(const session_entry *e);
int64_t sessions_tokens(const session_entry *e); /* read so far */
bool sessions_is_durable(const session_entry *e);
/* True if tokens past the model's positions are refused. */
bool sessions_is_bounded(const session_entry *e);
const snapshot_list *sessions_snapshots(const session_entry *e);
/* Begin to add a snapshot to a busy session: from now on its document contains it. One at a time. Returned: borrowed,
 * until sessions_end_snapshot. STATUS_CONFLICT: the session has its maximum. STATUS_BUSY: no memory is left for
 * snapshots. STATUS_STORAGE: the stored state is missing. */
status sessions_begin_snapshot(sessions *all, session_entry *e, const char *name, const snapshot **out, error *err);
/* Return the snapshot that is being added. */
const snapshot *sessions_adding(const session_entry *e);
/* End it: keep the snapshot, or free it. */
void sessions_end_snapshot(sessions *all, session_entry *e, bool keep);
/* Remove a snapshot that the scheduler has, or does not have any more. */
void sessions_remove_snapshot(sessions *all, session_entry *e, const char *id);
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
/* Return {"id","tokens"}, as answers of generations contain it. */
json_t *sessions_position(const session_entry *e);

/* Find a session by id; NULL: the stream has been answered. */
session_entry *sessions_named(sessions *all, stream *s, const char *id);
bool sessions_is_busy(const session_entry *e);

void sessions_list(stream *s);
void sessions_get(stream *s);
void sessions_delete(stream *s);
void sessions_tree(stream *s);

#endif
