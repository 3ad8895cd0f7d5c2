/* scheduler.c - whose turn it is.
 *
 * Turns go round: one decode step for each model that has somebody to decode, then one
 * prefill chunk for the request that came first, then again. Within a model, those decoded go to the
 * end of the queue, so with more than max_batch of them everybody waits equally long.
 * (Mixing prefill rows into the decode batch would save a step, but then a prompt's rounding, and so
 * its tokens, would depend on who else is being served.)
 *
 * Callbacks may start, cancel, grant and delete; they must not tick or free the scheduler. Nothing here
 * holds a position in the list across a callback. */
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
	if (!s->batch || !s->rows) {
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
	queue_remove(s, g);
	s->n_generations--;
	generation_finish(g, why, err);
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
	if (!x) {
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

/* What g does now that its session has read all it was given. */
static void proceed(scheduler *s, generation *g)
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
		status why = generation_sample(g, &err);
		s->counters.generated_tokens += why == STATUS_OK;
		if (why != STATUS_OK || (g->finish != FINISH_NONE && g->temporary))
			finish(s, g, why, &err);
	}
}

/* Run the rows. On failure the states of the batch are lost and everybody is told. */
static status step(scheduler *s, served_model *m, served_plan *p, int n)
{
	status why = served_model_step(m, p, s->rows, n);
	if (why == STATUS_OK)
		return why;
	for (int i = 0; i < n; i++)
		s->batch[i]->session->lost = true;
	finish_all(s, STATUS_DEVICE, NULL);
	return STATUS_DEVICE;
}

/* No plan could be made for g: that is g's end, unless the device is gone and with it everybody's. */
static status no_plan(scheduler *s, generation *g, status why, const error *err)
{
	if (why == STATUS_DEVICE) {
		finish_all(s, why, err);
		return why;
	}
	finish(s, g, why, err);
	return STATUS_OK;
}

static status decode(scheduler *s, served_model *m, int n)
{
	error err;
	served_plan *p = NULL;
	status why;
	bool scores = false;
	for (int i = 0; i < n; i++)
		scores |= s->batch[i]->session->scores != NULL;
	/* Where memory is too short for a plan of this batch, a smaller one may do. */
	for (;; n = (n + 1) / 2) {
		err = (error)ERROR_INIT;
		why = served_model_plan(m, n, 1, scores, &p, &err);
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
		session_commit(s->batch[i]->session, &s->batch[i]->next, 1);
		queue_remove(s, s->batch[i]);
		queue_append(s, s->batch[i]);
	}
	for (int i = 0; i < n; i++)
		proceed(s, s->batch[i]);
	return STATUS_OK;
}

static status prefill(scheduler *s, generation *g)
{
	session *x = g->session;
	served_plan *p = NULL;
	error err = ERROR_INIT;
	int64_t left = g->n_prompt - g->n_read, n = left < SCHEDULER_PREFILL_CHUNK ? left : SCHEDULER_PREFILL_CHUNK;
	if (!g->started_ns)
		g->started_ns = clock_ns();
	if (n > 0) {
		status why = served_model_plan(x->model, 1, n, x->scores != NULL, &p, &err);
		if (why != STATUS_OK)
			return no_plan(s, g, why, &err);
		s->batch[0] = g;
		s->rows[0] = session_row(x, g->prompt + g->n_read, n);
		TRY(step(s, x->model, p, 1));
		session_commit(x, g->prompt + g->n_read, n);
		g->n_read += n;
		s->counters.prompt_tokens += (uint64_t)n;
	}
	if (g->n_read == g->n_prompt)
		proceed(s, g);
	return STATUS_OK;
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
