/* sessions.h - the table of sessions, and the methods that only read it (session_task.h has the others).
 *
 * The table lists what sessions there are; the states are the scheduler's. Three things may be true of a session:
 * it is known (in the table), it is live (has a slot on the device) and, when durable, it is stored. A
 * durable session is brought back from the store when it is used and not live: after a restart, after a
 * device failure, or after its slot went to another. A session that is not durable exists only as long as its slot.
 * There may be many more known sessions (engine_options.max_known_sessions) than slots; no request scans them.
 *
 * Using a session is: take it (it becomes busy, so a second request is refused "session_busy"), let the
 * executor work on it through its ticket (session_ticket.h), then give it back: with sessions_return when it was only
 * read, with session_settle when it has changed (session_settle.h). What a durable session was when it was last stored
 * stays in its entry, so that a change that is not acknowledged can be taken back.
 *
 * Expiry is measured on the monotonic clock; the wall clock only shows it, and says how much of a lifetime is left at
 * start. A durable session then has at least SESSIONS_GRACE_SECONDS (or its whole lifetime if that is shorter) to be
 * used, whatever the wall clock says, and never more than its lifetime.
 *
 * Loop thread, except where said. */
#ifndef ENGINE_DAEMON_SESSIONS_SESSIONS_H
#define ENGINE_DAEMON_SESSIONS_SESSIONS_H

#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/compute/device.h"
#include "engine/daemon/net/stream.h"
#include "engine/daemon/requests/engine.h"
#include "engine/daemon/sessions/session_ticket.h"

enum { SESSIONS_MAX_KNOWN = 65536 /* default */, SESSIONS_TTL_SECONDS = 900, SESSIONS_GRACE_SECONDS = 600 };

typedef struct sessions sessions;

typedef struct session_entry session_entry; /* of the table */

status sessions_new(sessions **out, engine *e, error *err); /* reads the stored ones */
void sessions_free(sessions *all);
void sessions_tick(sessions *all); /* expiry */
bool sessions_use_model(const sessions *all, const char *id);
int sessions_count(const sessions *all);

/* A new session, busy and in the table. */
status sessions_add(sessions *all, const model_entry *c, const session_options *o, int64_t ttl, session_entry **out,
                    error *err);
/* The same with the options and lifetime of another. */
status sessions_add_like(sessions *all, const model_entry *c, const session_entry *other, session_entry **out,
                         error *err);
/* Take the session of an id: busy, with its ticket and its model's entry. On failure the stream has been
 * answered and the result is NULL. */
session_entry *sessions_take(sessions *all, stream *s, const char *id, session_ticket *ticket, model_entry **c);
/* Give it back unused. */
void sessions_release(sessions *all, session_entry *e);
/* Give it back after it was read. ticket: of the session. A session that was lost is removed from the table:
 * STATUS_NOT_FOUND, and *taken becomes NULL. */
status sessions_return(sessions *all, session_entry **taken, const session_ticket *ticket, const session_change *change,
                       error *err);
/* Copy the change into the entry, which stays busy. */
void sessions_adopt(sessions *all, session_entry *e, const session_change *change);
/* Release the entry: its contents have been stored. */
void sessions_settled(sessions *all, session_entry *e);
/* Give a durable session back as it was last stored: its slot is freed, and the next use reads the stored state. */
void sessions_revert(sessions *all, session_entry *e);
/* Remove it everywhere; no request uses it but the caller's. */
status sessions_remove(sessions *all, session_entry *e, error *err);
const char *sessions_id(const session_entry *e);
int64_t sessions_tokens(const session_entry *e); /* read so far */
bool sessions_is_durable(const session_entry *e);
/* True if tokens past the model's positions are refused. */
bool sessions_is_bounded(const session_entry *e);
/* Its stored state was wanted: could it be read? */
void sessions_note_damage(session_entry *e, bool damaged);
/* The row's document. NULL when out of memory. */
json_t *sessions_document(const session_entry *e);
/* "error", "clamp" or "wrap"; anything else is "error". */
position_policy sessions_policy(const char *name);
/* NULL when out of memory. */
json_t *sessions_object(const session_entry *e);
/* {"id","tokens"}, as answers of generations carry it. */
json_t *sessions_position(const session_entry *e);

void sessions_list(stream *s);
void sessions_get(stream *s);
void sessions_delete(stream *s);

#endif
