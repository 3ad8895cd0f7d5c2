/* choices.h - one request's generations: several prompts, several samples of each, on one stream.
 *
 * All choices share the stream's credits. Credits are dealt to the choices in small portions, round
 * robin, and each choice may be at most CHOICES_WINDOW events ahead of what the peer has taken; a
 * choice without credit is parked by the scheduler, one that ends returns what it did not use.
 *
 * A set is made, given its plan, and begun; it lives until every generation it started has ended, its session has been
 * settled and the stream is answered. Loop thread, except for the callbacks that the scheduler makes. */
#ifndef ENGINE_DAEMON_GENERATION_CHOICES_H
#define ENGINE_DAEMON_GENERATION_CHOICES_H

#include "engine/daemon/generation/response_format.h"
#include "engine/daemon/generation/selection.h"
#include "engine/daemon/sessions/session_settle.h"

enum { CHOICES_WINDOW = 32 };

typedef struct choices choices;

typedef struct choices_prompt {
	int32_t *ids;
	size_t count;
	const json_t *text; /* as which it was given, borrowed from the stream's params; NULL: it was not */
	int32_t *source;    /* of a model that reads one */
	size_t n_source;
} choices_prompt;

typedef struct choices_plan {
	model_entry *model;      /* owned */
	session_entry *session;  /* taken; NULL: every choice is a fresh sequence */
	session_ticket ticket;   /* of the session */
	choices_prompt *prompts; /* owned, with their ids and sources */
	/* Pool thread, before anything starts: read the prompts. NULL: they have been read */
	status (*read)(struct choices_plan *plan, error *err);
	const json_t *unread;  /* for `read`; borrowed from the stream's params, or `messages` */
	const json_t *sources; /* the same, one for each prompt; NULL: none is to be encoded */
	json_t *messages;      /* owned; NULL is legal */
	size_t inserted;       /* messages at its beginning that the request has elsewhere */
	/* Pool or loop thread, once the prompts have been read: is the request right for them? NULL: it is */
	status (*check)(const struct choices_plan *plan, const json_t *params, error *err);
	/* Executor thread, with a session: choose between prompts[0] and `closed`, which is the prompt where the
	 * session ends with `closed_by`, or with one of request.stop_tokens (conversation.h). NULL: there is no choice
	 */
	void (*choose)(struct choices_plan *plan, const session *x);
	choices_prompt closed; /* owned */
	char closed_by[CHAT_TEMPLATE_STOP_BYTES];
	bool continues; /* the messages follow what a session has read */
	bool masks;     /* texts of prompts may name the model's mask (mask_text.h) */
	bool begins;    /* texts of prompts begin with the tokens that the tokenizer puts before one */
	int32_t start;  /* token that prompts begin with (model_dims.start), or TOKEN_NONE */
	bool echo;      /* the text begins with the prompt */
	int best;       /* how many samples of each prompt are the answer; 0: all. Log-probabilities rank them */
	/* Alternatives that are reported of each token, and of each token of the prompt; -1: no log-probabilities. The
	 * request has as many as the plan needs (choices_ask_logprobs). */
	int n_logprobs, n_prompt_logprobs;
	bool chat; /* log-probabilities in the form of chat completions */
	/* Above 1 beam, without a session: the samples of a prompt are the best hypotheses of one search */
	beam_options search;
	int n_prompts, samples; /* choice prompt · samples + sample; a session has one of each */
	bool seeded;            /* the request has a seed */
	/* Sampling (with its bias, owned), limits, stops (borrowed from the stream's params). With a seed of the
	 * request's own, sample i of every prompt has seed + i; otherwise choice i has a random seed + i. */
	generation_request request;
	selection alpha;               /* owned; of request.alpha */
	response_format format;        /* owned; its constraint becomes request.constraint */
	bool unstarted;                /* nothing is generated: `answer` follows when the prompts have been read */
	const char *prompt_field;      /* what errors call the prompt; NULL: "prompt" */
	const char *source_field;      /* and the source; NULL: "source" */
	bool whole;                    /* with a session: all or nothing (session_settle.h) */
	json_t *(*result)(choices *c); /* the RESULT, when every choice ended well; NULL when out of memory */
	void (*answer)(choices *c);    /* without a session, in place of `result`: answers the stream itself */
} choices_plan;

/* An empty set for s; NULL when out of memory. */
choices *choices_new(stream *s);
/* How many of the scheduler's generations it takes. */
int choices_places(const choices_plan *p);
/* To be filled in before choices_begin, and read in `result`. */
choices_plan *choices_get_plan(choices *c);
/* Set what the request needs for the plan's log-probabilities, ranks and echo. */
void choices_ask_logprobs(choices_plan *p);
/* Pool thread: STATUS_INVALID if a text of this many bytes is too long for the plan's model and session for certain. */
status choices_check_bytes(const choices_plan *plan, size_t bytes, error *err);
/* Begin. The stream is answered, also when nothing could be started; then the set is freed. Uses s->watch
 * and s->context. */
void choices_begin(choices *c);
/* Free a set that was not begun; a session in its plan is the caller's to settle. */
void choices_free(choices *c);

/* For `result`: the mean log-probability of the tokens that choice i has sampled, with `best`. */
double choices_score(const choices *c, int i);
/* With `echo`, an event with the prompt's text, if choice i has ended without any event. True with NULL: there is none.
 * False: out of memory. */
bool choices_take_echo(choices *c, int i, json_t **event);
/* For `result` and `answer`. */
stream *choices_stream(const choices *c);
/* The log that choice i has read (request.explain); the caller's to free. */
float *choices_take_log(choices *c, int i);
int choices_count(const choices *c);
const generation_result *choices_result(const choices *c, int i);

#endif
