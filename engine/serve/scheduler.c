/* scheduler.c - whose turn it is.
 *
 * Turns go round: one decode step for each model that has somebody to decode, then one
 * prefill chunk for the request that came first, then again. Within a model, those decoded go to the
 * end of the queue, so with more than max_batch of them everybody waits equally long.
 * (Mixing prefill rows into the decode batch would save a step, but then a prompt's rounding, and so
 * its tokens, would depend on who else is being served.)
 *
 * A step reads tokens and then samples behind them, for the whole batch in one call; only the tokens come to the host.
 * A row of logits follows where a session stops, and where log-probabilities are wanted.
 *
 * Callbacks may start, cancel, grant and delete; they must not tick or free the scheduler. Nothing here
 * holds a position in the list across a callback. A callback that makes a session read what it owes runs the plan for
 * one row: the only generation whose logits may lie there is the one that is calling back, and it needs them no more.
 */
#include <assert.h>

#include "engine/base/clock.h"
#include "engine/base/memory.h"
#include "engine/serve/scheduler_state.h"

status scheduler_new(scheduler **out, backend *b, const scheduler_limits *limits)
{
	*out = NULL;
	if (limits->max_models < 1 || limits->max_sessions < 0 || limits->max_generations < 1 || limits->max_batch < 1)
		return STATUS_INVALID;
	scheduler *s = memory_new(1, sizeof *s);
	if (!s)
		return STATUS_NOMEM;
	s->backend = b;
	s->limits = *limits;
	s->batch = memory_new((size_t)limits->max_batch, sizeof *s->batch);
	s->rows = memory_new((size_t)limits->max_batch, sizeof *s->rows);
	s->draws = memory_new((size_t)limits->max_batch, sizeof *s->draws);
	s->tokens = memory_new((size_t)limits->max_batch, sizeof *s->tokens);
	if (!s->batch || !s->rows || !s->draws || !s->tokens) {
		scheduler_free(s);
		return STATUS_NOMEM;
	}
	*out = s;
	return STATUS_OK;
}

/* --- the queue of generations ---------------------------------------------------- */

static void queue_append(scheduler *s, generation *g)
{
	g->previous = s->last;
	g->following = NULL;
	*(s->last ? &s->last->following : &s->first) = g;
	s->last = g;
}

static void queue_remove(scheduler *s, generation *g)
{
	*(g->previous ? &g->previous->following : &s->first) = g->following;
	*(g->following ? &g->following->previous : &s->last) = g->previous;
}

static void finish(scheduler *s, generation *g, status why, const error *err)
{
	bool failed = generation_leave(g) != STATUS_OK;
	s->failed |= failed;
	queue_remove(s, g);
	s->n_generations--;
	generation_finish(g, failed ? STATUS_DEVICE : why, failed ? NULL : err);
}

/* Finish everybody who is here now; whoever is started by a callback stays. */
static void finish_all(scheduler *s, status why, const error *err)
{
	uint64_t end = s->serial;
	generation *g = s->first;
	while (g) {
		if (g->serial < end) {
			finish(s, g, why, err);
			g = s->first;
		} else {
			g = g->following;
		}
	}
}

void scheduler_free(scheduler *s)
{
	if (!s)
		return;
	s->closing = true;
	finish_all(s, STATUS_CANCELLED, NULL);
	scheduler_session_free_all(s);
	scheduler_model_free_all(s);
	free(s->batch);
	free(s->rows);
	free(s->draws);
	free(s->tokens);
	free(s);
}

/* --- admission ------------------------------------------------------------------ */

status scheduler_generate(scheduler *s, served_model *m, session *x, const generation_request *r, generation **out,
                          error *err)
{
	generation *g = NULL;
	session *temporary = NULL;
	*out = NULL;
	if (s->closing)
		return error_set(err, STATUS_UNAVAILABLE, NULL, "the engine is stopping");
	if (s->n_generations >= s->limits.max_generations)
		return error_set(err, STATUS_BUSY, NULL, "%d requests are running or waiting", s->n_generations);
	if (x) {
		TRY(session_ready(x, err));
	} else {
		session_options o = {.policy = POSITION_ERROR, .explain = r->n_alpha > 0};
		TRY(session_new(&temporary, m, "", &o, err));
		x = temporary;
	}
	status why = generation_new(&g, x, temporary != NULL, r, err);
	if (why != STATUS_OK) {
		session_free(temporary);
		return why;
	}
	g->serial = s->serial++;
	scheduler_model_touch(s, x->model);
	queue_append(s, g);
	s->n_generations++;
	*out = g;
	return STATUS_OK;
}

/* --- a turn ----------------------------------------------------------------------- */

/* The model whose decode step turn `turn` is; NULL: it is the prefill's. */
static served_model *turn_model(const scheduler *s, int turn)
{
	served_model *m = s->models;
	while (m && turn-- > 0)
		m = m->next;
	return m;
}

/* Those of m who can decode, longest waiting first; returns how many. */
static int decode_gather(const scheduler *s, const served_model *m, generation **batch)
{
	int n = 0;
	for (generation *g = s->first; g && n < s->limits.max_batch; g = g->following)
		if (g->session->model == m && g->phase != GENERATION_PROMPT && generation_runnable(g))
			batch[n++] = g;
	return n;
}

/* The oldest request with something to read, or to sample for the first time. It is the first in the list: only
 * those who decode ever change places. */
static generation *prefill_next(const scheduler *s)
{
	generation *g = s->first;
	while (g && !(g->phase == GENERATION_PROMPT && generation_runnable(g)))
		g = g->following;
	return g;
}

/* What g does now that its session has read all it was given; token: what was sampled, if it wanted one. */
static void proceed(scheduler *s, generation *g, int32_t token)
{
	error err = ERROR_INIT;
	if (g->phase == GENERATION_CLOSE) {
		finish(s, g, g->finish == FINISH_NONE ? STATUS_CANCELLED : STATUS_OK, NULL);
	} else if (g->cancelled) {
		finish(s, g, STATUS_CANCELLED, NULL);
	} else if (g->max_tokens == 0) {
		g->finish = FINISH_LENGTH;
		finish(s, g, STATUS_OK, NULL);
	} else {
		status why = generation_take(g, token, &err);
		s->counters.generated_tokens += why == STATUS_OK;
		s->failed |= why == STATUS_DEVICE;
		if (why != STATUS_OK || (g->finish != FINISH_NONE && g->temporary))
			finish(s, g, why, &err);
	}
}

/* Everybody is told that the device has failed. */
static status lose_device(scheduler *s, const error *err)
{
	s->failed = false;
	finish_all(s, STATUS_DEVICE, err);
	return STATUS_DEVICE;
}

/* Read the rows, and sample for whoever wants a token. On failure the states of the batch are lost. */
static status step(scheduler *s, served_model *m, served_plan *p, int n)
{
	status why = served_model_step(m, p, s->rows, n);
	for (int i = 0; i < n && why == STATUS_OK; i++) {
		session_commit(s->batch[i]->session, s->rows[i].tokens, s->rows[i].count, p, i);
		generation_read(s->batch[i], s->rows[i].count);
		s->draws[i] = generation_wants(s->batch[i]);
	}
	if (why == STATUS_OK)
		why = served_model_sample(p, s->draws, n, s->tokens);
	if (why == STATUS_OK)
		return why;
	for (int i = 0; i < n; i++)
		s->batch[i]->session->lost = true;
	return lose_device(s, NULL);
}

/* No plan could be made for g: that is g's end, unless the device is gone and with it everybody's. */
static status no_plan(scheduler *s, generation *g, status why, const error *err)
{
	if (why == STATUS_DEVICE)
		return lose_device(s, err);
	finish(s, g, why, err);
	return STATUS_OK;
}

static status decode_plan(const scheduler *s, served_model *m, int n, served_plan **p, error *err)
{
	bool scores = false;
	int64_t adjusts = 0;
	for (int i = 0; i < n; i++) {
		scores |= s->batch[i]->session->scores != NULL;
		adjusts += s->batch[i]->tally.count;
	}
	return served_model_plan(m, n, 1, scores, adjusts, p, err);
}

static status decode(scheduler *s, served_model *m, int n)
{
	error err;
	served_plan *p = NULL;
	status why;
	/* Where memory is too short for a plan of this batch, a smaller one may do. */
	for (;; n = (n + 1) / 2) {
		err = (error)ERROR_INIT;
		why = decode_plan(s, m, n, &p, &err);
		if (why != STATUS_NOMEM || n == 1)
			break;
	}
	if (why != STATUS_OK)
		return no_plan(s, s->batch[0], why, &err);
	for (int i = 0; i < n; i++)
		s->rows[i] = session_row(s->batch[i]->session, &s->batch[i]->next, 1);
	TRY(step(s, m, p, n));
	s->counters.batched_sequences += (uint64_t)n;
	for (int i = 0; i < n; i++) {
		queue_remove(s, s->batch[i]);
		queue_append(s, s->batch[i]);
	}
	for (int i = 0; i < n; i++)
		proceed(s, s->batch[i], s->tokens[i]);
	return s->failed ? lose_device(s, NULL) : STATUS_OK;
}

/* g goes on from what its session read before, whose logits lie on the host. */
static status resume(scheduler *s, generation *g)
{
	session *x = g->session;
	error err = ERROR_INIT;
	int32_t token = -1;
	sample_row wanted = generation_wants(g);
	if (wanted.how) {
		status why = served_model_prepare_row(x->model, g->tally.count, &err);
		if (why != STATUS_OK)
			return no_plan(s, g, why, &err);
		if (served_model_sample_row(x->model, x->logits, &wanted, &token) != STATUS_OK)
			return lose_device(s, NULL);
	}
	proceed(s, g, token);
	return s->failed ? lose_device(s, NULL) : STATUS_OK;
}

static status prefill(scheduler *s, generation *g)
{
	session *x = g->session;
	served_plan *p = NULL;
	error err = ERROR_INIT;
	int64_t left = g->n_prompt - g->n_read, n = left < SCHEDULER_PREFILL_CHUNK ? left : SCHEDULER_PREFILL_CHUNK;
	if (!g->started_ns)
		g->started_ns = clock_ns();
	if (n == 0)
		return resume(s, g);
	status why = served_model_plan(x->model, 1, n, x->scores != NULL, g->tally.count, &p, &err);
	if (why != STATUS_OK)
		return no_plan(s, g, why, &err);
	s->batch[0] = g;
	s->rows[0] = session_row(x, g->prompt + g->n_read, n);
	TRY(step(s, x->model, p, 1));
	s->counters.prompt_tokens += (uint64_t)n;
	if (g->n_read == g->n_prompt)
		proceed(s, g, s->tokens[0]);
	else if (!g->temporary) /* it may be cancelled before the next chunk */
		s->failed = session_fetch(x) != STATUS_OK;
	return s->failed ? lose_device(s, NULL) : STATUS_OK;
}

/* End those who were cancelled. A session first reads the token its client has been told. */
static void reap(scheduler *s)
{
	generation *g = s->first;
	while (g) {
		bool ended = g->cancelled && g->phase != GENERATION_CLOSE;
		if (ended && g->phase == GENERATION_DECODE && !g->temporary) {
			g->phase = GENERATION_CLOSE;
			ended = false;
		}
		if (ended)
			finish(s, g, STATUS_CANCELLED, NULL);
		g = ended ? s->first : g->following;
	}
}

bool scheduler_runnable(const scheduler *s)
{
	for (const generation *g = s->first; g; g = g->following)
		if (generation_runnable(g))
			return true;
	return false;
}

status scheduler_tick(scheduler *s)
{
	s->counters.ticks++;
	reap(s);
	for (int tried = 0; tried <= s->n_models; tried++) {
		served_model *m = turn_model(s, s->turn);
		s->turn = m ? s->turn + 1 : 0;
		if (m) {
			int n = decode_gather(s, m, s->batch);
			if (n > 0)
				return decode(s, m, n);
		} else {
			generation *g = prefill_next(s);
			if (g)
				return prefill(s, g);
		}
	}
	return STATUS_OK;
}

void scheduler_stats_read(const scheduler *s, scheduler_stats *out)
{
	*out = s->counters;
	out->models = s->n_models;
	out->sessions = s->n_sessions;
	for (const generation *g = s->first; g; g = g->following)
		*(g->started_ns ? &out->running : &out->waiting) += 1;
}
