/* scheduler_score.c - the order of score tasks. A turn runs one slice, of the owner that has had the fewest slices for
 * its weight (shares.h). Of its score tasks it is the one with the lowest `priority`, and of equal ones the first in the
 * list, which then moves to the end. A long score task therefore delays a short one of the same owner by no more slices
 * than the short one needs. Score tasks of the same owner overtake one SCHEDULER_OVERTAKES times at most between two of
 * its slices. */
#include "engine/base/clock.h"
#include "engine/serve/scheduler_state.h"

static void scheduler_score_append(scheduler *s, score_task *x)
{
	score_task **link = &s->score_tasks;
	while (*link)
		link = &(*link)->next;
	*link = x;
	x->next = NULL;
}

/* Finish x, which has left the list. */
static void scheduler_score_end(scheduler *s, score_task *x, status result, const error *err)
{
	score_task_request r = x->request;
	error said = ERROR_INIT;
	if (result != STATUS_OK)
		error_set(&said, result, err ? err->param : NULL, "%s",
		          err && err->status != STATUS_OK ? error_message(err) : status_text(result));
	share_leave(x->share, clock_ns());
	score_task_free(x);
	s->n_score_tasks--;
	s->n_background -= r.background;
	r.finished(r.context, result, &said);
}

status scheduler_score(scheduler *s, served_model *m, const score_task_request *r, score_task **out, error *err)
{
	*out = NULL;
	if (s->closing)
		return error_set(err, STATUS_UNAVAILABLE, NULL, "the engine is stopping");
	if (s->n_score_tasks >= s->limits.max_generations)
		return error_set(err, STATUS_BUSY, NULL, "%d requests are being scored", s->n_score_tasks);
	share *owner = shares_enter(&s->score_shares, r->owner, r->weight);
	if (!owner)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	const status result = score_task_new(out, m, r, err);
	if (result != STATUS_OK) {
		share_leave(owner, clock_ns());
		return result;
	}
	(*out)->share = owner;
	s->n_score_tasks++;
	s->n_background += r->background;
	scheduler_model_touch(s, m);
	scheduler_score_append(s, *out);
	return STATUS_OK;
}

void score_task_cancel(score_task *x)
{
	x->cancelled = true;
}

/* True if x, which is later in the list than y, runs before it. */
static bool is_before(const score_task *x, const score_task *y)
{
	if (x->share != y->share)
		return x->share->served < y->share->served;
	return x->request.priority < y->request.priority && y->overtaken < SCHEDULER_OVERTAKES;
}

/* The link of the score task that runs next; NULL: none can run. */
static score_task **next_link(scheduler *s)
{
	score_task **next = NULL;
	for (score_task **link = &s->score_tasks; *link; link = &(*link)->next) {
		if ((*link)->cancelled)
			return link;
		if (!(s->holds && (*link)->request.background) && (!next || is_before(*link, *next)))
			next = link;
	}
	return next;
}

/* Count the turn of x for its owner, and for those of its score tasks that it has overtaken. */
static void count_turn(scheduler *s, score_task *x)
{
	shares_chosen(&s->score_shares, x->share);
	share_charge(x->share, 1);
	x->overtaken = 0;
	for (score_task *y = s->score_tasks; y != x; y = y->next)
		y->overtaken += y->share == x->share;
}

bool scheduler_scores(scheduler *s)
{
	return next_link(s);
}

status scheduler_score_turn(scheduler *s)
{
	score_task **link = next_link(s), *x = *link;
	bool done = false;
	error err = ERROR_INIT;
	shares_begin(&s->score_shares, clock_ns()); /* owners that are gone leave */
	count_turn(s, x);
	x->model->generations_wait = s->n_generations > s->n_waiting;
	const uint64_t slice = x->model->generations_wait ? SCORE_TASK_SHORT_SLICE_NS : SCORE_TASK_SLICE_NS;
	status result = x->cancelled ? STATUS_CANCELLED : score_task_advance(x, slice, &done, &err);
	if (result == STATUS_DEVICE && backend_is_lost(s->backend))
		return result;
	*link = x->next;
	if (result != STATUS_OK || done)
		scheduler_score_end(s, x, result, &err);
	else
		scheduler_score_append(s, x);
	return STATUS_OK;
}

void scheduler_score_end_all(scheduler *s, status result, const error *err)
{
	score_task *x = s->score_tasks;
	s->score_tasks = NULL;
	while (x) {
		score_task *next = x->next;
		scheduler_score_end(s, x, result, err);
		x = next;
	}
}
