/* session_ticket.h - how a request on the executor comes to its session.
 *
 *   loop      sessions_take, or the ticket of a session that is being made
 *   pool      session_ticket_fetch, where session_ticket_has_work: the stored state is read, or what was uploaded is
 * checked executor  session_ticket_prepare until it says true, then session_ticket_redeem, in the same turn
 *
 * A state comes into its slot about a megabyte a turn. */
#ifndef ENGINE_DAEMON_SESSIONS_SESSION_TICKET_H
#define ENGINE_DAEMON_SESSIONS_SESSION_TICKET_H

#include <limits.h>

#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/compute/device.h"

/* What the executor needs to find a session, or to make or restore it. */
typedef struct session_ticket {
	char id[STORE_ID_BYTES];
	session_options options;
	bool create;
	bool fetch;              /* the stored state is wanted, as far as the loop knows */
	char state[PATH_MAX];    /* the stored state; "": there is none */
	session_transfer import; /* the state to fill the session with: an upload, or the stored one once it was read */
	bool read, damaged;      /* out: the stored state was wanted; and is damaged or missing */
	error error;             /* why there is no session */
} session_ticket;

/* What has become of it. */
typedef struct session_change {
	bool live;
	session_info info;
} session_change;

/* Does the ticket need work on the pool? */
bool session_ticket_has_work(const session_ticket *t);
/* Pool thread. session_ticket_redeem returns a failure. */
void session_ticket_fetch(session_ticket *t);
/* Executor thread, of a task's `prepare`: load the model, and import a bounded part of the state, if there is one.
 * True: all is there, or has failed. */
bool session_ticket_prepare(session_ticket *t, const model_entry *c, device *d);
/* Executor thread. STATUS_STORAGE, which is logged: the stored state is damaged or missing. */
status session_ticket_redeem(session_ticket *t, model_entry *c, device *d, session **out, error *err);
/* Executor thread: what is there of the session. */
void session_ticket_look(session_change *out, device *d, const char *id);
void session_ticket_fini(session_ticket *t);

#endif
