/* session_settle.h - the end of a request that creates or changes a session.
 *
 * A change is acknowledged only when it is stored. The executor exports the new state of a durable session, part of it
 * each turn. The pool writes it. One commit makes it valid, together with the request's stored answer if it has a key.
 * Only then is the stream answered; until then the session stays busy. If any of this fails, a new session is removed,
 * and an existing one returns to its stored state. Its slot is freed, so the next use reads the stored state.
 *
 * A durable session's automatic snapshots, which the scheduler has in memory, are stored in the same commit, each as a
 * version of its own before the session's.
 *
 * A cancelled generation keeps the tokens that were streamed. That change is stored, too, before the stream is answered
 * with the error, unless the request is `all_or_nothing`. Any other failure is undone. A session that is not durable
 * keeps what it has read.
 *
 * Loop thread only. */
#ifndef ENGINE_DAEMON_SESSIONS_SESSION_SETTLE_H
#define ENGINE_DAEMON_SESSIONS_SESSION_SETTLE_H

#include "engine/daemon/sessions/sessions.h"

typedef struct session_settlement {
	stream *stream;
	sessions *sessions;
	session_entry *entry;         /* busy; NULL at the end if it has been removed */
	const session_ticket *ticket; /* the session's, as the executor found it */
	bool making;                  /* the entry is new */
	bool changed;                 /* the request may have changed the session before it failed */
	bool all_or_nothing;          /* all or nothing: if the request fails, its change is undone */
	session_change change;
	error error;                                     /* STATUS_OK, or the request's failure */
	json_t *(*result)(struct session_settlement *x); /* returns the RESULT of a successful request; NULL: out of
	                                                  * memory */
	void (*settled)(struct session_settlement *x);   /* the stream has been answered; frees the members of x */
	/* private */
	task export;
	session_transfer state; /* durable: the new state */
	struct settled_snapshot *snapshots; /* [n_snapshots] automatic snapshots to store with it, oldest first */
	int n_snapshots;
	bool listed; /* they are known */
	error export_error;
	uv_work_t work;
	json_t *document;
	int64_t version;
	status written;
	error write_error;
	char *answer;
} session_settlement;

/* Answer the stream, at once or later. x belongs to the caller and must live until `settled`. */
void session_settle(session_settlement *x);

#endif
