/* session_task_private.h - one executor task with one session: shared by session_task.c and snapshot_tasks.c. */
#ifndef ENGINE_DAEMON_SESSIONS_SESSION_TASK_PRIVATE_H
#define ENGINE_DAEMON_SESSIONS_SESSION_TASK_PRIVATE_H

#include "engine/daemon/sessions/session_settle.h"
#include "engine/daemon/sessions/session_task.h"

typedef struct session_task session_task;

typedef struct session_task_kind {
	/* Executor thread; called again in the next turn while it sets t->more. NULL: finding the session is enough. */
	status (*act)(session_task *t, device *d, session *x, error *err);
	void (*answer)(session_task *t); /* loop thread; answers the stream and frees t. NULL: the task creates a
	                                  * session, which is the answer */
	bool settles;                    /* `answer` settles the session, also after a failure (session_task_settle) */
	bool imports;  /* `act` exports the session, and then a second task imports it as the new one */
	bool replaces; /* the ticket's state replaces that of a live session */
} session_task_kind;

struct session_task {
	task task;
	const session_task_kind *kind;
	stream *stream;
	sessions *all;
	model_entry *model;
	session_entry *entry;  /* existing, or being created */
	session_entry *parent; /* fork: the session copied; NULL once it is returned */
	session_ticket ticket; /* for `entry`; fork: for the parent */
	session_change change, parent_change;
	session_settlement settlement; /* for a session that is created */
	status result;
	error error;
	size_t moved;                  /* bytes copied in all turns */
	char snapshot[STORE_ID_BYTES]; /* the snapshot that is made, forked, returned to or deleted; "": none */
	bool stored;                   /* fork: of a stored snapshot, which is imported; the parent is not used */
	bool replaced;
	session_transfer export;
	uv_work_t work;
	session_log log;
	int64_t copied; /* tokens of the log copied */
	bool more;
	void (*fetched)(stream *s, session_log *log);
};

/* Create a task for an existing session; NULL: the stream has been answered. */
session_task *session_task_existing(stream *s, sessions *all, const char *id, const session_task_kind *kind);
/* Submit the task, after the pool has read the state that its ticket needs. */
void session_task_begin(session_task *t);
/* Answer the stream with an error, return the session unchanged and free t. param may be NULL. */
void session_task_refuse(session_task *t, status result, const char *param, const char *words);
void session_task_free(session_task *t);
/* Settle an existing session that the task has changed. The settlement's `settled` frees t. */
void session_task_settle(session_task *t, json_t *(*result)(session_settlement *x),
                         void (*settled)(session_settlement *x));

#endif
