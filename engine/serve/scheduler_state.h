/* scheduler_state.h - the scheduler's private struct and the functions that its sources share. */
#ifndef ENGINE_SERVE_SCHEDULER_STATE_H
#define ENGINE_SERVE_SCHEDULER_STATE_H

#include "engine/serve/generation.h"
#include "engine/serve/prefixes.h"
#include "engine/serve/score_task.h"

/* A step that has been issued and not completed. */
typedef struct inflight_step {
	served_model *model;
	served_plan *plan;
	generation **batch; /* [max_batch] generation of each row; NULL: it has ended */
	int32_t *tokens;    /* [max_batch] sampled tokens; valid once waited */
	bool prompts;       /* reads prompts, and the tokens of streams that join; otherwise the tokens of streams */
	int streams_from;   /* with prompts: the first row of a stream */
	int n, live;        /* rows; rows whose generation has not ended */
	bool samples;       /* at least one row samples a token */
	bool waited;        /* tokens are on the host, or the step's failure is known */
	bool overtaken;     /* a later step has overwritten its logits */
	unsigned fetch;     /* the backend's id of the transfer */
	status result;
} inflight_step;

struct scheduler {
	backend *backend;
	scheduler_limits limits;
	bool closing; /* scheduler_free is running; new requests are refused */

	served_model *models;
	served_model *loading; /* not yet in `models`; NULL: none */
	int n_models;
	uint64_t clock; /* counts uses, for the least recently used model */

	string_table sessions; /* live sessions by id */
	int n_leaving;         /* live sessions that are giving up their slots */

	generation *first, *last;
	int n_generations, n_waiting; /* waiting: not started yet */
	int n_prompts, n_cancelled;   /* in GENERATION_PROMPT; cancelled and not ended */
	int n_background;             /* generations and score tasks in the background */
	bool holds;                   /* they wait, because others can run */
	uint64_t serial;              /* serial number of the next generation */
	prefix_cache prefixes;
	owner_shares shares;            /* one for each owner of a generation */
	owner_shares background_shares; /* likewise, of those in the background */
	owner_shares score_shares;      /* likewise, of score tasks; they divide slices */

	score_task *score_tasks; /* in the order of their last slices */
	int n_score_tasks;

	int turn; /* next turn: i < n_models decodes model i; n_models reads prompts; otherwise a score task */
	uint64_t turn_ns;      /* time of the latest turn */
	unsigned prompt_steps; /* number of steps of prompts run */
	unsigned short_until;  /* the one up to which prompts are read in short pieces */
	inflight_step inflight[INFLIGHT_STEPS];
	inflight_step *ahead;     /* the step in flight between ticks; NULL: none */
	served_row *rows;         /* [max_batch] rows of the step being issued */
	sample_row *draws;        /* [max_batch] their sampling requests */
	bool joined;              /* a model's turn was a step of prompts that also decodes */
	bool failed;              /* the device failed to copy logits, and may be lost */
	scheduler_stats counters; /* only the 64-bit members, which never decrease, are used */
};

static inline int64_t smaller_of(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline int64_t larger_of(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* --- a step (scheduler_step.c) --- */

/* Find a plan for f's batch. STATUS_NOMEM: it does not fit in memory. */
status step_plan(inflight_step *f, error *err);
/* Find a plan, and on STATUS_NOMEM make the batch smaller until one fits. */
status step_plan_some(const scheduler *s, inflight_step *f, error *err);
/* Remove the streams from a step of prompts, and let them decode apart for some steps; false: it has none. */
bool step_remove_streams(const scheduler *s, inflight_step *f);
/* Issue the step of f->batch, with s->rows and s->draws. A failure marks the sessions of the batch as lost if the step
 * may have changed their states. */
status step_issue(scheduler *s, inflight_step *f);
/* Wait for f's tokens. A failure marks the sessions of the batch as lost. */
status step_wait(const scheduler *s, inflight_step *f);
/* True if f's tokens arrive by backend.fetch, which does not wait for later work. */
bool step_is_fetched(const scheduler *s, const inflight_step *f);
/* Record that row i of a completed step has read its tokens. */
void step_commit(const scheduler *s, const inflight_step *f, int i);
/* Mark the sessions of the batch as lost. */
void step_lose(const inflight_step *f);

/* --- ends and turns (scheduler.c) --- */

/* End g with this result and remove it from the queue. */
void scheduler_finish(scheduler *s, generation *g, status result, const error *err);
/* End g with an error. A lost device ends everything. */
status scheduler_give_up(scheduler *s, generation *g, status result, const error *err);
/* End what a failed step ends: everything if the device is lost, otherwise the step's generations. */
status scheduler_fail_step(scheduler *s, const inflight_step *f);
/* End everything if the device was lost when it failed to copy logits. */
status scheduler_settle_failure(scheduler *s);
/* Copy the logits of g's session to the host. False: that has failed and ended g. */
bool scheduler_fetch_logits(scheduler *s, generation *g);
/* Continue or end g after its session has read all of its tokens. `token` is the sampled one, -1 if none was requested.
 * `overtaken` means that the next step has been issued. */
void scheduler_proceed(scheduler *s, generation *g, int32_t token, bool overtaken);
/* Return the entry of s->inflight that is free between ticks. */
inflight_step *scheduler_free_step(scheduler *s);
/* Complete the oldest step in flight: wait for its tokens and deliver them. */
status scheduler_complete(scheduler *s, inflight_step *f);

/* --- the order of the queue (scheduler_order.c) --- */

/* Append g to the queue, then move it ahead of its owner's generations that have less priority. */
void scheduler_queue_enter(scheduler *s, generation *g);
void scheduler_queue_leave(scheduler *s, generation *g);
/* Move g to the end of the queue, and from there like scheduler_queue_enter. */
void scheduler_requeue(scheduler *s, generation *g);

/* --- the queue (scheduler_queue.c) --- */

/* Remove g, which is ending, from the queue and from the counters. */
void scheduler_dequeue(scheduler *s, generation *g);
/* Mark g, with all beams of its search, as started. */
void scheduler_begin(scheduler *s, generation *g);
/* Record that g needs no more turns of prompts. */
void scheduler_left_prompt(scheduler *s, generation *g);

/* --- owners and the background (scheduler_shares.c) --- */

/* Return the shares of requests in the background, or of the others. */
owner_shares *scheduler_shares(scheduler *s, bool background);
/* Enter the share of the request's owner. STATUS_NOMEM. */
status scheduler_enter_share(scheduler *s, const generation_request *r, share **out, error *err);
/* Divide the next step of m among owners: share_take then says whether a stream may join. `reader` is the owner of the
 * prompt that the step begins with; NULL: it reads none. Returns the number of streams that may join. */
int scheduler_divide(scheduler *s, const served_model *m, const share *reader);
/* Divide the next step of m likewise, and return the maximum tokens of its prompts. */
int64_t scheduler_divide_prompts(scheduler *s, const served_model *m, const share *reader);
/* Note the time of a step of m: of a decode step, or of one that reads `tokens` tokens of prompts beside the rows. */
void scheduler_note_decode(served_model *m, int rows, uint64_t ns);
void scheduler_note_prompts(served_model *m, int rows, int64_t tokens, uint64_t ns);
/* Let the background wait, or continue. */
void scheduler_hold_background(scheduler *s);

/* --- automatic snapshots (scheduler_automatic.c) --- */

/* Set the automatic snapshots of *out, oldest first. */
void scheduler_automatic_list(const session *x, session_info *out);
/* Make an automatic snapshot of a session whose logits are on the host. It is left out if the limits or the memory do
 * not allow it. Removes the session's oldest ones beyond SCHEDULER_AUTOMATIC or the limit of bytes, and an earlier one
 * after as many tokens. */
void scheduler_session_keep_automatic(scheduler *s, session *x);
/* Look for the begin of the first call in the token that was sampled for g and is not delivered yet, and keep the
 * snapshot from before it (generation_request.calls). False: g has ended. */
bool scheduler_watch_calls(scheduler *s, generation *g, int32_t token);
/* Make an automatic snapshot of g's session if one is due, unless its state has more than *left bytes: it then stays
 * due. *left is what the turn may still copy. False: g has ended. */
bool scheduler_keep_automatic(scheduler *s, generation *g, size_t *left);

/* --- prompts, turns, models --- */

/* Run a step of prompts that begins with g's (scheduler_prefill.c). */
status scheduler_prefill(scheduler *s, generation *g);
/* Copy the next pieces of the states of prompts, for which generations wait (prefixes_copy). STATUS_DEVICE: the device
 * is lost. */
status scheduler_copy_states(scheduler *s);
/* Return the generation that the next step of prompts begins with: it has a prompt to read, or has read it and waits
 * for its first token. NULL: none. */
generation *scheduler_prompts_first(const scheduler *s);
/* True if a generation can decode. */
bool scheduler_decodes(const scheduler *s);
/* True if the next step of prompts also decodes m's streams, so that m needs no decode step. */
bool scheduler_joins(scheduler *s, const served_model *m);
/* Fill f's batch with `first`, which has tokens to read, other prompts of its model, and its streams if they join. */
void scheduler_prompts_gather(scheduler *s, generation *first, inflight_step *f);
/* Fill s->rows and s->draws for f's batch. */
void scheduler_prompts_rows(scheduler *s, const inflight_step *f);
/* Set row i of s->rows and s->draws for g, a stream: its next token is the one of row `from` of the step in flight, or
 * the delivered one (-1). */
void scheduler_token_row(scheduler *s, int i, generation *g, int from);
/* True if g has no prompt to read and its first token can be sampled now. */
bool scheduler_resumes(const generation *g);
/* Sample the first tokens of g and of others of its model that resume, `most` in all, from their sessions' logits,
 * which are on the host. STATUS_NOMEM: the plan of these rows does not fit in memory. */
status scheduler_draw_first(scheduler *s, generation *g, int most, error *err);
/* True if a score task can run. */
bool scheduler_scores(scheduler *s);
/* Run a slice of the next one. STATUS_DEVICE: the device is lost. */
status scheduler_score_turn(scheduler *s);
/* End the score tasks that exist on entry. */
void scheduler_score_end_all(scheduler *s, status result, const error *err);
/* Set the time of m's last use to now. */
void scheduler_model_touch(scheduler *s, served_model *m);
/* Free every model; none may be in use. */
void scheduler_model_free_all(scheduler *s);
void scheduler_session_free_all(scheduler *s);

#endif
