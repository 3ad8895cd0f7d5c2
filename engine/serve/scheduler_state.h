/* scheduler_state.h - what the sources of the scheduler share. */
#ifndef ENGINE_SERVE_SCHEDULER_STATE_H
#define ENGINE_SERVE_SCHEDULER_STATE_H

#include "engine/serve/generation.h"
#include "engine/serve/scoring.h"

/* A step that has been issued and is not completed. */
typedef struct inflight_step {
	served_model *model;
	served_plan *plan;
	generation **batch; /* [max_batch] by row; NULL: the generation has ended */
	int32_t *tokens;    /* [max_batch] sampled; valid once waited */
	bool prompts;       /* reads prompts, else delivered tokens */
	int n, live;        /* rows, and those of generations that have not ended */
	bool wanted;        /* a row wants a token */
	bool waited;        /* the host has the tokens, or the failure is in `why` */
	unsigned fetch;     /* the backend's id of the transfer */
	status why;
} inflight_step;

struct scheduler {
	backend *backend;
	scheduler_limits limits;
	bool closing; /* being freed: new requests are refused */

	served_model *models;
	served_model *loading; /* not in `models` yet; NULL: none */
	int n_models;
	uint64_t clock; /* counts uses, for the least recently used model */

	string_table sessions; /* the live ones, by id */

	generation *first, *last;
	int n_generations, n_waiting; /* waiting: never had a turn */
	int n_prefixes;               /* generations that read a prefix for later ones; they take no place of others */
	int n_prompts, n_cancelled;   /* in GENERATION_PROMPT; cancelled and not ended */
	uint64_t serial;              /* of the next generation */

	scoring *scorings; /* in the order of their turns */
	int n_scorings;

	int turn; /* the next one: i < n_models: decode step of model i; n_models: prompts; else: a scoring */
	unsigned prompt_steps; /* so far */
	inflight_step inflight[INFLIGHT_STEPS];
	inflight_step *ahead;     /* the one in flight between ticks; NULL: none */
	served_row *rows;         /* [max_batch] of the step being issued */
	sample_row *draws;        /* [max_batch] sampling requests of these rows */
	bool failed;              /* the device failed while logits were fetched */
	scheduler_stats counters; /* only the four that never decrease are used */
};

/* The generation that the next step of prompts begins with: it has a prompt to read, or has read it and waits for its
 * first token. NULL: there is none. */
generation *scheduler_prompts_first(const scheduler *s);
/* Is there a generation that can decode? */
bool scheduler_decodes(const scheduler *s);
/* Fill f's batch with `first`, which has tokens to read, and with other prompts of its model. */
void scheduler_prompts_gather(scheduler *s, generation *first, inflight_step *f);
/* Fill s->rows and s->draws for that batch. */
void scheduler_prompts_rows(scheduler *s, const inflight_step *f);
/* Run a slice of the first scoring; there must be one. STATUS_DEVICE. */
status scheduler_scoring_turn(scheduler *s);
/* End the scorings that exist now. */
void scheduler_scoring_end_all(scheduler *s, status why, const error *err);
/* Mark m as used now. */
void scheduler_model_touch(scheduler *s, served_model *m);
/* Free every model; none may be in use. */
void scheduler_model_free_all(scheduler *s);
void scheduler_session_free_all(scheduler *s);

#endif
