/* visits.h - the methods session.create, append, fork, export, import, and a session's log: each one
 * visit of the executor to one session. Loop thread. */
#ifndef ENGINE_DAEMON_SESSIONS_VISITS_H
#define ENGINE_DAEMON_SESSIONS_VISITS_H

#include "engine/daemon/sessions/sessions.h"
#include "engine/explain/explain.h"

void visits_create(stream *s);
void visits_append(stream *s);
void visits_fork(stream *s);
void visits_export(stream *s);
void visits_import(stream *s);

/* A copy of the log of a session opened with explain. */
typedef struct session_log {
	card *card;
	int32_t *tokens;
	float *data;
	explain_scores scores; /* of data */
} session_log;
void session_log_fini(session_log *log);

/* Fetch the log of the session `id` for s. `fetched` takes the log over and answers; on failure the stream is
 * answered here. */
void visits_log(stream *s, const char *id, void (*fetched)(stream *s, session_log *log));

#endif
