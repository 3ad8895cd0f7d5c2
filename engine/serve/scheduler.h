/* scheduler.h - models, sessions, generations and score tasks, and the order in which they run.
 *
 * The scheduler owns the loaded models, their state pools and every live session. Work advances in ticks. One tick is
 * one batched decode step (one token for each runnable generation of a model), one step of prompts (which may decode,
 * too), or one slice of a scoring.
 *
 * Threads: the scheduler has no thread of its own. All functions run on the executor thread (in tests, on the caller's
 * thread), except those marked "any thread". Callbacks may call any function here except scheduler_tick and
 * scheduler_free.
 *
 * Fairness: a step of prompts usually has a token for each stream of its model, too. Otherwise decode steps go first,
 * and at most one step of prompts runs between two of them. So prompts delay a token by at most that step. It reads up
 * to PREFILL_CHUNK tokens, on a device backend.prompt_tokens. Beside running generations, and for
 * SHORT_STEPS after a short prompt beside others, a CPU reads a long prompt PREFILL_SHORT tokens at a time if that
 * changes no bit. A step packs several prompts while they fit, shortest first;
 * every fourth step begins with the oldest. If several owners send requests, steps are divided among them (shares.h).
 * `priority` orders the generations of one owner, and changes no other owner's part (scheduler_order.c).
 * Work in the background is in no step while other work can run. No step waits for more requests. A parked generation (no credit left) keeps
 * its slot and is in no step. */
#ifndef ENGINE_SERVE_SCHEDULER_H
#define ENGINE_SERVE_SCHEDULER_H

#include <stdatomic.h>

#include "engine/explain/attribution.h"
#include "engine/explain/explain.h"
#include "engine/base/manifest.h"
#include "engine/model/model.h"
#include "engine/model/feed.h"
#include "engine/serve/beam_search.h"
#include "engine/text/chat_template.h"
#include "engine/text/grammar/constraint.h"
#include "engine/text/tokenizer.h"
#include "gen/limits.h"

typedef struct scheduler scheduler;
typedef struct served_model served_model;
typedef struct served_adapter served_adapter;
typedef struct session session;
typedef struct generation generation;
typedef struct score_task score_task;

enum {
	SCHEDULER_ID_BYTES = 64,
	SCHEDULER_MAX_STOPS = COMPLETION_STOP_MAX_ITEMS + CHAT_TEMPLATE_STOPS,
	SCHEDULER_MAX_STOP_BYTES = COMPLETION_STOP_MAX_BYTES,
	SCHEDULER_AUTOMATIC = 8,                  /* automatic snapshots of a session; the oldest goes first */
	SCHEDULER_AUTOMATIC_BYTES = 4 << 20,      /* maximum of the states that a turn copies for them */
	SCHEDULER_OVERTAKES = 256,                /* times that more priority takes a generation's place in the queue */
	SCHEDULER_PREFILL_CHUNK = 256,
	SCHEDULER_PREFILL_SHORT = 64,   /* on a CPU beside other requests, where no bit depends on it */
	SCHEDULER_PREFILL_LONG = 1024,  /* a prompt with more tokens left is read so also after short prompts, for */
	SCHEDULER_SHORT_STEPS = 512,    /* steps, which is about a second */
	SCHEDULER_MAX_ROLLOUT = 1 << 15 /* tokens read × rows of weights, per generated token; ~4 ms */
};

typedef struct scheduler_limits {
	int max_models;       /* loaded at once; the least recently used idle model is unloaded, also for its memory */
	int max_sessions;     /* live sessions of all models together */
	int max_generations;  /* running and waiting; one more is STATUS_BUSY (admission.h refuses earlier) */
	int max_batch;        /* sequences in one decode step */
	int64_t prefix_bytes; /* host memory for states that prompts begin with (prefixes.h); 0: none are kept */
	struct prefix_disk *prefix_disk; /* for those that leave it; shared by schedulers. NULL: they are freed */
	int64_t automatic_bytes; /* host memory for automatic snapshots; 0: none are made */
	/* Count that memory, and that of other snapshots, for all schedulers that share it. They outlive the snapshots.
	 * NULL: no automatic snapshots are made; others are not counted. */
	atomic_llong *automatic_used, *snapshot_used;
} scheduler_limits;

/* Create a scheduler for models on backend b, which must outlive it. STATUS_NOMEM. */
status scheduler_new(scheduler **out, backend *b, const scheduler_limits *limits);
/* End every generation and scoring with STATUS_CANCELLED, and free sessions and models. NULL is legal. */
void scheduler_free(scheduler *s);

/* --- models ------------------------------------------------------------ */

/* Return the model `id`, loading it from `folder` on first use; blocks while loading. `weights` is a type that products
 * can be packed in. A model has one weight type at a time: a request for another type reloads it, or returns
 * STATUS_CONFLICT while it is in use. *out is valid while a session or generation uses the model, otherwise until the
 * next call of this function or of scheduler_model_unload. STATUS_BUSY: max_models are loaded and all are in use. */
status scheduler_model(scheduler *s, const char *id, const char *folder, dtype weights, served_model **out, error *err);
/* Load like scheduler_model without blocking: each call works for about a millisecond. STATUS_OK with *out NULL: not
 * complete, call again. Only one model is loaded at a time. While another model, or this one
 * with other weights, is being loaded, the call at most unloads an idle copy with other weights. An error abandons the
 * load. scheduler_model abandons a load started here unless it is of the same model. */
status scheduler_model_step(scheduler *s, const char *id, const char *folder, dtype weights, served_model **out,
                            error *err);
/* True if the model `id` is being loaded. */
bool scheduler_model_loading(const scheduler *s, const char *id);
/* Abandon the load that scheduler_model_step started, if any. */
void scheduler_model_abandon(scheduler *s);
/* STATUS_CONFLICT while the model is being loaded or while sessions, generations or score tasks use it. */
status scheduler_model_check_idle(const scheduler *s, const char *id, error *err);
/* Unload the model; STATUS_OK if it is not loaded. STATUS_CONFLICT as for scheduler_model_check_idle. */
status scheduler_model_unload(scheduler *s, const char *id, error *err);
bool scheduler_model_loaded(const scheduler *s, const char *id);
/* Return a part of a loaded model, borrowed while the model is loaded. */
const model *served_model_model(const served_model *m);
const tokenizer *served_model_tokenizer(const served_model *m);

/* --- adapters ----------------------------------------------------------- */

/* Read an adapter of a loaded model from a file (engine/model/adapter.h). about: as for adapter_read. The caller frees
 * it; sessions that started from it keep it as long as they need it. STATUS_UNSUPPORTED: the model can have none. Other
 * errors are those of adapter_read. */
status served_adapter_open(served_adapter **out, const served_model *m, const char *id, const char *path,
                           const manifest *about, error *err);
/* Read a low-rank adapter from its folder (engine/model/lora.h) in the same way. Errors also as for lora_open. */
status served_adapter_open_lora(served_adapter **out, const served_model *m, const char *id, const char *folder,
                                const manifest *about, error *err);
/* Return the bytes of host memory that an adapter has; NULL: 0. */
size_t served_adapter_bytes(const served_adapter *a);
/* Return `a`, which may be NULL, with one user more. Any thread. */
served_adapter *served_adapter_share(served_adapter *a);
/* True if it is the adapter with this id, of this model. */
bool served_adapter_is(const served_adapter *a, const char *id, const served_model *m);
/* End the caller's use. NULL is legal. Any thread. */
void served_adapter_free(served_adapter *a);

/* --- sessions ---------------------------------------------------------- */

typedef struct session_options {
	uint8_t policy; /* position_policy */
	bool explain; /* keep the log: for each token, the numbers that importance weights are computed from */
	bool durable; /* the caller stores an export after each change */
	served_adapter *adapter; /* for the same model; borrowed. NULL: none. Not with `explain` */
} session_options;

typedef struct session_info {
	char id[SCHEDULER_ID_BYTES];
	char model[SCHEDULER_ID_BYTES];
	int64_t tokens;         /* read so far */
	int64_t source;         /* tokens of its source; 0: no source */
	int64_t state_bytes;    /* constant, independent of `tokens` */
	int64_t snapshot_bytes; /* size of a snapshot of the session as it is, with what it would share */
	int64_t export_bytes;   /* size of its blob, but for header and checksum */
	bool busy;              /* a generation or append uses it */
	session_options options;
	struct {
		char id[SCHEDULER_ID_BYTES];
		int64_t tokens, bytes;
	} automatic[SCHEDULER_AUTOMATIC]; /* its automatic snapshots, oldest first */
	int n_automatic;
} session_info;

/* Create a session; it owns one slot of the model's pool. The caller chooses `id`. STATUS_BUSY: all sessions are in
 * use. STATUS_CONFLICT: the id exists.
 *
 * `tokens`, log, export and forks cover the tokens that the session has read. A generation reads its own last token
 * before it ends. Generating n tokens and then m is therefore the same as n + m.
 *
 * If a step fails, those of its sessions whose states it may have changed are lost: they return STATUS_DEVICE and can
 * only be deleted. Other sessions may be left with one token that was delivered and not read (a step that changed
 * nothing, a lost device, or no memory). The next use of such a session reads that token first; an error then leaves
 * the session unchanged. */
status scheduler_session_new(scheduler *s, served_model *m, const char *id, const session_options *o, session **out,
                             error *err);
/* Return the session `id`, or NULL. Borrowed until scheduler_session_delete. A lost session that is not busy is freed:
 * NULL. */
session *scheduler_session_find(scheduler *s, const char *id);
void scheduler_session_info(const session *x, session_info *out);
/* Free the session and its slot. STATUS_CONFLICT: it is busy. */
status scheduler_session_delete(scheduler *s, session *x, error *err);
/* Copy about a megabyte more of x into a new session `id`. *moved is 0 before the first call. *out is NULL until the
 * copy is complete. The caller lets nothing else use x meanwhile. The copy is busy until it is complete and is freed
 * after an error. The tokens read are shared, so the time does not depend on their number unless a log is kept.
 * STATUS_CONFLICT: x is busy. STATUS_DEVICE: the device was lost, possibly between two calls. */
status scheduler_session_fork_step(scheduler *s, session *x, const char *id, size_t *moved, session **out, error *err);
/* Fork in one blocking call. */
status scheduler_session_fork(scheduler *s, session *x, const char *id, session **out, error *err);

/* A snapshot is a copy of a session's contents in host memory. It has no slot, belongs to its session and is freed with
 * it. A session is rolled back by copying a snapshot into it. It then continues exactly as if it had not read anything
 * since. Both are copied in steps of about a megabyte, as forks are.
 *
 * Add a snapshot `id` to x. STATUS_CONFLICT: x is busy, or the id exists. STATUS_NOMEM. */
status scheduler_session_snapshot_step(scheduler *s, session *x, const char *id, size_t *moved, bool *done, error *err);
/* Find a snapshot of x, borrowed. It can be forked and exported like a session. STATUS_NOT_FOUND "snapshot". */
status scheduler_session_snapshot(const session *x, const char *id, session **out, error *err);
/* Roll x back. STATUS_CONFLICT: x is busy. STATUS_NOT_FOUND "snapshot". STATUS_NOMEM: x has not changed. STATUS_DEVICE:
 * x is lost. */
status scheduler_session_rollback_step(scheduler *s, session *x, const char *snapshot, size_t *moved, bool *done,
                                       error *err);
/* Return the bytes of the blocks of all schedulers (held_state.h), and those that they would take more if no states shared
 * them. Any thread. */
void scheduler_block_bytes(int64_t *bytes, int64_t *shared);
/* Free a snapshot. STATUS_NOT_FOUND "snapshot". */
status scheduler_session_drop(session *x, const char *snapshot, error *err);

/* A session as a blob during export or import. The blob is versioned and checksummed. It holds the options, the state,
 * the position, the last token's logits, the tokens read and (with `explain`) the log. It moves in steps of about a
 * megabyte, so the executor can run other work in between. The checksum is computed and checked on other threads.
 * Initialise to {0} to export, or with the blob to import. */
typedef struct session_transfer {
	unsigned char *blob; /* from malloc */
	size_t bytes;
	size_t moved; /* bytes moved so far */
	bool done;
	bool temporary; /* import: the session is not durable, whatever the blob says */
	served_adapter *adapter; /* import: that of the exported session; borrowed. NULL: none, or that of `held` */
	session *held;  /* the blob has only its header; this has the rest (session_blob.h). NULL: the blob is whole */
} session_transfer;

/* Export about a megabyte more. Once t->done, the blob lacks only its checksum. The caller lets nothing else use x
 * until then. STATUS_CONFLICT: x is busy. */
status scheduler_session_export_step(scheduler *s, session *x, session_transfer *t, error *err);
/* Import about a megabyte more. *out is NULL until t->done. The session is busy until then and is freed after an error.
 * STATUS_INVALID: the blob belongs to other weights (by hash). STATUS_CORRUPT: the blob contradicts itself.
 * STATUS_DEVICE: the device was lost, possibly between two calls. */
status scheduler_session_import_step(scheduler *s, served_model *m, const char *id, session_transfer *t, session **out,
                                     error *err);
/* Move a session out of its slot: copy about a megabyte more, but for what its snapshots and forks have
 * (held_state.h). Once t->done, x is freed, its slot is free, *snapshots has its snapshots, and t->held the session. The
 * caller lets nothing else use x until then. It returns by an import, followed by scheduler_session_attach. After an
 * error x is as before and t is empty. STATUS_CONFLICT: x is busy. */
status scheduler_session_leave_step(scheduler *s, session *x, session_transfer *t, session **snapshots, error *err);
/* True if all slots are taken and a session is leaving one. */
bool scheduler_slot_is_coming(const scheduler *s);
/* Give x the snapshots that it had when it left. */
void scheduler_session_attach(session *x, session *snapshots);
/* Free the snapshots of a session that has left. NULL is legal. Any thread. */
void scheduler_snapshots_free(session *snapshots);
/* Make *out the whole blob of t, which has t->held: t->bytes with the checksum, from malloc. Any thread. STATUS_NOMEM. */
status scheduler_transfer_whole(const session_transfer *t, void **out);
/* Write the checksum of an export. Any thread. */
void scheduler_transfer_seal(session_transfer *t);
/* Verify a blob before its import. Any thread. STATUS_CORRUPT: damaged. STATUS_UNSUPPORTED: unknown version. */
status scheduler_transfer_check(const session_transfer *t, error *err);
/* Return the hash of the model whose state an exported blob holds. Any thread. */
uint64_t scheduler_transfer_model(const session_transfer *t);
/* Free the blob and the held session. Any thread. */
void scheduler_transfer_fini(session_transfer *t);
/* Export or import in one blocking call, with the checksum. The exported blob *out is freed by the caller with
 * free(). */
status scheduler_session_export(scheduler *s, session *x, void **out, size_t *bytes, error *err);
status scheduler_session_import(scheduler *s, served_model *m, const char *id, const void *blob, size_t bytes,
                                session **out, error *err);

/* Copy the tokens that the session has read to ids, from index `from` on and at most `most`. Return their number. */
int64_t scheduler_session_tokens(const session *x, int64_t from, int64_t most, int32_t *ids);
/* Set *log to the log (explain/explain.h) of a session opened with `explain`, and *count to its tokens. *log is NULL
 * for a model that reads a source. Valid until the session changes. STATUS_CONFLICT: opened without `explain`. */
status scheduler_session_log(const session *x, const float **log, int64_t *count, error *err);
/* Set *ids to the tokens of the source and return their number. Valid until the session changes. */
int64_t scheduler_session_source(const session *x, const int32_t **ids);

/* --- token by token -------------------------------------------------------- */

/* These three work on an idle session without a generation and without ticks. Their numbers and tokens have the same
 * bits as those of a generation. STATUS_CONFLICT: x is busy. STATUS_DEVICE: x is lost. STATUS_NOMEM. */

/* Read one token in a decode step of its own. STATUS_INVALID "token": it is not in the vocabulary, or all positions are
 * taken. STATUS_CONFLICT "source": the model reads a source and x has none. */
status scheduler_session_step(session *x, int32_t token, error *err);
/* Set *logits to the model's outputs after the last token; valid until the session changes. STATUS_CONFLICT: x has read
 * no token. */
status scheduler_session_logits(session *x, const float **logits, error *err);
/* Sample the token that a generation with these settings would choose next, and do not read it. Settings that penalise
 * repeated tokens take time in proportion to the tokens read. STATUS_CONFLICT: x has read no token. STATUS_INVALID
 * names a setting out of range; "model": no logit is finite. */
status scheduler_session_sample(session *x, const sampling *s, int32_t *token, error *err);

/* --- generations --------------------------------------------------------- */

typedef enum finish_reason { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_TIMEOUT } finish_reason;

/* The attention weight with which the latest token reads an earlier one ("alpha" in the API). */
typedef struct alpha_weight {
	int32_t token;    /* id */
	int64_t position; /* index in the session or request, from 0 */
	float weight;
} alpha_weight;

/* One event of a generation. Pointers are valid during the callback only. */
typedef struct generation_event {
	const char *text; /* whole UTF-8 characters; empty while the text may be the start of a stop sequence */
	size_t text_bytes;
	const int32_t *tokens; /* sampled since the last event; none in an event that only has text held back so far */
	int n_tokens;
	const token_logprob *logprobs; /* [n_tokens]; NULL unless requested */
	const token_logprob *top;      /* [n_tokens][n_top] */
	int n_top;
	const alpha_weight *alpha; /* [n_alpha] weights of the last token, largest first */
	int n_alpha;
	double time_ms; /* since the previous event, or since the request for the first */
} generation_event;

typedef struct generation_result {
	status status; /* STATUS_OK, STATUS_CANCELLED, or the error that ended it */
	error error;
	finish_reason finish;
	int64_t prompt_tokens; /* including those of the source */
	int64_t completion_tokens;
	int64_t cached_tokens;                    /* prompt tokens whose state was reused from another request */
	uint64_t accepted_ns, started_ns, prompted_ns, ended_ns; /* by clock_ns: accepted; its first turn; its first
	                                                          * token; now. 0: it did not come to that */
	int64_t call_snapshot; /* with request.calls: the tokens of the snapshot that was kept; -1: none was */
	float *log; /* with request.explain and STATUS_OK: the log of all tokens read (explain/explain.h); `finished`
	             * takes it and calls free(). Otherwise NULL */
} generation_result;

typedef struct generation_request {
	const int32_t *prompt; /* copied */
	int64_t n_prompt;
	const int32_t *source; /* source tokens, copied: encoder-decoders only, for a session without a source; encoded
	                        * before the prompt is read */
	int64_t n_source;
	served_adapter *adapter; /* temporary session only: its adapter (session_options); borrowed. NULL: none */
	int64_t n_shared;        /* leading prompt tokens that other prompts may share */
	int64_t max_tokens;                     /* 0: only read the prompt (append) */
	sampling sampling;                      /* bias is copied */
	const char *stops[SCHEDULER_MAX_STOPS]; /* UTF-8, copied */
	int n_stops;
	int32_t stop_tokens[CHAT_TEMPLATE_STOPS]; /* each ends the text as the end-of-text token does */
	int n_stop_tokens;
	bool ignore_end;              /* continue past the end-of-text token */
	constraint *constraint;       /* the generated text must match it; borrowed until `finished`. NULL: any text */
	const char *constraint_field; /* with a constraint: its name in errors; borrowed likewise */
	int n_logprobs;               /* -1: none; 0…20: the chosen token and this many alternatives */
	bool score_prompt;       /* also send events for prompt tokens, from the second on; needs n_logprobs ≥ 0 */
	bool scores_only;        /* with score_prompt: those events carry no text */
	int n_alpha;             /* alphas per token, 0: none. Each generated token then costs time in proportion to the
	                          * tokens read */
	explain_selection alpha; /* heads and layers to average; NULL members select all; copied */
	bool alpha_rollout;      /* attention rollout instead of the mean */
	const char *owner;       /* owner of the request (shares.h); copied, cut to SHARES_OWNER_BYTES - 1. NULL: "" */
	bool background;         /* run only while no other generation or score task can */
	int weight;              /* the owner's weight (shares.h); 0: 1 */
	int priority;            /* order among the generations of the owner: the lowest number first */
	bool reads_all;          /* do not use or keep states of other requests (prefixes.h) */
	bool explain;            /* temporary session only: keep the log and pass it to `finished` */
	int64_t snapshot_every;  /* make an automatic snapshot, "auto-TOKENS", when the session has read a multiple of
	                          * this many tokens, or after the piece of the prompt that passes one; later if others in
	                          * the step have used up SCHEDULER_AUTOMATIC_BYTES; 0: never */
	/* In a session: keep the state before the token with which the answer's first call begins as an automatic snapshot,
	 * "call-TOKENS". NULL: no. */
	const chat_call_form *calls;
	/* Both run on the scheduler's thread. `event` returns the number of credits left; at 0 the generation parks
	 * until generation_grant. `finished` is called exactly once, after which the generation is freed. */
	int64_t (*event)(void *context, const generation_event *e);
	void (*finished)(void *context, const generation_result *r);
	void *context;
	int64_t credit; /* events that may be sent before the first generation_grant */
} generation_request;

/* Start a generation in session x, or in a new temporary session of m if x is NULL. The session is busy until
 * `finished`. `finished` is not called if this function fails. *out is valid until `finished`.
 *
 * Errors:
 *   STATUS_BUSY              max_generations are accepted, or no slot is free
 *   STATUS_UNAVAILABLE       scheduler_free is running
 *   STATUS_CONFLICT          x is busy
 *   STATUS_DEVICE            x is lost
 *   STATUS_INVALID "prompt"  empty, and the session has read nothing; or longer than n_positions (POSITION_ERROR)
 *   STATUS_INVALID "source"  missing, given twice, or too long; or the model reads no source
 *   STATUS_INVALID           names another field that is out of range
 *   STATUS_UNSUPPORTED       names "model" or "alpha"
 *   STATUS_NOMEM
 *
 * Positions: under POSITION_ERROR prompt and completion together have at most n_positions tokens. A completion that
 * reaches the limit ends with FINISH_LENGTH, without a token if the prompt fills all positions.
 *
 * Ends: text stops before a stop sequence. Its tokens and the end-of-text token are still sampled, delivered, counted
 * and read. With a constraint the generation also ends (FINISH_STOP) once nothing can follow.
 *
 * Failure and cancellation: the session keeps the tokens it has read; no step is read in part. After a cancellation it
 * has read every delivered token.
 *
 * Characters: if max_tokens cuts a UTF-8 character, the session's next generation without a prompt completes it. In a
 * temporary session the event contains U+FFFD.
 *
 * Alphas: n_alpha on a session needs `explain` and an explainer with `scores`. With alpha_rollout the last token's work
 * is limited by SCHEDULER_MAX_ROLLOUT.
 *
 * Encoder-decoders: the first request of a session gives the source. It is encoded in slices between the steps of other
 * work. The caller puts the start token (model_dims.start) at the beginning of the prompt.
 *
 * Models that are not causal read whole sequences and have no sessions. They accept one request only: x NULL,
 * max_tokens 0 and explain (read_pass.h). */
status scheduler_generate(scheduler *s, served_model *m, session *x, const generation_request *r, generation **out,
                          error *err);
/* Run a beam search in a new temporary session of m, for the n ≤ o->beams best hypotheses (beam_search.h), best first.
 * Hypothesis i is sent to the client of r[i]. The n requests differ only in event, finished, context and credit. out[n]
 * receives their generations.
 *
 * `event` is first called when the search has ended, with up to eight tokens an event; only these events use credit.
 * Until then a cancellation or failure of one generation ends all n. The search counts as o->beams generations and
 * holds that many slots from acceptance to end. Its beams are rows of shared decode steps, and no bit of the result
 * depends on the other rows.
 *
 * Log-probabilities are the model's own, without biases. A token that ends the text is delivered and counted.
 *
 * STATUS_INVALID or STATUS_UNSUPPORTED names the field: "num_beams", "length_penalty", "n", or one that a search does
 * not support. Unsupported are sampling settings other than biases, stop sequences, constraint, alpha, explain and
 * score_prompt. */
status scheduler_search(scheduler *s, served_model *m, const beam_options *o, const generation_request *r, int n,
                        generation **out, error *err);
/* Wait of a caller for the states of one or more prompts, one after the other. It begins zeroed. */
typedef struct prefix_wait {
	uint64_t since_ns; /* when it began; 0: not so far */
	bool waits;        /* the latest call returned false */
} prefix_wait;
/* Have the state at which the request will begin in memory: it may be on the disk (prefixes.h). False: it is not there
 * yet; call again before scheduler_generate or scheduler_search. */
bool scheduler_prefix_ready(scheduler *s, const char *id, const generation_request *r, prefix_wait *w);
/* Allow `credits` more events; a parked generation runs again. */
void generation_grant(generation *g, int64_t credits);
/* Cancel g: `finished` is called with STATUS_CANCELLED before the next token. */
void generation_cancel(generation *g);
/* End g like generation_cancel because its time is over. If it has sampled tokens, its status is STATUS_OK with
 * FINISH_TIMEOUT: text held back is sent first, if there is credit. Otherwise, and in a beam search, it is
 * STATUS_TIMEOUT. */
void generation_expire(generation *g);

/* --- score tasks ------------------------------------------------------------- */

/* Longest sequence of a score task, in tokens. A model that is not causal reads a sequence at once; its length
 * determines memory and slice time. */
enum { SCHEDULER_SCORE_TOKENS = 8192 };
static inline int64_t scheduler_score_limit(const model_dims *d)
{
	return d->form->stepwise || d->positions < SCHEDULER_SCORE_TOKENS ? d->positions : SCHEDULER_SCORE_TOKENS;
}

/* Longest sequence that can be explained, in tokens. All of its activations are kept until the attribution is
 * computed. */
enum {
	SCHEDULER_ATTRIBUTION_BYTES = 1 << 30,
	SCHEDULER_ATTRIBUTION_FLOATS = 24 /* per token, layer and channel; approximate */
};
static inline int64_t scheduler_attribution_limit(const model_dims *d)
{
	int64_t bytes = SCHEDULER_ATTRIBUTION_FLOATS * (int64_t)sizeof(float) * d->layers * d->hidden;
	int64_t most = SCHEDULER_ATTRIBUTION_BYTES / bytes, limit = d->segment ? d->segment : scheduler_score_limit(d);
	return most < 1                                        ? 1
	       : most < limit && most < SCHEDULER_SCORE_TOKENS ? most
	       : limit < SCHEDULER_SCORE_TOKENS                ? limit
	                                                       : SCHEDULER_SCORE_TOKENS;
}

/* Longest source that can be explained, in tokens; 0: none. */
static inline int64_t scheduler_attribution_source_limit(const model_dims *d)
{
	model_dims source = *d;
	source.positions = d->source;
	return d->source ? scheduler_attribution_limit(&source) : 0;
}

typedef struct score_sequence {
	int32_t *ids;
	int64_t count;
	const int32_t *source; /* [n_source]: only with a method in `explain`, for a model that reads a source */
	int64_t n_source;
	const int32_t *rows; /* [n_rows]: indices of tokens whose logits are returned (not causal, vocabulary head); at
	                      * most one with a method in `explain` */
	int64_t n_rows;      /* 0: the sequence gives one row, as the request's `embedding` says */
	float *log;          /* NULL, or receives the log (explain/explain.h) of [count] tokens; with a source, all its
	                      * logs in sequence */
	explain_target target; /* with `explain`: the score to explain, of the prediction after the last token, at its
	                        * row, or of a class */
	explain_parts *parts;  /* receives the attribution */
	explain_removals *removals; /* with EXPLAIN_REMOVALS */
	/* Return the log-probability of each next token instead of rows (causal models with a vocabulary head). */
	const int32_t *next;   /* [count]: the token to score after each; -1: none. NULL: score nothing */
	token_logprob *scores; /* [count]: log-probability of `next`; unchanged where it is -1 */
	token_logprob *best;   /* [count]: the most likely token; unchanged where `next` is -1 */
	/* With `next`: a state of session_info.state_bytes bytes after the `before` tokens read earlier, instead of an
	 * empty state. It is replaced by the state after the last token. NULL: start empty, keep nothing. */
	void *carried;
	int64_t before;
} score_sequence;

/* Sequences to read whole, each from an empty state. Each gives one row of numbers (class logits or one hidden vector)
 * or n_rows rows of token logits; with a method in `explain` or with `next`, no row. The caller owns the sequences and
 * `out` and keeps them until `finished`. */
typedef struct score_task_request {
	const score_sequence *sequences;
	int64_t n_sequences;
	pooling embedding; /* pooling of the vector to return; POOL_NONE: the logits of a class head */
	explain_options explain;
	int64_t width;   /* floats in a row: model_dims.hidden or outputs */
	float *out;      /* [rows of all sequences][width] */
	const char *owner; /* these four as of a generation; scheduler_score copies the owner */
	bool background;
	int weight;
	int priority;
	/* Called exactly once, on the scheduler's thread, with STATUS_OK, STATUS_CANCELLED or the error. The score task
	 * is then freed. */
	void (*finished)(void *context, status s, const error *err);
	void *context;
} score_task_request;

/* Start a score task. It runs in slices of about a millisecond between the steps of generations. Slices are divided
 * among owners by weight, and `priority` orders the score tasks of one owner (scheduler_score.c). `finished` is not called if this function fails.
 *
 * Errors:
 *   STATUS_INVALID "model"    no such head or rows
 *   STATUS_INVALID "explain"  no explainer
 *   STATUS_INVALID "input"    no tokens, more than scheduler_score_limit, or a token outside the vocabulary
 *   STATUS_INVALID "target"   not an output of the model
 *   STATUS_BUSY               max_generations score tasks are running
 *   STATUS_UNAVAILABLE        scheduler_free is running
 *   STATUS_NOMEM */
status scheduler_score(scheduler *s, served_model *m, const score_task_request *r, score_task **out, error *err);
/* Cancel x: `finished` is called with STATUS_CANCELLED before the next slice. */
void score_task_cancel(score_task *x);

/* Prepare a plan that later steps would wait for (served_model_prepare). False: there is none. Only while
 * scheduler_runnable returns false. */
bool scheduler_prepare(scheduler *s);
/* True if scheduler_tick would do any work now. */
bool scheduler_runnable(const scheduler *s);
/* Run one decode step, one step of prompts or one slice of a score task. A device failure ends all generations and
 * score tasks with STATUS_DEVICE and is returned. */
status scheduler_tick(scheduler *s);
/* End all generations and score tasks with STATUS_DEVICE, after a call outside of a tick has lost the device. */
void scheduler_lose(scheduler *s);

typedef struct scheduler_stats {
	int models, sessions, running, waiting; /* now */
	int64_t state_bytes;                    /* memory of the slots of all models, now */
	int64_t prefix_bytes;                   /* memory of kept states, now */
	/* Since scheduler_new: tokens read from prompts, tokens generated, ticks, and rows of streams in all steps. */
	uint64_t prompt_tokens, generated_tokens, ticks, batched_sequences;
	uint64_t cached_tokens; /* tokens of prompts that were not read, because a state was kept */
	uint64_t prefix_too_large, prefix_thinned; /* states that were not kept (prefix_cache) */
} scheduler_stats;
void scheduler_stats_read(const scheduler *s, scheduler_stats *out);

#endif
