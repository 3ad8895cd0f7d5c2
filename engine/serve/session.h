/* session.h - one sequence: a slot of recurrent state and what its host side must know.
 *
 *   slot      the state after `tokens` tokens, on the device
 *   ids       the tokens read, all of them (penalties, export, explanation)
 *   logits    what the model says after the last of them; meaningless while tokens is 0, and while the session is
 *             busy: then they may lie on the device, or be those of an earlier token
 *   log       with `explain`: what an explanation needs of every token (explain/explain.h)
 *
 * Everything said about a session - its count, its log, its export - is about tokens the state
 * has read; there is no token "in between". So a generation that has sampled its last token
 * still reads it before it ends, and logits wait for whoever continues. Only when a generation ends because memory or
 * the device failed there may be a token that has been told and not read: the session owes it, and reads it as soon as
 * it is used again.
 *
 * The state has one size for ever; ids and log grow with the sequence, on the host.
 * Executor thread only. */
#ifndef ENGINE_SERVE_SESSION_H
#define ENGINE_SERVE_SESSION_H

#include "engine/base/string_table.h"
#include "engine/serve/served_model.h"

struct session {
	string_node node; /* in the scheduler's table; temporary sessions are in none */
	char id[SCHEDULER_ID_BYTES];
	served_model *model;
	session_options options;
	bool busy;
	bool lost; /* the device failed while it was being advanced */
	int32_t slot;
	int64_t tokens, capacity;
	int32_t *ids;             /* [capacity] */
	float *logits;            /* [vocab] */
	const float *from_device; /* the logits, when they lie there: until its plan's next step */
	int32_t pending;          /* delivered, but not read; -1: none */
	float *log;               /* [capacity][log_floats], NULL without explain */
};

/* An empty session with a slot of m, which has to be cleared before it may be exported empty or after a few tokens
 * (statepool.h). On error *out is NULL. */
status session_new(session **out, served_model *m, const char *id, const session_options *o, error *err);
void session_free(session *x);

/* May it be used now? STATUS_CONFLICT while busy, STATUS_DEVICE when lost. */
status session_check(const session *x, error *err);
/* The same, and it reads what it owes: STATUS_NOMEM leaves it owing, STATUS_DEVICE loses it. */
status session_ready(session *x, error *err);

/* Room for n more tokens. STATUS_NOMEM; STATUS_TOO_LARGE past 2^31 - 1 tokens. */
status session_reserve(session *x, int64_t n, error *err);
/* The row that reads n ≥ 1 tokens (borrowed); they have been reserved. */
served_row session_row(session *x, const int32_t *tokens, int64_t n);
/* They have been read, as row `row` of the last step of p. */
void session_commit(session *x, const int32_t *tokens, int64_t n, const served_plan *p, int row);
/* Bring the logits to the host, if they are not there. On failure the session is lost. */
status session_fetch(session *x);

/* Under POSITION_ERROR the number of tokens it may hold in all, else 2^31 - 1. */
int64_t session_limit(const session *x);

/* A copy under another id. */
status session_fork(session **out, session *x, const char *id, error *err);

#endif
