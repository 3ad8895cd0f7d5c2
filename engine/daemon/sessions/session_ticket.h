/* session_ticket.h - gives a request on the executor its session.
 *
 *   loop      sessions_take, or the ticket of a session that is being created
 *   pool      session_ticket_fetch, if session_ticket_has_work: reads the state from the disk, or checks an upload
 *   executor  session_ticket_prepare until it returns true, then session_ticket_redeem, in the same turn
 *
 * A state is imported into its slot about a megabyte a turn. */
#ifndef ENGINE_DAEMON_SESSIONS_SESSION_TICKET_H
#define ENGINE_DAEMON_SESSIONS_SESSION_TICKET_H

#include <limits.h>

#include "engine/daemon/catalog/adapters.h"
#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/compute/device.h"

/* The state of a session that has no slot. All zero: there is none. */
typedef struct session_away {
	unsigned char *blob;  /* as exported, in host memory; NULL: not there */
	session *held;        /* the blob has only its header; this has the rest (session_transfer) */
	size_t bytes;         /* size of the blob, or of the file */
	session *snapshots;   /* those of a session that is not durable */
	bool on_disk;         /* not durable: DATA/tmp has the state */
	uint64_t returned_ns; /* time that the last return to a slot took; 0: none */
} session_away;

/* Data with which the executor finds, creates or restores a session. */
typedef struct session_ticket {
	char id[STORE_ID_BYTES];
	session_options options;
	adapter_ref adapter;    /* the session's; "": none */
	served_adapter *opened; /* owned: the same, once the model is loaded */
	bool create;
	bool fetch;              /* the state on the disk is needed, as far as the loop knows */
	char state[PATH_MAX];    /* path of the state on the disk; "": none */
	session_away *away;      /* an existing session's, which belongs to the ticket while it is in use */
	uint64_t taken_ns;       /* time at which an existing session was taken */
	session_transfer import; /* the state to import: an upload, the stored one once it is read, or that of `away` */
	bool read, damaged;      /* out: the stored state was needed; it is damaged or missing */
	error error;             /* out: why there is no session */
} session_ticket;

/* State of a session after a request. */
typedef struct session_change {
	bool live;
	session_info info;
} session_change;

/* True if the ticket needs work on the pool. */
bool session_ticket_has_work(const session_ticket *t);
/* Read or check the state. A failure is returned by session_ticket_redeem. Pool thread. */
void session_ticket_fetch(session_ticket *t);
/* Executor thread, in a task's `prepare`: load the model and import a limited part of the state, if there is one. True:
 * complete, or failed. */
bool session_ticket_prepare(session_ticket *t, model_entry *c, device *d);
/* Find, create or restore the session. STATUS_STORAGE, logged: the stored state is damaged or missing. Executor
 * thread. */
status session_ticket_redeem(session_ticket *t, model_entry *c, device *d, session **out, error *err);
/* Record the session's present state. Executor thread. */
void session_ticket_look(session_change *out, device *d, const char *id);
void session_ticket_fini(session_ticket *t);

#endif
