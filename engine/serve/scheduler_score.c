/* scheduler_score.c - round-robin over score tasks. A turn runs one slice of the first score task, which then moves to
 * the end of the list. A long score task therefore delays a short one by no more slices than the short one needs. */
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
	TRY(score_task_new(out, m, r, err));
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

/* The link of the first score task that can run; it holds NULL if there is none. */
static score_task **first_link(scheduler *s)
{
	score_task **link = &s->score_tasks;
	while (*link && s->holds && (*link)->request.background && !(*link)->cancelled)
		link = &(*link)->next;
	return link;
}

bool scheduler_scores(scheduler *s)
{
	return *first_link(s);
}

status scheduler_score_turn(scheduler *s)
{
	score_task **link = first_link(s), *x = *link;
	bool done = false;
	error err = ERROR_INIT;
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
