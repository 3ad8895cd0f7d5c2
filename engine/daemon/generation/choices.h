/* choices.h - one request's generations: several prompts, several samples of each, on one stream.
 *
 * All choices share the stream's credits. The loop grants credits to the choices round robin, in small portions. A
 * choice is at most CHOICES_WINDOW events ahead of the peer. The scheduler parks a choice without credit, and a choice
 * that ends returns its unused credits.
 *
 * The caller creates a set, fills in its plan and begins it. The set is freed when its generations have ended, its
 * session is settled (session_settle.h) and the stream is answered. Loop thread, except for the scheduler's
 * callbacks. */
#ifndef ENGINE_DAEMON_GENERATION_CHOICES_H
#define ENGINE_DAEMON_GENERATION_CHOICES_H

#include "engine/daemon/catalog/adapters.h"
#include "engine/daemon/generation/response_format.h"
#include "engine/daemon/generation/selection.h"
#include "engine/daemon/sessions/session_settle.h"

enum { CHOICES_WINDOW = 32 };

typedef struct choices choices;

typedef struct choices_prompt {
	int32_t *ids;
	size_t count;
	const json_t *text; /* the prompt's JSON value, borrowed from the stream's params; NULL: absent */
	int32_t *source;    /* for a model that reads one */
	size_t n_source;
} choices_prompt;

struct choices_plan;

/* Prompts of a request: JSON that the pool encodes, then tokens. */
typedef struct choices_prompts {
	choices_prompt *list; /* owned, including the ids and sources */
	int n;
	/* Read the prompts. Pool thread, before anything starts. NULL: already read. */
	status (*read)(struct choices_plan *plan, error *err);
	const json_t *tools;   /* functions to be listed; borrowed from the stream's params. NULL: none */
	const json_t *unread;  /* input of `read`; borrowed from the stream's params or `messages` */
	const json_t *sources; /* the sources, one for each prompt; NULL: none to encode */
	json_t *messages;      /* owned; NULL is legal */
	/* Check the request against its prompts once they are read. Pool or loop thread. May be NULL. */
	status (*check)(const struct choices_plan *plan, const json_t *params, error *err);
	/* With a session: choose between list[0] and `closed`. The prompt is `closed` if the session ends with
	 * `closed_by` or one of the request's stop_tokens (conversation.h). Executor thread. NULL: no choice. */
	void (*choose)(struct choices_plan *plan, const session *x);
	choices_prompt closed; /* owned */
	char closed_by[CHAT_TEMPLATE_STOP_BYTES];
	bool continues;           /* the messages follow those that the session has read */
	bool masks;               /* texts may contain the name of the model's mask (mask_text.h) */
	bool begins;              /* texts begin with the tokens that the tokenizer adds before a text */
	int32_t start;            /* first token of every prompt (model_dims.start), or TOKEN_NONE */
	/* Replace the name of a chat's member in an error by that of the request. NULL: the request has the same. */
	void (*rename)(const json_t *messages, error *err);
	const char *field;        /* name of the prompt in errors; NULL: "prompt" */
	const char *source_field; /* name of the source in errors; NULL: "source" */
} choices_prompts;

/* Choice of tokens. Choice number = prompt * samples + sample. */
typedef struct choices_sampling {
	int samples; /* for each prompt; a session has one prompt and one sample */
	bool seeded; /* the request has a seed */
	/* Options (the bias is owned), limits, stops (borrowed from the stream's params). If the request has a seed,
	 * sample i of every prompt uses seed + i. Otherwise choice i uses a random seed + i. */
	generation_request request;
	/* With more than one beam: the samples of a prompt are the best hypotheses of one search. No session then. */
	beam_options search;
	selection alpha;        /* owned; request.alpha points into it */
	response_format format; /* owned; its constraint becomes request.constraint */
} choices_sampling;

/* Contents of the answer. */
typedef struct choices_answer {
	bool echo; /* the text begins with the prompt */
	int best;  /* samples of each prompt in the answer, chosen by log-probability; 0: all */
	/* Alternatives reported for each token, and for each prompt token; -1: no log-probabilities.
	 * choices_ask_logprobs sets the request's number. */
	int n_logprobs, n_prompt_logprobs;
	bool chat;                     /* log-probabilities in the form of chat completions */
	json_t *(*result)(choices *c); /* return the RESULT if every choice ended well; NULL: out of memory */
	void (*send)(choices *c);      /* without a session, in place of `result`: answer the stream */
} choices_answer;

/* A state in the request, or in the answer (carried_state.h). */
typedef struct choices_state {
	const json_t
	    *given; /* text of the state that the prompt continues; borrowed from the stream's params. NULL: none */
	const char *field; /* name of `given` in errors; NULL: "state" */
	bool returned;     /* the answer has the state after it */
	bool optional;     /* but not one that is too large */
	bool hidden;       /* the plan's session exists for this request only */
	json_t *answer;    /* owned: the state after the generation */
} choices_state;

typedef struct choices_plan {
	model_entry *model;     /* owned */
	adapter_ref adapter;    /* the state before the prompt of a new sequence */
	session_entry *session; /* taken; NULL: every choice is a new sequence */
	session_ticket ticket;  /* the session's */
	bool all_or_nothing;    /* with a session: all or nothing (session_settle.h) */
	char snapshot[STORE_ID_BYTES]; /* the session's snapshot to make before anything is read; "": none */
	bool prompts_only;      /* generate nothing; answer once the prompts are read */
	choices_prompts prompt;
	choices_sampling sampling;
	choices_answer answer;
	choices_state state;
} choices_plan;

/* Create an empty set for s; NULL: out of memory. */
choices *choices_new(stream *s);
/* Return the number of the scheduler's generations that the plan needs. */
int choices_generations(const choices_plan *p);
/* True if the prompt continues what a session or a state has read. */
bool choices_continue(const choices_plan *p);
/* Return the plan, to be filled in before choices_begin and read in `result`. */
choices_plan *choices_get_plan(choices *c);
/* Set in the request what the plan's log-probabilities, ranking and echo need. */
void choices_ask_logprobs(choices_plan *p);
/* Pool thread. STATUS_INVALID if a text of this many bytes is certainly too long for the plan's model and session. */
status choices_check_bytes(const choices_plan *plan, size_t bytes, error *err);
/* Start. The stream is answered, also if nothing could be started; then the set is freed. Uses s->watch and
 * s->context. */
void choices_begin(choices *c);
/* Free a set for which choices_begin was not called. The caller settles the session in its plan. */
void choices_free(choices *c);

/* For answer.result, with answer.best: return the mean log-probability of the tokens that choice i has sampled. */
double choices_score(const choices *c, int i);
/* Return the event that ends choice i: the prompt's text if it ended without any event (answer.echo), or text that was
 * held back as the possible beginning of a call. True with NULL: none is needed. False: out of memory. */
bool choices_take_last(choices *c, int i, json_t **event);
/* True if choice i has called a function. */
bool choices_called(const choices *c, int i);
/* For answer.result and answer.send. */
stream *choices_stream(const choices *c);
/* Return the log that choice i has read (request.explain); the caller frees it. */
float *choices_take_log(choices *c, int i);
int choices_count(const choices *c);
const generation_result *choices_result(const choices *c, int i);

#endif
