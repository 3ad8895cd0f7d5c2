/* session.h - one sequence: a slot of recurrent state, and its data on the host.
 *
 *   slot      the state after `tokens` tokens, on the device
 *   history   all tokens read (for penalties, export and explanation)
 *   logits    output after the last token; undefined while `tokens` is 0 or the session is busy: they may be on the
 *             device or belong to an earlier token
 *   log       with `explain`: what an explanation needs of every token (explain/explain.h)
 *   source    tokens of the source, if the model reads one; the encoder's output is in the slot
 *
 * Count, log and export cover exactly the tokens that the state has read. A generation therefore reads its last token
 * before it ends, and the next generation samples from the logits that are kept. Only a failure of memory or of the
 * device can leave a token that was delivered and not read. It stays `pending`, and the session's next use reads it.
 *
 * The state has a constant size. History and log are on the host and grow with the sequence.
 *
 * A held session has no slot: its state is in host memory (held_state.h). A snapshot is one that belongs to a session
 * and is freed with it. Kept states of prompts are held sessions, and so are sessions that have left their slots.
 * Copies of a session that are held share what their states have in common.
 *
 * A copy has only what the tokens have written. The rest of its slot is undefined, and zero in an export. Executor
 * thread only. */
#ifndef ENGINE_SERVE_SESSION_H
#define ENGINE_SERVE_SESSION_H

#include "engine/base/string_table.h"
#include "engine/serve/held_state.h"
#include "engine/serve/served_model.h"
#include "engine/serve/token_history.h"

/* For a session whose states are kept for other prompts (prefixes.h). */
typedef struct session_kept {
	int64_t tokens;       /* tokens of the latest state kept, or of the one that it began with */
	uint64_t hash, owner; /* hash of the first `hashed` tokens; of the owner */
	int64_t hashed;
	bool copies;       /* a state enters or leaves the slot in pieces, so no step may change it */
	session *entering; /* the held one that enters; NULL: the session's own leaves */
	size_t moved;      /* bytes of it */
} session_kept;

struct session {
	string_node node; /* in the scheduler's table; unused for a temporary session */
	served_model *model;
	held_state held;    /* the state of a held session. Otherwise only `blocks`: leading blocks of its tokens; a ring
	                     * that has wrapped no longer has their bytes */
	session *snapshots; /* newest first */
	session *older;     /* a snapshot's link */
	int64_t automatic;  /* an automatic snapshot: its bytes; otherwise 0 */
	atomic_llong *used; /* count of the memory of snapshots like this one; NULL: it is not counted */
	int64_t counted;    /* bytes in *used besides those of the state */
	int64_t tokens;     /* count of `history`, except during an import */
	token_history history;
	float *logits;              /* [vocab]; a held session may have none, NULL */
	const float *device_logits; /* device address of the logits, valid until the plan's next step; NULL: they are in
	                             * `logits` */
	float *log;                 /* [log_capacity][log_floats], NULL without explain */
	int64_t log_capacity;
	int32_t *source;    /* [n_source] */
	int64_t n_source;   /* 0: no source has been encoded */
	session_kept *kept; /* NULL: no states are kept */
	session_options options;
	held_budget budget;
	atomic_int shares; /* owners of a held session besides the first (session_share) */
	int32_t slot;      /* -1: the session is held */
	int32_t entry;     /* place of its adapter in the model's bank (lora_bank.h); 0: none, or it is held */
	int32_t pending;   /* delivered and not read; -1: none */
	bool busy;
	bool lost; /* the device failed during a step of this session; its state is undefined */
	char id[];
};

/* True while a state enters or leaves the slot of x in pieces. */
static inline bool session_copies(const session *x)
{
	return x->kept && x->kept->copies;
}

/* Create an empty session with a slot of m. The caller clears the slot if the session can be exported or copied
 * (statepool.h). On error *out is NULL. STATUS_BUSY, STATUS_NOMEM. */
status session_new(session **out, served_model *m, const char *id, const session_options *o, error *err);
/* Give a complete held session one owner more. The last one to free it does. Any thread. */
session *session_share(session *held);
/* Free the session and give its slot back. NULL is legal. */
void session_free(session *x);

/* STATUS_OK if x can be used. STATUS_CONFLICT: busy. STATUS_DEVICE: lost. */
status session_check(const session *x, error *err);
/* Like session_check, then read the pending token. An error leaves it pending unless x is lost. */
status session_ready(session *x, error *err);

/* Reserve memory for n more tokens. STATUS_NOMEM. STATUS_TOO_LARGE past 2^31 - 1 tokens. */
status session_reserve(session *x, int64_t n, error *err);
/* Reserve memory for a source of n tokens; n_source stays 0. STATUS_NOMEM. */
status session_reserve_source(session *x, int64_t n, error *err);
/* Return the row of a step that reads n ≥ 1 tokens (borrowed). Memory for them must be reserved. */
served_row session_row(session *x, const int32_t *tokens, int64_t n);
/* Run a decode step or a step of prompts with this row alone. A failure that may have changed the state loses x:
 * STATUS_DEVICE. */
status session_step(session *x, served_plan *p, const served_row *row);
/* Record that the tokens have been read, as row `row` of the last step of p. */
void session_commit(session *x, const int32_t *tokens, int64_t n, const served_plan *p, int row);
/* Copy the logits to the host if they are on the device. A failure loses the session. */
status session_fetch(session *x);

/* Return the maximum tokens of the sequence: the model's positions under POSITION_ERROR, otherwise 2^31 - 1. */
int64_t session_limit(const session *x);

/* The parts that a copy consists of, in order: state, logits, ids, log, source. */
enum { PART_STATE, PART_LOGITS, PART_TOKENS, PART_LOG, PART_SOURCE, SESSION_PARTS };
enum { SESSION_STEP = 1 << 20 /* maximum bytes copied in one step */ };
typedef struct session_slice {
	int part;
	size_t from, bytes; /* byte range of the part */
} session_slice;
/* Set *out to the next slice, at most `most` bytes, after `moved` bytes of all parts. False: everything is copied. */
bool session_next_slice(const size_t parts[SESSION_PARTS], size_t moved, size_t most, session_slice *out);

/* Reserve memory for log and source of x in a session that is empty or has x's first tokens and source. STATUS_NOMEM.
 */
status session_reserve_copy(session *copy, const session *x, error *err);
/* Create an empty copy of x under another id. x must not change until the copy is complete. */
status session_fork(session **out, session *x, const char *id, error *err);
/* Copy the next SESSION_STEP bytes of x. *moved counts the bytes of all steps, and those that the copy shares with
 * other held sessions; of these a step passes over a few hundred runs at most. The tokens are shared, not copied
 * (token_history.h). After an error the copy can only be freed.
 */
status session_fork_step(session *copy, const session *x, size_t *moved, bool *done, error *err);
/* Copy all of x to *copy, which is empty. On error *copy is freed and NULL. */
status session_copy_all(session **copy, const session *x);
/* Create an empty snapshot of x, in no list; session_fork_step fills it in. STATUS_NOMEM. */
status session_snapshot(session **out, session *x, const char *id, error *err);
/* Create a held session after n tokens, which has none yet, and no logits, log or source; source: its state has that of
 * a source. The first blocks of `blocks` are its blocks. session_fork_step fills it in, or the caller. STATUS_NOMEM. */
status session_hold_new(session **out, served_model *m, const session_options *o, int64_t n, bool source,
                        block_list *blocks);
/* Let x share the blocks of a held session with the same first tokens. Without memory it shares fewer. */
void session_share_blocks(session *x, const session *held);
/* Count the bytes of a complete snapshot in *used until it is freed. A block of its state counts once in each budget.
 * *used outlives the snapshot. */
void session_count(session *snapshot, held_budget budget, atomic_llong *used);
/* Return a snapshot of x, or NULL. */
session *session_find_snapshot(const session *x, const char *id);
/* Remove a snapshot from x and free it. */
void session_drop_snapshot(session *x, session *snapshot);
/* Take the snapshots of x from it. They are used again only after session_attach_snapshots, or freed. */
session *session_detach_snapshots(session *x);
/* Give x, which has none, the snapshots of a session of the same model. */
void session_attach_snapshots(session *x, session *snapshots);
/* Bytes of a snapshot of x, with all of its tokens: it still has them when x has left its slot. What it shares with
 * others is counted. */
int64_t session_snapshot_bytes(const session *x);
/* Bytes of its export, but for header and checksum. */
int64_t session_export_bytes(const session *x);
/* Bring x to the contents of a snapshot, at most SESSION_STEP bytes a call. *moved is 0 before the first call, which
 * sets the tokens. x must not be used until *done. STATUS_NOMEM: nothing has changed. STATUS_DEVICE: x is lost. */
status session_rollback_step(session *x, const session *snapshot, size_t *moved, bool *done, error *err);
/* Bring `copy` to the tokens of x, at most SESSION_STEP bytes a call; the logits are not copied. Both have the same
 * first tokens, so their states differ only in `changes` [n] (states.h). After an error the copy can only be freed. */
status session_follow_step(session *copy, const session *x, const state_range *changes, int n, size_t *moved,
                           bool *done, error *err);

#endif
