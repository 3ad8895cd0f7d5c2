/* sessions.h - load on sessions: many are open, each follows a script of turns, and is closed and replaced at its end.
 *
 * A script is a sequence of cases. One session follows each script undisturbed first; the answers of all others must be
 * equal to its answers. After a turn that did not end well the session may hold any part of it, so it is looked up and
 * closed. It must not have fewer tokens than were acknowledged, nor be missing. */
#ifndef CLIENTS_LOAD_SESSIONS_H
#define CLIENTS_LOAD_SESSIONS_H

#include "clients/load/driver.h"
#include "clients/load/workload.h"

enum { SESSIONS_SCRIPTS = 16 };

typedef struct sessions sessions;
typedef struct seat seat; /* the place of a session */

/* Operations on a seat; each is one request. */
typedef enum operation { OPERATION_OPEN, OPERATION_TURN, OPERATION_LOOK, OPERATION_CLOSE } operation;
enum { OPERATIONS = OPERATION_CLOSE + 1 };
const char *operation_name(operation o);

typedef struct sessions_options {
	const char *model;
	int n, turns;
	bool durable;
	bool may_vanish; /* a session that is not durable may be missing: the engine is expected to die */
} sessions_options;

/* The workload (borrowed) has the cases. NULL: out of memory. */
sessions *sessions_new(workload *w, const sessions_options *o);
void sessions_free(sessions *s);

/* Take an idle seat at random, which is busy then, and fill in its next request: method, path, body, streams. *c: the
 * case of a turn, otherwise NULL. NULL: no seat is idle. closing: sessions are closed and not opened again, and NULL
 * means that none is left but those in use. */
seat *sessions_next(sessions *s, uint64_t *random, bool closing, driver_request *out, workload_case **c);
/* In the same way for the session that follows script `n` undisturbed. NULL: it is closed. */
seat *sessions_rehearse(sessions *s, int n, driver_request *out, workload_case **c);
/* Fill in the request that closes that session before its end. NULL: it is not open. */
seat *sessions_abandon(sessions *s, driver_request *out, workload_case **c);
/* The request has ended. A rule that is broken becomes the answer's problem. */
void sessions_ended(sessions *s, seat *t, outcome how, int status, answer *a);
operation sessions_operation(const seat *t);
/* Sessions opened so far; those not closed yet; those whose id did not arrive, so that they cannot be closed. */
long long sessions_opened(const sessions *s);
long long sessions_left(const sessions *s);
long long sessions_unknown(const sessions *s);

#endif
