/* generation.h - one completion request on one session.
 *
 *   PROMPT   some of the prompt is unread, or all is read and no token is sampled yet
 *   DECODE   `next` has been sampled and delivered, and is not read yet
 *   CLOSE    the same, but the generation ends as soon as `next` has been read
 *
 * A temporary session need not read its last token, so its generation ends at once and has no CLOSE phase. The order is
 * always sample, deliver, read: a session holds every delivered token, also after a cancellation. The step that reads
 * the last given token of a generation also samples the next one, for all of its rows at once. generation_deliver
 * accepts it row by row; it is dropped if the generation has been cancelled meanwhile. Executor thread only. */
#ifndef ENGINE_SERVE_GENERATION_H
#define ENGINE_SERVE_GENERATION_H

#include "engine/serve/prompt_scores.h"
#include "engine/serve/session.h"
#include "engine/serve/stop_filter.h"
#include "gen/limits.h"

enum { INFLIGHT_STEPS = 2 /* steps issued at a time */ };
enum {
	GENERATION_SLICE_NS = 3000000,      /* of a sequence that is read as a whole, or scored */
	GENERATION_SHORT_SLICE_NS = 1000000 /* of one that is scored beside streams */
};
enum { GENERATION_MAX_LOGPROBS = COMPLETION_LOGPROBS_MAX, GENERATION_MAX_ALPHA = ALPHA_OPTIONS_TOP_MAX };

enum { GENERATION_EVENT_TOKENS = 8 /* in an event of tokens that were known before */ };

typedef struct beams beams;

typedef enum generation_phase { GENERATION_PROMPT, GENERATION_DECODE, GENERATION_CLOSE } generation_phase;

struct generation {
	generation *previous, *following; /* the scheduler's list, longest waiting first */
	uint64_t serial;                  /* order of arrival */
	session *session;                 /* busy until the generation ends */
	bool temporary;                   /* the generation owns the session */
	bool explain;                     /* `finished` receives the session's log */
	bool background;                  /* as requested */
	bool prompting;                   /* counted in the scheduler's n_prompts */
	beams *beams;                     /* the search of which it is a beam (beams.h); NULL: its tokens are sampled */
	generation_phase phase;
	finish_reason finish;
	bool cancelled;
	int64_t credit;

	/* the request */
	int32_t *prompt;
	int64_t n_prompt, max_tokens; /* max_tokens: at most the positions left */
	int32_t *source;              /* to be encoded; NULL: nothing is */
	int64_t n_source;             /* of the request */
	int64_t n_cached;             /* tokens before the prompt that a temporary session had read */
	sampling sampling;
	bool ignore_end;
	constrained_text *constrained; /* what has been generated; NULL: without a constraint */
	int32_t stop_tokens[CHAT_TEMPLATE_STOPS];
	int n_stop_tokens;
	int n_logprobs, n_alpha;
	bool scores_only;
	int64_t (*event)(void *context, const generation_event *e);
	void (*finished)(void *context, const generation_result *r);
	void *context;

	/* progress */
	int64_t n_read;  /* tokens of the prompt */
	int64_t reading; /* tokens of the prompt in the step that has been issued */
	reading *whole;  /* of the source; of the prompt, in a model that reads whole sequences; NULL: not begun */
	prompt_scores *scores; /* of the prompt's tokens from the second on; NULL: not wanted */
	int64_t completed;     /* tokens sampled */
	int32_t next;
	bool unread;                      /* `next` is delivered and not read */
	generation **row[INFLIGHT_STEPS]; /* its entry in the batch of each step in flight; NULL: in none */
	int *cancellations;               /* the scheduler's n_cancelled */
	tally tally;                      /* of the session, the prompt and what was sampled */
	int64_t to_tally, n_tallied;      /* tokens of session and prompt; all before any of the prompt is read */
	text_stream text;
	stop_filter stop;
	double *weights; /* α over the whole sequence */
	int64_t weights_size;
	explain_selection pick; /* whose weights; in `picked` */
	bool rollout;
	bool *picked;        /* [layers + heads + rounds] */
	alpha_weight *alpha; /* [n_alpha] */
	token_logprob top[GENERATION_MAX_LOGPROBS];
	uint64_t accepted_ns, started_ns, prompted_ns, delivered_ns; /* 0: not yet */
};

/* Check and copy a request for session x, which becomes busy. With `temporary` the generation owns the session (on
 * failure the caller keeps it). */
status generation_new(generation **out, session *x, bool temporary, const generation_request *r, error *err);
/* A generation beside g, which has just been made of a request like r: on session x, which it owns, without a prompt to
 * read and without settings of its own. STATUS_NOMEM (the caller keeps x). */
status generation_beside(generation **out, const generation *g, session *x, const generation_request *r);
/* Free a generation with its session that no scheduler has; NULL is legal. */
void generation_discard(generation *g);
/* Count a slice of the session's and the prompt's tokens, if any are uncounted. STATUS_NOMEM. */
status generation_tally(generation *g);
/* Are all of them counted? Only then the prompt can be read. */
bool generation_tallied(const generation *g);
/* The last call of every generation: calls `finished` and frees everything. err: NULL or the message of s. */
void generation_finish(generation *g, status s, const error *err);

/* Rows of `adjust` with which g's next token is sampled. */
int64_t generation_adjusts(const generation *g);
/* Can a step advance g? Not when parked. */
bool generation_runnable(const generation *g);
/* Record that the session has read `count` tokens of the prompt, or the delivered one. */
void generation_read(generation *g, int64_t count);
/* The sampling request after the session has read `tokens` more tokens, `prompt` of them from the prompt. Inactive
 * while some of the prompt is unread, and when the generation ends there. */
sample_row generation_wants(const generation *g, int64_t tokens, int64_t prompt);
/* Accept the token that was sampled for g, and deliver it. STATUS_DEVICE when log-probabilities are requested and the
 * logits cannot be fetched. Afterwards g->finish shows whether that was the last token. */
status generation_deliver(generation *g, int32_t token, error *err);
/* Does the token end g's text? */
bool generation_ends(const generation *g, int32_t token);
/* Send e, of up to GENERATION_EVENT_TOKENS tokens that were known before, with the text that they complete. last:
 * nothing follows. */
void generation_send_tokens(generation *g, generation_event *e, bool last);
/* Read the next slice, in a model that reads whole sequences. *done: the whole prompt is read. */
status generation_read_whole(generation *g, bool *done, error *err);
/* Is there a source to encode before the prompt? */
bool generation_encodes(const generation *g);
/* Encode it for about slice_ns. */
status generation_encode(generation *g, uint64_t slice_ns, error *err);
/* Are scores of the prompt's tokens to be computed or delivered? */
bool generation_scores(const generation *g);
/* Read and score the prompt for about slice_ns, or deliver the scores that there is credit for. */
status generation_score(generation *g, uint64_t slice_ns, error *err);
/* Detach g from its session, before generation_finish: the session fetches its logits, or keeps the delivered token as
 * pending. STATUS_DEVICE: it is lost. */
status generation_leave(generation *g);

#endif
