/* session_task.h - the methods session.fork, export and import, creation without a prompt, and reading a session's log.
 * Each is one executor task with one session. Loop thread. */
#ifndef ENGINE_DAEMON_SESSIONS_SESSION_TASK_H
#define ENGINE_DAEMON_SESSIONS_SESSION_TASK_H

#include "engine/daemon/sessions/sessions.h"
#include "engine/explain/explain.h"

/* The method session.create without a prompt. */
void session_task_create(stream *s, sessions *all);
/* Create the session that session.create requests: on the model of c, busy, with its ticket. */
status session_task_make(stream *s, sessions *all, const model_entry *c, session_entry **out, session_ticket *ticket,
                         error *err);
void session_task_fork(stream *s);
void session_task_export(stream *s);
void session_task_import(stream *s);

/* Methods on snapshots (snapshot_tasks.c). */
void snapshot_tasks_create(stream *s);
void snapshot_tasks_list(stream *s);
void snapshot_tasks_delete(stream *s);
void snapshot_tasks_rollback(stream *s);

/* A copy of the log of a session opened with explain. */
typedef struct session_log {
	model_entry *model;
	int device; /* the session's; FLEET_ANY: the log is of no session */
	int32_t *tokens;
	int64_t count;
	float *data; /* NULL for a model that reads a source; its sequences are read again instead */
	int32_t *source;
	int64_t n_source;
} session_log;
void session_log_fini(session_log *log);

/* Fetch the log of session `id` for s. `fetched` takes the log over and answers; on failure the stream is answered
 * here. */
void session_task_log(stream *s, sessions *all, const char *id, void (*fetched)(stream *s, session_log *log));

#endif
