/* scheduler.h - models, sessions, generations and scorings, and the order in which they run.
 *
 * The scheduler owns the served models, their state pools and every live session. It advances generations by ticks: one
 * tick is one batched decode step (one token for every runnable generation of a model), one step of prompts or one
 * slice of a scoring. It has no thread of its own: the executor thread calls it, tests call it directly. All functions
 * run on that one thread, except those marked "any thread".
 *
 * Fairness: decode goes first. Between two decode steps at most one step of PREFILL_CHUNK tokens of prompts runs, or of
 * PREFILL_SHORT tokens of a long prompt where that changes no bit; so prompts delay a token by no more than that.
 * Prompts share a step while they fit. Short ones go before long ones, but every fourth step is for the oldest. A
 * prompt can be read as soon as its request has been accepted: no step waits for more requests. Parked generations (no
 * credit) hold their slot and are in no step.
 *
 * Callbacks may call anything here but scheduler_tick and scheduler_free. */
#ifndef ENGINE_SERVE_SCHEDULER_H
#define ENGINE_SERVE_SCHEDULER_H

#include "engine/explain/attribution.h"
#include "engine/explain/explain.h"
#include "engine/model/model.h"
#include "engine/model/feed.h"
#include "engine/serve/beam_search.h"
#include "engine/text/chat_template.h"
#include "engine/text/grammar/constraint.h"
#include "engine/text/tokenizer.h"
#include "gen/limits.h"

typedef struct scheduler scheduler;
typedef struct served_model served_model;
typedef struct session session;
typedef struct generation generation;
typedef struct scoring scoring;

enum {
	SCHEDULER_ID_BYTES = 64,
	SCHEDULER_MAX_STOPS = COMPLETION_STOP_MAX_ITEMS + CHAT_TEMPLATE_STOPS,
	SCHEDULER_MAX_STOP_BYTES = COMPLETION_STOP_MAX_BYTES,
	SCHEDULER_PREFILL_CHUNK = 256,
	SCHEDULER_PREFILL_SHORT = 64,   /* beside streams, where no bit depends on it */
	SCHEDULER_MAX_ROLLOUT = 1 << 15 /* a generated token's: tokens that it follows × rows of weights; 4 ms */
};

typedef struct scheduler_limits {
	int max_models;      /* loaded at once; the least recently used idle one is unloaded */
	int max_sessions;    /* live sessions, all models together */
	int max_generations; /* running and waiting; one more is STATUS_BUSY (the daemon refuses earlier: admission.h)
	                      */
	int max_batch;       /* sequences in one decode step */
} scheduler_limits;

status scheduler_new(scheduler **out, backend *b, const scheduler_limits *limits);
void scheduler_free(scheduler *s);

/* --- models ------------------------------------------------------------ */

/* The model of that id. The first use loads its folder (blocks) with weights of a panel type. A model has one type at a
 * time: another type loads it anew, or gives STATUS_CONFLICT while it is in use. *out is valid while a
 * session or generation uses the model, otherwise until the next call of this function or of scheduler_model_unload.
 * STATUS_BUSY when max_models are loaded and all in use. */
status scheduler_model(scheduler *s, const char *id, const char *folder, dtype weights, served_model **out, error *err);
/* The same without blocking: loads for about a millisecond. *out NULL with STATUS_OK: not complete, call again. One
 * model is loaded at a time: while another one is being loaded, or this one with other weights, the call has no effect.
 * After an error the attempt is abandoned. scheduler_model abandons a load begun here if it is another model's. */
status scheduler_model_step(scheduler *s, const char *id, const char *folder, dtype weights, served_model **out,
                            error *err);
/* Is the model of that id being loaded? */
bool scheduler_model_loading(const scheduler *s, const char *id);
/* Abandon the load that scheduler_model_step has begun. */
void scheduler_model_abandon(scheduler *s);
/* STATUS_CONFLICT while it is being loaded, or sessions, generations or scorings use it; STATUS_OK when it was not
 * loaded. */
status scheduler_model_unload(scheduler *s, const char *id, error *err);
bool scheduler_model_loaded(const scheduler *s, const char *id);
const model *served_model_model(const served_model *m);
const tokenizer *served_model_tokenizer(const served_model *m);

/* --- sessions ---------------------------------------------------------- */

typedef struct session_options {
	position_policy policy;
	bool explain; /* keep a log of every token, so that the session can be explained */
	bool durable; /* the caller stores session_export after each change */
} session_options;

typedef struct session_info {
	char id[SCHEDULER_ID_BYTES];
	char model[SCHEDULER_ID_BYTES];
	int64_t tokens;      /* read so far */
	int64_t source;      /* tokens of its source; 0: it has none */
	int64_t state_bytes; /* never depends on tokens */
	bool busy;           /* a generation or append uses it */
	session_options options;
} session_info;

/* A session owns one slot of the model's pool. `id` is chosen by the caller.
 * STATUS_BUSY when the sessions are used up, STATUS_CONFLICT when the id is taken.
 *
 * `tokens`, log, export and forks cover the tokens that the session has read. A generation reads its own last token
 * before it ends, so generating n tokens and then m gives the same as n + m. When the device fails during a step, the
 * sessions in that step are lost: they return STATUS_DEVICE and can only be deleted. A session whose generation ends at
 * that moment outside the step, or for lack of memory, may have one delivered token that it has not read. Its next use
 * reads it (STATUS_NOMEM then leaves the session as it is). */
status scheduler_session_new(scheduler *s, served_model *m, const char *id, const session_options *o, session **out,
                             error *err);
session *scheduler_session_find(scheduler *s, const char *id);
void scheduler_session_info(const session *x, session_info *out);
/* STATUS_CONFLICT while busy. */
status scheduler_session_delete(scheduler *s, session *x, error *err);
/* The next step of a copy of x under a new id, of about a megabyte; *moved is 0 before the first. *out when the copy is
 * whole, NULL before. Nothing else uses x meanwhile; the copy is busy until then, and gone after an error.
 * STATUS_CONFLICT while x is busy; STATUS_DEVICE: the device was lost, also between steps. */
status scheduler_session_fork_step(scheduler *s, session *x, const char *id, size_t *moved, session **out, error *err);
/* All steps at once. */
status scheduler_session_fork(scheduler *s, session *x, const char *id, session **out, error *err);
/* A session as a blob, on its way out or in: versioned, checksummed, holding options, state, position, the last token's
 * logits, the tokens read and (explain) the log. It moves in steps of about a megabyte, so that the thread can serve
 * in between; other threads compute and check the checksum. Starts as {0}, or with the blob to import. */
typedef struct session_transfer {
	unsigned char *blob; /* malloc'ed */
	size_t bytes;
	size_t moved; /* so far */
	bool done;
} session_transfer;

/* Run the next step of an export; when t->done, the blob lacks only its checksum. The caller lets nothing else use x
 * until then. STATUS_CONFLICT while it is busy. */
status scheduler_session_export_step(scheduler *s, session *x, session_transfer *t, error *err);
/* Run the next step of an import; *out is set when t->done, NULL before. The session is busy until then, and freed
 * after an error. STATUS_INVALID: the blob is of another model (by weights hash); STATUS_CORRUPT: the blob contradicts
 * itself; STATUS_DEVICE: the device was lost between steps. */
status scheduler_session_import_step(scheduler *s, served_model *m, const char *id, session_transfer *t, session **out,
                                     error *err);
/* Any thread: write the checksum of an export. */
void scheduler_transfer_seal(session_transfer *t);
/* Any thread: is it a whole blob, before its import? STATUS_CORRUPT for damage, STATUS_UNSUPPORTED for another version.
 */
status scheduler_transfer_check(const session_transfer *t, error *err);
/* Any thread: free the blob. */
void scheduler_transfer_fini(session_transfer *t);
/* All steps at once, with the checksum; *out is malloc'ed. */
status scheduler_session_export(scheduler *s, session *x, void **out, size_t *bytes, error *err);
status scheduler_session_import(scheduler *s, served_model *m, const char *id, const void *blob, size_t bytes,
                                session **out, error *err);

/* The latest tokens that it has read, at most `most`; returns how many. Valid until the session next changes. */
int64_t scheduler_session_latest(const session *x, int64_t most, const int32_t **ids);
/* The log of a session opened with `explain`, and the ids of the tokens that it covers (explain/explain.h); of a model
 * that reads a source *log is NULL. STATUS_CONFLICT without `explain`. Valid until the session next changes. */
status scheduler_session_log(session *x, const int32_t **tokens, const float **log, int64_t *count, error *err);
/* The tokens of its source; returns how many. Valid likewise. */
int64_t scheduler_session_source(const session *x, const int32_t **ids);

/* --- generations --------------------------------------------------------- */

typedef enum finish_reason { FINISH_NONE, FINISH_STOP, FINISH_LENGTH } finish_reason;

typedef struct alpha_weight {
	int32_t token;    /* id */
	int64_t position; /* in the session or request, 0-based */
	float weight;
} alpha_weight;

/* One chunk of a generation. Pointers are valid during the callback only. */
typedef struct generation_event {
	const char *text; /* whole UTF-8 characters; may be empty while a stop sequence may be beginning */
	size_t text_bytes;
	const int32_t *tokens; /* the tokens sampled since the last event */
	int n_tokens;
	const token_logprob *logprobs; /* n_tokens, NULL unless asked for */
	const token_logprob *top;      /* n_tokens × n_top */
	int n_top;
	const alpha_weight *alpha; /* n_alpha of the last token, best first */
	int n_alpha;
	double time_ms; /* since the previous event, or since the request */
} generation_event;

typedef struct generation_result {
	status status; /* STATUS_OK, CANCELLED, or why it ended */
	error error;
	finish_reason finish;
	int64_t prompt_tokens; /* those of the source, too */
	int64_t completion_tokens;
	int64_t cached_tokens; /* of the prompt: they had been read for another request */
	double queue_ms, prompt_ms, predicted_ms;
	float *log; /* request.explain and STATUS_OK: of the tokens read (explain/explain.h), for `finished` to free;
	             * else NULL */
} generation_result;

typedef struct generation_request {
	const int32_t *prompt; /* copied */
	int64_t n_prompt;
	const int32_t *source; /* of a model with an encoder, for a session that has none yet; copied, and encoded
	                        * before the prompt is read */
	int64_t n_source;
	int64_t n_shared;                       /* of these, from the first on: other prompts may begin with them too */
	int64_t max_tokens;                     /* 0: only read the prompt (append) */
	sampling sampling;                      /* bias is copied */
	const char *stops[SCHEDULER_MAX_STOPS]; /* UTF-8, copied */
	int n_stops;
	int32_t stop_tokens[CHAT_TEMPLATE_STOPS]; /* end the text as the end-of-text token does */
	int n_stop_tokens;
	bool ignore_end;         /* keep going past the end-of-text token */
	constraint *constraint;  /* what is generated has to fit it; stays until `finished`. NULL: any text */
	int n_logprobs;          /* -1: none; 0…20: chosen token plus this many alternatives */
	bool score_prompt;       /* events for the prompt's tokens too, from its second on. Needs n_logprobs ≥ 0 */
	bool scores_only;        /* with score_prompt: those events have no text, which begins after the prompt */
	int n_alpha;             /* 0: none; else every token costs time in proportion to the tokens that it reads */
	explain_selection alpha; /* whose weights; a NULL member selects all; copied */
	bool alpha_rollout;      /* else their mean */
	bool background;         /* its prompt is read after those of others, but for the oldest's turns */
	bool explain;            /* a temporary session keeps the log of what it has read, for `finished` */
	/* Both are called on the scheduler's thread. event returns how many credits are left: at 0 the
	 * generation parks until generation_grant. finished is called exactly once; the generation is
	 * then freed. */
	int64_t (*event)(void *context, const generation_event *e);
	void (*finished)(void *context, const generation_result *r);
	void *context;
	int64_t credit; /* events that may be sent before the first grant */
} generation_request;

/* Continue session `x`, or (x NULL) a fresh temporary session of `m`.
 * After an error `finished` is not called. An empty prompt on a session that has read nothing is STATUS_INVALID
 * "prompt". Under POSITION_ERROR a sequence has at most n_positions tokens, prompt and completion together: a longer
 * prompt is STATUS_INVALID here, before any token is read; a completion that gets there ends with FINISH_LENGTH,
 * without a token when the prompt fills all positions. n_alpha on a session needs `explain`, and an explainer with
 * `scores`; with alpha_rollout the last token's work must be at most
 * SCHEDULER_MAX_ROLLOUT. A model whose tokens depend on later ones reads whole sequences: it has no sessions, and x
 * NULL with max_tokens 0 and explain is the only request that it accepts (reading.h). While a generation runs, the
 * session is busy (STATUS_CONFLICT for a second one). On failure or cancellation the session keeps what was read; no
 * step is read in part, and after a cancellation the session has read every delivered token. A character that
 * max_tokens cuts is finished by the session's next generation without a prompt; in a temporary session it is U+FFFD.
 * A model with an encoder needs a source, which a session is given once, by its first request: STATUS_INVALID "source"
 * where one is missing, does not fit or is more than one, or where the model reads none. Its prompts begin with the
 * start token (model_dims.start); the caller puts it there. A source is encoded in slices, between the steps of others.
 * With a constraint the generation also ends (FINISH_STOP) as soon as nothing can follow.
 * Text ends before the stop sequence; tokens do not: those of the stop sequence and the end-of-text token are sampled,
 * delivered, counted and read. */
status scheduler_generate(scheduler *s, served_model *m, session *x, const generation_request *r, generation **out,
                          error *err);
/* Beam search in a fresh temporary session of m: the n ≤ o->beams hypotheses with the best scores (beam_search.h), best
 * first, each for the client of a request of its own. The requests r [n] are the same but for event, finished, context
 * and credit; out [n] are their generations. `event` is first called when the search has ended; each event has up to
 * eight tokens then, and only then credit is used. Until the end, a cancellation or failure of one is that of all. A
 * search counts as o->beams generations and takes as many slots from its acceptance to its end; its beams are rows of
 * the same steps as other generations, and no bit of the result depends on these. Log-probabilities are those of the
 * model itself, without biases. A token that ends the text is delivered and counted. STATUS_INVALID or _UNSUPPORTED
 * names "num_beams", "length_penalty", "n", or what a search cannot have: sampling settings but biases, stop sequences,
 * a constraint, alpha, explain, a scored prompt. */
status scheduler_search(scheduler *s, served_model *m, const beam_options *o, const generation_request *r, int n,
                        generation **out, error *err);
void generation_grant(generation *g, int64_t credits);
/* finished is called with STATUS_CANCELLED before the next token. */
void generation_cancel(generation *g);

/* --- scorings ------------------------------------------------------------- */

/* Maximal tokens of a sequence. A model that is not causal reads a sequence at once: its memory, and the time of a
 * slice, grow with the sequence. */
enum { SCHEDULER_SCORE_TOKENS = 8192 };
static inline int64_t scheduler_score_limit(const model_dims *d)
{
	return d->causal || d->positions < SCHEDULER_SCORE_TOKENS ? d->positions : SCHEDULER_SCORE_TOKENS;
}

/* Maximal tokens of a sequence that is explained, whose activations are all kept until its parts are there. */
enum {
	SCHEDULER_ATTRIBUTION_BYTES = 1 << 30,
	SCHEDULER_ATTRIBUTION_FLOATS = 24 /* a token, layer and channel, about */
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

typedef struct scoring_sequence {
	int32_t *ids;
	int64_t count;
	const int32_t *source; /* [n_source], of a model that reads one: with a method of `explain` */
	int64_t n_source;
	const int32_t *rows; /* [n_rows]: tokens whose logits are wanted, of a model that is not causal, with a head for
	                      * tokens; the sequence gives so many rows. With a method of `explain` one at most */
	int64_t n_rows;      /* 0: it gives one row, as the request says */
	float *log;          /* NULL, or where its log goes (explain/explain.h): [count] tokens; with a source all
	                      * logs, one behind the other */
	explain_target target; /* with `explain`: of the prediction behind its last token, at its row, or of its classes
	                        */
	explain_parts *parts;  /* where they go */
	explain_removals *removals; /* EXPLAIN_REMOVALS */
	/* Of a causal model with a head for tokens: how likely what stands behind each token is, in place of rows. */
	const int32_t *next;   /* [count]: the token behind each; -1: it is not scored. NULL: nothing is */
	token_logprob *scores; /* [count]: of `next`; untouched where it is not scored */
	token_logprob *best;   /* [count]: the likeliest token, likewise */
	/* With `next`: bytes of the state behind the `before` tokens that were read earlier (model_entry.state_bytes),
	 * in place of an empty state; replaced by the state behind the last token. NULL: it is not carried. */
	void *carried;
	int64_t before;
} scoring_sequence;

/* Sequences to read whole, each from an empty state. Each gives one row of numbers: the logits of its classes, or one
 * hidden vector; or rows of logits of its tokens; or, with a method of `explain` or with `next`, no row. The caller
 * owns the sequences and `out`, and keeps them until `finished`. */
typedef struct scoring_request {
	const scoring_sequence *sequences;
	int64_t n_sequences;
	pooling embedding; /* the vector to compute; POOL_NONE: the logits, of a model with a head for classes */
	explain_options explain;
	int64_t width; /* model_dims.hidden, or outputs */
	float *out;    /* [rows of all sequences][width] */
	/* Called on the scheduler's thread, exactly once: STATUS_OK, CANCELLED, or why it ended. The scoring is freed.
	 */
	void (*finished)(void *context, status s, const error *err);
	void *context;
} scoring_request;

/* STATUS_INVALID names "model", "explain" or "input": no such head or rows, no explainer, a sequence of no tokens or of
 * more than scheduler_score_limit, a token outside the vocabulary, a target that is no output ("target"). STATUS_BUSY:
 * max_generations scorings are running; STATUS_NOMEM. After an error `finished` is not called. Scorings run in slices
 * of about a millisecond, round-robin, between the steps of generations. */
status scheduler_score(scheduler *s, served_model *m, const scoring_request *r, scoring **out, error *err);
/* `finished` is called with STATUS_CANCELLED before the next slice. */
void scoring_cancel(scoring *x);

/* Would scheduler_tick do anything now? */
bool scheduler_runnable(const scheduler *s);
/* Run one decode step, step of prompts or slice of a scoring. If the device fails, all generations and scorings end
 * with STATUS_DEVICE. */
status scheduler_tick(scheduler *s);

typedef struct scheduler_stats {
	int models, sessions, running, waiting;
	uint64_t prompt_tokens, generated_tokens, ticks, batched_sequences;
} scheduler_stats;
void scheduler_stats_read(const scheduler *s, scheduler_stats *out);

#endif
