/* scheduler_scoring.c - round-robin over scorings. A turn runs one slice of the first scoring, which then moves to the
 * end of the list. A long scoring therefore delays a short one by no more slices than the short one needs. */
#include "engine/serve/scheduler_state.h"

static void append(scheduler *s, scoring *x)
{
	scoring **link = &s->scorings;
	while (*link)
		link = &(*link)->next;
	*link = x;
	x->next = NULL;
}

/* Finish x, which has left the list. */
static void end(scheduler *s, scoring *x, status why, const error *err)
{
	scoring_request r = x->request;
	error said = ERROR_INIT;
	if (why != STATUS_OK)
		error_set(&said, why, err ? err->param : NULL, "%s",
		          err && err->status != STATUS_OK ? error_message(err) : status_text(why));
	scoring_free(x);
	s->n_scorings--;
	r.finished(r.context, why, &said);
}

status scheduler_score(scheduler *s, served_model *m, const scoring_request *r, scoring **out, error *err)
{
	*out = NULL;
	if (s->closing)
		return error_set(err, STATUS_UNAVAILABLE, NULL, "the engine is stopping");
	if (s->n_scorings >= s->limits.max_generations)
		return error_set(err, STATUS_BUSY, NULL, "%d requests are being scored", s->n_scorings);
	TRY(scoring_new(out, m, r, err));
	s->n_scorings++;
	scheduler_model_touch(s, m);
	append(s, *out);
	return STATUS_OK;
}

void scoring_cancel(scoring *x)
{
	x->cancelled = true;
}

status scheduler_scoring_turn(scheduler *s)
{
	scoring *x = s->scorings;
	bool done = false;
	error err = ERROR_INIT;
	x->model->waited_for = s->n_generations > s->n_waiting;
	const uint64_t slice = x->model->waited_for ? SCORING_SHORT_SLICE_NS : SCORING_SLICE_NS;
	status why = x->cancelled ? STATUS_CANCELLED : scoring_advance(x, slice, &done, &err);
	if (why == STATUS_DEVICE)
		return why;
	s->scorings = x->next;
	if (why != STATUS_OK || done)
		end(s, x, why, &err);
	else
		append(s, x);
	return STATUS_OK;
}

void scheduler_scoring_end_all(scheduler *s, status why, const error *err)
{
	scoring *x = s->scorings;
	s->scorings = NULL;
	while (x) {
		scoring *next = x->next;
		end(s, x, why, err);
		x = next;
	}
}
