/* session.h - one sequence: a slot of recurrent state, and its data on the host.
 *
 *   slot      the state after `tokens` tokens, on the device
 *   ids       the tokens read, all of them (penalties, export, explanation)
 *   logits    the model's output after the last of them; undefined while tokens is 0, and while the session is busy:
 *             then they may lie on the device, or be those of an earlier token
 *   log       with `explain`: what an explanation needs of every token (explain/explain.h)
 *   source    of a model that reads one: its tokens; what the encoder has made of them lies in the slot
 *
 * Count, log and export cover exactly the tokens that the state has read. So a generation reads its last token before
 * it ends, and the next generation samples from the logits that are kept. Only a generation that ends because memory or
 * the device failed can leave a token that is delivered and not read. It stays pending, and the session's next use
 * reads it.
 *
 * The state has a constant size; ids and log grow with the sequence, on the host.
 * Executor thread only. */
#ifndef ENGINE_SERVE_SESSION_H
#define ENGINE_SERVE_SESSION_H

#include "engine/base/string_table.h"
#include "engine/model/states.h"
#include "engine/serve/served_model.h"

struct session {
	string_node node; /* in the scheduler's table; temporary sessions are in none */
	char id[SCHEDULER_ID_BYTES];
	served_model *model;
	session_options options;
	bool busy;
	bool lost; /* the state is undefined: the device failed in a step that read for it */
	int32_t slot;
	int64_t tokens, capacity;
	int32_t *ids;             /* [capacity] */
	float *logits;            /* [vocab] */
	const float *from_device; /* device address of the logits until the plan's next step; NULL: `logits` has them */
	int32_t pending;          /* delivered, but not read; -1: none */
	float *log;               /* [capacity][log_floats], NULL without explain */
	int32_t *source;          /* [n_source] */
	int64_t n_source;         /* 0: none has been encoded */
};

/* An empty session with a slot of m. The caller clears the slot if the session can be exported or copied (statepool.h).
 * On error *out is NULL. */
status session_new(session **out, served_model *m, const char *id, const session_options *o, error *err);
void session_free(session *x);

/* STATUS_OK when x can be used now; STATUS_CONFLICT while busy, STATUS_DEVICE when lost. */
status session_check(const session *x, error *err);
/* The same, and read the pending token: STATUS_NOMEM leaves it pending, STATUS_DEVICE means that x is lost. */
status session_ready(session *x, error *err);

/* Room for n more tokens. STATUS_NOMEM; STATUS_TOO_LARGE past 2^31 - 1 tokens. */
status session_reserve(session *x, int64_t n, error *err);
/* Memory for a source of so many tokens, n_source of which is still 0. STATUS_NOMEM. */
status session_reserve_source(session *x, int64_t n, error *err);
/* The row of a step that reads n ≥ 1 tokens (borrowed); room for them is reserved. */
served_row session_row(session *x, const int32_t *tokens, int64_t n);
/* Record that they have been read, as row `row` of the last step of p. */
void session_commit(session *x, const int32_t *tokens, int64_t n, const served_plan *p, int row);
/* Copy the logits to the host if they lie on the device. On failure the session is lost. */
status session_fetch(session *x);

/* Maximal tokens of the sequence: the model's positions under POSITION_ERROR, else 2^31 - 1. */
int64_t session_limit(const session *x);

/* What is copied of a session, part behind part: state, logits, ids, log, source. */
enum { SESSION_PARTS = 5, SESSION_STEP = 1 << 20 /* bytes that are copied at a time, at most */ };
typedef struct session_slice {
	int part;
	size_t from, bytes; /* of the part */
} session_slice;
/* The next slice of at most `most` bytes, when `moved` bytes of all parts have been copied. False: all have. */
bool session_next_slice(const size_t parts[SESSION_PARTS], size_t moved, size_t most, session_slice *out);

/* Room for what x has, in a session that is empty or has x's first tokens and source. STATUS_NOMEM. */
status session_reserve_copy(session *copy, const session *x, error *err);
/* A copy under another id, still empty; x has to stay as it is until the copy is whole. */
status session_fork(session **out, session *x, const char *id, error *err);
/* The next SESSION_STEP bytes of x; *moved: so far, of all steps. After an error the copy can only be freed. */
status session_fork_step(session *copy, const session *x, size_t *moved, bool *done, error *err);
/* The next SESSION_STEP bytes, at most, that make `copy` what x is, but for its logits; both have the same first
 * tokens, so only what of their states `changes` [n] (states.h) can differ. After an error copy can only be freed. */
status session_follow_step(session *copy, const session *x, const state_range *changes, int n, size_t *moved,
                           bool *done, error *err);

#endif
