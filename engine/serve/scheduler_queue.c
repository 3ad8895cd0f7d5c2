/* scheduler_queue.c - the queue of generations: admission, and the counters of what is in it. */
#include "engine/base/clock.h"
#include "engine/serve/beams.h"
#include "engine/serve/scheduler_state.h"

void scheduler_left_prompt(scheduler *s, generation *g)
{
	s->n_prompts -= g->prompting;
	g->prompting = false;
}

void scheduler_begin(scheduler *s, generation *g)
{
	const int n = g->beams ? beams_count(g->beams) : 1; /* a search starts all of its beams at once */
	if (g->started_ns)
		return;
	for (int i = 0; i < n; i++)
		(g->beams ? beams_generation(g->beams, i) : g)->started_ns = clock_ns();
	s->n_waiting -= n;
}

void scheduler_dequeue(scheduler *s, generation *g)
{
	scheduler_queue_leave(s, g);
	share_leave(g->share, clock_ns());
	scheduler_left_prompt(s, g);
	s->n_generations--;
	s->n_background -= g->background;
	s->n_waiting -= !g->started_ns;
	s->n_cancelled -= g->cancelled;
}

/* STATUS_BUSY if fewer than n generations are free; STATUS_UNAVAILABLE when closing. */
static status check_places(const scheduler *s, int n, error *err)
{
	if (s->closing)
		return error_set(err, STATUS_UNAVAILABLE, NULL, "the engine is stopping");
	if (s->n_generations > s->limits.max_generations - n)
		return error_set(err, STATUS_BUSY, NULL, "%d requests are running or waiting", s->n_generations);
	return STATUS_OK;
}

static void enlist(scheduler *s, generation *g, share *x)
{
	g->share = x;
	g->serial = s->serial++;
	g->cancellations = &s->n_cancelled;
	g->prompting = true;
	s->n_prompts++;
	s->n_waiting++;
	scheduler_queue_enter(s, g);
	s->n_generations++;
	s->n_background += g->background;
}

/* Make a generation on x, or on a temporary session if x is NULL. */
static status new_generation(scheduler *s, served_model *m, session *x, const generation_request *r, generation **out,
                             error *err)
{
	session *temporary = NULL;
	generation_request rest = *r;
	if (x)
		TRY(session_ready(x, err));
	else
		TRY(prefixes_begin(&s->prefixes, m, &rest, &temporary, err));
	status result = generation_new(out, x ? x : temporary, temporary != NULL, &rest, err);
	if (result != STATUS_OK)
		session_free(temporary);
	return result;
}

status scheduler_generate(scheduler *s, served_model *m, session *x, const generation_request *r, generation **out,
                          error *err)
{
	generation *g;
	share *owner;
	*out = NULL;
	TRY(check_places(s, 1, err));
	TRY(scheduler_enter_share(s, r, &owner, err));
	status result = new_generation(s, m, x, r, &g, err);
	if (result != STATUS_OK) {
		share_leave(owner, clock_ns());
		return result;
	}
	scheduler_model_touch(s, g->session->model);
	enlist(s, g, owner);
	s->counters.cached_tokens += (uint64_t)g->n_cached;
	*out = g;
	return STATUS_OK;
}

static status new_search(scheduler *s, served_model *m, const beam_options *o, const generation_request *r, int n,
                         generation **first, error *err)
{
	TRY(new_generation(s, m, NULL, r, first, err));
	status result = beams_new(*first, o, r, n, err);
	if (result != STATUS_OK)
		generation_discard(*first);
	return result;
}

status scheduler_search(scheduler *s, served_model *m, const beam_options *o, const generation_request *r, int n,
                        generation **out, error *err)
{
	generation *first;
	share *owner;
	TRY(beams_check(o, r, n, err));
	TRY(check_places(s, o->beams, err));
	TRY(scheduler_enter_share(s, r, &owner, err));
	status result = new_search(s, m, o, r, n, &first, err);
	if (result != STATUS_OK) {
		share_leave(owner, clock_ns());
		return result;
	}
	scheduler_model_touch(s, m);
	for (int i = 0; i < o->beams; i++) /* a share that exists is entered without memory */
		enlist(s, beams_generation(first->beams, i),
		       i > 0 ? shares_enter(scheduler_shares(s, r->background), r->owner, r->weight) : owner);
	for (int i = 0; i < n; i++)
		out[i] = beams_generation(first->beams, i);
	s->counters.cached_tokens += (uint64_t)(n * first->n_cached);
	return STATUS_OK;
}
