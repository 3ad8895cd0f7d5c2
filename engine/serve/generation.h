/* generation.h - one request being answered on one session.
 *
 *   PROMPT   some of the prompt is unread, or all is read and nothing sampled yet
 *   DECODE   `next` has been sampled and told to the client, and is not read yet
 *   CLOSE    the same, but the generation ends as soon as `next` has been read
 *
 * A temporary session's last token need not be read, so such a generation never closes: it ends at
 * once. The order is always sample, tell, read: what a session holds is all that clients were told, also
 * after a cancellation. Whoever reads the last token that a generation has to read samples the next one behind it,
 * for all rows of the step at once; it is taken up here, row by row, or forgotten when the generation
 * was cancelled meanwhile. Executor thread only. */
#ifndef ENGINE_SERVE_GENERATION_H
#define ENGINE_SERVE_GENERATION_H

#include "engine/serve/session.h"
#include "engine/serve/stop_filter.h"
#include "engine/serve/whole_reading.h"
#include "gen/limits.h"

enum { INFLIGHT_STEPS = 2 /* steps issued at a time */ };
enum { GENERATION_MAX_LOGPROBS = COMPLETION_LOGPROBS_MAX, GENERATION_MAX_ALPHA = ALPHA_OPTIONS_TOP_MAX };

typedef enum generation_phase { GENERATION_PROMPT, GENERATION_DECODE, GENERATION_CLOSE } generation_phase;

struct generation {
	generation *previous, *following; /* the scheduler's list: who waited longest comes first */
	uint64_t serial;                  /* order of arrival */
	session *session;                 /* busy while this lives */
	bool temporary;                   /* the session is ours and goes with us, */
	bool explain;                     /* and its log goes to `finished` */
	bool prompting;                   /* counted among those with a prompt to read, or a first token to sample */
	generation_phase phase;
	finish_reason finish;
	bool cancelled;
	int64_t credit;

	/* the request */
	int32_t *prompt;
	int64_t n_prompt, max_tokens; /* no more than there are positions for */
	sampling sampling;
	bool ignore_end;
	int n_logprobs, n_alpha;
	int64_t (*event)(void *context, const generation_event *e);
	void (*finished)(void *context, const generation_result *r);
	void *context;

	/* progress */
	int64_t n_read;       /* of the prompt */
	int64_t reading;      /* of the prompt, in the step that has been issued */
	whole_reading *whole; /* the prompt's, of a model that reads whole sequences; NULL: not begun */
	int64_t completed;    /* tokens sampled */
	int32_t next;
	bool unread;                      /* `next` is delivered and not read */
	generation **row[INFLIGHT_STEPS]; /* its place in the batch of each step under way; NULL: in none */
	int *cancellations;               /* the scheduler's count */
	tally tally;                      /* of the session, the prompt and what was sampled */
	text_stream text;
	stop_filter stop;
	char *piece, *characters; /* a token's bytes, and the characters they complete */
	size_t piece_size;
	double *weights; /* α over the whole sequence */
	int64_t weights_size;
	bool *all;           /* [max(layers, rounds, heads)] true: every layer, round and head */
	alpha_weight *alpha; /* [n_alpha] */
	token_logprob top[GENERATION_MAX_LOGPROBS];
	uint64_t accepted_ns, started_ns, prompted_ns, delivered_ns; /* 0: not yet */
};

/* Check and copy a request for session x, which becomes busy; with `temporary` it belongs to
 * the generation from here on (on failure to the caller). */
status generation_new(generation **out, session *x, bool temporary, const generation_request *r, error *err);
/* The last call of every generation: tells `finished`, and frees it all. err: NULL or the words for s. */
void generation_finish(generation *g, status s, const error *err);

/* Would a turn be of use? Not when parked. */
bool generation_runnable(const generation *g);
/* The session has read `count` tokens of the prompt, or the one that was told. */
void generation_read(generation *g, int64_t count);
/* What is to be sampled once the session has read so many more tokens, `prompt` of them of the prompt; nothing while
 * there is a prompt to read, and when the generation ends there. */
sample_row generation_wants(const generation *g, int64_t tokens, int64_t prompt);
/* Take up the token that was sampled for it, and tell. STATUS_DEVICE when the logits cannot be fetched for those who
 * asked for log-probabilities. Afterwards g->finish says whether that was the last token. */
status generation_take(generation *g, int32_t token, error *err);
/* Read on, in a model that reads whole sequences: *done: all of it is read. */
status generation_read_whole(generation *g, bool *done, error *err);
/* Nothing more is read: the session gets its logits, or owes the token that was told. STATUS_DEVICE: it is lost. */
status generation_leave(generation *g);

#endif
