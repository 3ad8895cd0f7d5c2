/* generation.h - one completion request on one session.
 *
 *   PROMPT   part of the prompt is unread, or all is read and no token has been sampled
 *   DECODE   `next` has been sampled and delivered, and not read
 *   CLOSE    like DECODE, but the generation ends once `next` has been read
 *
 * A temporary session need not read its last token, so its generation ends at once and has no CLOSE phase. The order is
 * always sample, deliver, read: a session holds every delivered token, also after a cancellation. The step that reads
 * the last given token of a generation also samples the next one, for all of its rows at once. generation_deliver
 * accepts it row by row; it is dropped if the generation has been cancelled in between. Executor thread only. */
#ifndef ENGINE_SERVE_GENERATION_H
#define ENGINE_SERVE_GENERATION_H

#include "engine/serve/prompt_scores.h"
#include "engine/serve/session.h"
#include "engine/serve/shares.h"
#include "engine/serve/stop_filter.h"
#include "engine/text/call_search.h"
#include "gen/limits.h"

enum { INFLIGHT_STEPS = 2 /* steps issued at a time */ };
enum {
	GENERATION_SLICE_NS = 3000000,      /* reading of a whole sequence, or scoring of a prompt */
	GENERATION_SHORT_SLICE_NS = 1000000 /* likewise, while generations run */
};
enum { GENERATION_MAX_LOGPROBS = COMPLETION_LOGPROBS_MAX, GENERATION_MAX_ALPHA = ALPHA_OPTIONS_TOP_MAX };

enum { GENERATION_EVENT_TOKENS = 8 /* per event whose tokens are all known before it: a search's, or a prompt's */ };

typedef struct beams beams;

/* The search for an answer's first call. */
typedef struct call_watch {
	call_search search;
	call_search_state state;
	session *before;  /* copy of the session before the token with which the last text that may be a call begins;
	                   * NULL:  there is none, or no memory */
	bool found;       /* the call has begun; `before` has become a snapshot */
	int64_t snapshot; /* its tokens; -1: there is none */
} call_watch;

typedef enum generation_phase { GENERATION_PROMPT, GENERATION_DECODE, GENERATION_CLOSE } generation_phase;

struct generation {
	generation *previous, *following; /* links of the scheduler's queue (scheduler_order.c) */
	int priority, overtaken;          /* as in the request; number of times that others took its place */
	uint64_t serial;                  /* number in order of arrival */
	session *session;                 /* busy until the generation ends */
	bool temporary;                   /* the generation owns the session */
	bool explain;                     /* `finished` receives the session's log */
	bool prompting;                   /* counted in the scheduler's n_prompts */
	share *share;                     /* its owner's; NULL: no scheduler has it yet */
	beams *beams;                     /* the search whose beam it is (beams.h); NULL: its tokens are sampled */
	generation_phase phase;
	finish_reason finish;
	bool cancelled;
	bool expired;    /* cancelled because its time is over */
	bool background; /* requested */
	bool held;       /* waits for work that is not in the background */
	int64_t credit;  /* events that may still be sent */

	/* the request */
	int32_t *prompt;
	int64_t n_prompt, max_tokens; /* max_tokens: capped by the positions left */
	int32_t *source;              /* source tokens to encode; NULL: none */
	int64_t n_source;             /* source tokens of the request */
	int64_t n_cached;             /* tokens of the prompt that the session had read before (prefixes.h) */
	int64_t n_shared;             /* leading tokens of the rest that other prompts may share */
	sampling sampling;
	bool ignore_end;
	constrained_text *constrained; /* the text matched so far; NULL: no constraint */
	const char *constraint_field;
	int32_t stop_tokens[CHAT_TEMPLATE_STOPS];
	int n_stop_tokens;
	int n_logprobs, n_alpha;
	bool scores_only;
	int64_t (*event)(void *context, const generation_event *e);
	void (*finished)(void *context, const generation_result *r);
	void *context;

	/* progress */
	int64_t n_read;  /* prompt tokens read */
	int64_t reading; /* prompt tokens of the issued step */
	read_pass
	    *whole; /* reads the source or, in a model that reads whole sequences, the prompt; NULL: not started */
	prompt_scores *scores;  /* scores of the prompt's tokens from the second on; NULL: not requested */
	int64_t snapshot_every; /* as in the request; 0: never */
	bool snapshot_due;      /* an automatic snapshot is made as soon as a turn may copy the state */
	call_watch *calls;      /* finds the first call; NULL: its snapshot is not requested */
	int64_t completed;      /* tokens sampled so far */
	int32_t next;           /* the token sampled last */
	bool unread;            /* `next` is delivered and not read */
	bool drawn;             /* `first` is sampled from the session's logits and not delivered */
	int32_t first;
	generation **row[INFLIGHT_STEPS]; /* its entry in the batch of each step in flight; NULL: in none */
	int *cancellations;               /* points to the scheduler's n_cancelled */
	tally tally;                      /* counts of the session's, the prompt's and the sampled tokens */
	int64_t to_tally, n_tallied;      /* tokens of session and prompt to count, and counted; all are counted before
	                                   * the prompt is read */
	text_stream text;
	stop_filter stop;
	double *weights;        /* [weights_size] attention weights of the last token over the whole sequence */
	int64_t weights_size;   /* grows with the sequence */
	explain_selection pick; /* the heads and layers to average; points into `picked` */
	bool rollout;
	bool *picked;        /* [layers + heads + rounds] */
	alpha_weight *alpha; /* [n_alpha] */
	token_logprob top[GENERATION_MAX_LOGPROBS];
	uint64_t accepted_ns, started_ns, prompted_ns, delivered_ns; /* 0: has not happened */
};

/* Check and copy a request for session x, which becomes busy. With `temporary` the generation owns the session (on
 * failure the caller keeps it). */
status generation_new(generation **out, session *x, bool temporary, const generation_request *r, error *err);
/* Create another generation like g, which was just created from a request like r, on session x, which it owns. It has
 * no prompt to read and no settings of its own. STATUS_NOMEM: the caller keeps x. */
status generation_new_like(generation **out, const generation *g, session *x, const generation_request *r);
/* True if the session passes a multiple of `snapshot_every` when it reads from `from` to `to` tokens. */
bool generation_passes_snapshot(const generation *g, int64_t from, int64_t to);
/* Free a generation that no scheduler has, with its session. NULL is legal. */
void generation_discard(generation *g);
/* Add one slice of the session's and the prompt's tokens to the tally. STATUS_NOMEM. */
status generation_tally(generation *g);
/* True if the tally has all tokens; only then may the prompt be read. */
bool generation_tallied(const generation *g);
/* Return the status with which g, which is cancelled, ends. Of one that has expired, set `finish` and send the text
 * that was held back. */
status generation_end_early(generation *g);
/* End g: call `finished` and free everything. err: NULL or the message of s. */
void generation_finish(generation *g, status s, const error *err);

/* Return the number of adjustments with which g's next token is sampled. */
int64_t generation_adjusts(const generation *g);
/* True if a step can advance g; false while it is parked. */
bool generation_runnable(const generation *g);
/* Record that the session has read `count` tokens of the prompt, or the delivered one. */
void generation_read(generation *g, int64_t count);
/* Return the sampling request after the session has read `tokens` more tokens, `prompt` of them from the prompt.
 * Inactive while some of the prompt is unread, and when the generation ends there. */
sample_row generation_sample_row(const generation *g, int64_t tokens, int64_t prompt);
/* Accept and deliver the token that was sampled for g; g->finish then tells whether it was the last. STATUS_DEVICE:
 * log-probabilities are requested and the logits cannot be copied. */
status generation_deliver(generation *g, int32_t token, error *err);
/* True if the token ends g's text. */
bool generation_ends(const generation *g, int32_t token);
/* Send e with up to GENERATION_EVENT_TOKENS tokens that were known before, and the text that they complete. last:
 * nothing follows. */
void generation_send_tokens(generation *g, generation_event *e, bool last);
/* Read the next slice in a model that reads whole sequences. *done: the prompt is read. */
status generation_read_whole(generation *g, bool *done, error *err);
/* True if a source must be encoded before the prompt. */
bool generation_must_encode(const generation *g);
/* Encode the source for about slice_ns. */
status generation_encode(generation *g, uint64_t slice_ns, error *err);
/* True if scores of the prompt's tokens remain to be computed or delivered. */
bool generation_scores_remain(const generation *g);
/* Read and score the prompt for about slice_ns, or deliver scores as credit allows. */
status generation_score(generation *g, uint64_t slice_ns, error *err);
/* Detach g from its session before generation_finish: the session copies its logits or keeps the delivered token as
 * pending. STATUS_DEVICE: the session is lost. */
status generation_leave(generation *g);

#endif
