/* session_settle.h - the end of a request that makes or changes a session.
 *
 * What is acknowledged is kept, and what cannot be kept is not acknowledged: the new state of a durable session is
 * exported by the executor, some of it a turn, then written on the pool, and only when it counts (one commit with the
 * request's kept answer, if it has a key) is the stream answered. Meanwhile the session stays busy. When anything of
 * this fails, a session that was being made is removed, and one that there was before goes back to what is stored: its
 * slot on the device is freed, so that the next use reads the stored state.
 *
 * A generation that is cancelled leaves the tokens that were streamed: that change is stored too, unless the request is
 * `whole`, before the stream is answered with the error. Any other failure is taken back. A session that is not durable
 * keeps what it has read.
 *
 * Loop thread only. */
#ifndef ENGINE_DAEMON_SESSIONS_SESSION_SETTLE_H
#define ENGINE_DAEMON_SESSIONS_SESSION_SETTLE_H

#include "engine/daemon/sessions/sessions.h"

typedef struct session_settlement {
	stream *stream;
	session_entry *entry;         /* busy */
	const session_ticket *ticket; /* of the session that the executor looked for */
	bool making;                  /* the entry is new */
	bool changed;                 /* the request may have changed the session before it failed */
	bool whole;                   /* all or nothing: when the request has failed, its change is taken back */
	session_change change;
	error error;                                     /* why the request has failed */
	json_t *(*result)(struct session_settlement *x); /* the RESULT, when all is well; NULL when out of memory */
	void (*settled)(struct session_settlement *x);   /* the stream has been answered: free what belongs to x */
	/* private */
	task export;
	session_transfer state; /* durable: the new one */
	error export_error;
	uv_work_t work;
	json_t *document;
	int64_t version;
	status written;
	error write_error;
	char *answer;
	char path[PATH_MAX];
} session_settlement;

/* Answers the stream, at once or later. x, which is the caller's, lives until `settled`. */
void session_settle(session_settlement *x);

#endif
