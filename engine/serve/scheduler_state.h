/* scheduler_state.h - what the sources of the scheduler share. */
#ifndef ENGINE_SERVE_SCHEDULER_STATE_H
#define ENGINE_SERVE_SCHEDULER_STATE_H

#include "engine/serve/generation.h"
#include "engine/serve/scoring.h"

/* A step that has been issued, and whose tokens have not been taken. */
typedef struct inflight_step {
	served_model *model;
	served_plan *plan;
	generation **batch; /* [max_batch] by row; NULL: it has ended, and the row is nobody's */
	int32_t *tokens;    /* [max_batch] sampled; once landed */
	bool prompts;       /* a step of prompts, else of told tokens */
	int n, live;        /* rows, and those that are somebody's */
	bool wanted;        /* somebody wants a token */
	bool landed;        /* the host has the tokens, or `why` not */
	unsigned fetch;     /* the backend's number */
	status why;
} inflight_step;

struct scheduler {
	backend *backend;
	scheduler_limits limits;
	bool closing; /* being freed: nothing new begins */

	served_model *models;
	served_model *loading; /* not one of them yet; NULL: none */
	int n_models;
	uint64_t clock; /* counts uses, for the least recently used model */

	string_table sessions; /* the live ones, by id */

	generation *first, *last;
	int n_generations, n_waiting; /* waiting: never had a turn */
	int n_prompts, n_cancelled;   /* in GENERATION_PROMPT; cancelled and not ended */
	uint64_t serial;              /* of the next generation */

	scoring *scorings; /* whose turn is next comes first */
	int n_scorings;

	int turn;              /* whose is next: the i-th model's decode step, (n_models) the prefill, or (behind it) a
	                          scoring */
	unsigned prompt_steps; /* so far */
	inflight_step inflight[INFLIGHT_STEPS];
	inflight_step *ahead;     /* the one that waits to be taken between ticks; NULL: none */
	served_row *rows;         /* [max_batch] of the step being issued */
	sample_row *draws;        /* [max_batch] what each of them wants sampled */
	bool failed;              /* the device, while logits were fetched */
	scheduler_stats counters; /* the four that only grow */
};

/* The prompt that the next step of prompts is for, or that is read and waits for its first token; NULL: there is none.
 */
generation *scheduler_prompts_first(const scheduler *s);
/* f's batch: `first`, which has something to read, and others of its model. Then what they read, as s->rows and
 * s->draws. */
void scheduler_prompts_gather(scheduler *s, generation *first, inflight_step *f);
void scheduler_prompts_rows(scheduler *s, const inflight_step *f);
/* A slice of the first scoring, of which there is one. STATUS_DEVICE. */
status scheduler_scoring_turn(scheduler *s);
/* End those that are here now. */
void scheduler_scoring_end_all(scheduler *s, status why, const error *err);
/* A model has been used now. */
void scheduler_model_touch(scheduler *s, served_model *m);
/* Free every model; none is in use any more. */
void scheduler_model_free_all(scheduler *s);
void scheduler_session_free_all(scheduler *s);

#endif
