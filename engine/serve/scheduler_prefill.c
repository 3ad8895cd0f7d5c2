/* scheduler_prefill.c - a turn of prompts: a step that reads them, or one slice of a generation that needs no such step.
 * That is a sequence read as a whole, a source, a scored prompt, a beam search, or a first token without a prompt. */
#include "engine/base/clock.h"
#include "engine/serve/beams.h"
#include "engine/serve/scheduler_state.h"

enum { RESUME_NS = 500000 /* time per turn for first tokens that need no prompt */ };

/* Read one slice of a sequence that is read as a whole. */
static status read_whole(scheduler *s, generation *g)
{
	bool done;
	error err = ERROR_INIT;
	status result = generation_read_whole(g, &done, &err);
	if (result != STATUS_OK)
		return scheduler_give_up(s, g, result, &err);
	share_charge(g->share, done ? g->n_prompt : 1);
	if (!done)
		return STATUS_OK;
	s->counters.prompt_tokens += (uint64_t)g->n_prompt;
	scheduler_proceed(s, g, -1, false);
	return STATUS_OK;
}

/* Length of a slice: shorter while generations of m decode. */
static uint64_t slice_beside_streams(const scheduler *s, served_model *m)
{
	m->generations_wait = scheduler_decodes(s);
	return m->generations_wait ? GENERATION_SHORT_SLICE_NS : GENERATION_SLICE_NS;
}

/* Encode one slice of a source. */
static status scheduler_encode(scheduler *s, generation *g)
{
	error err = ERROR_INIT;
	status result = generation_encode(g, slice_beside_streams(s, g->session->model), &err);
	if (result != STATUS_OK)
		return scheduler_give_up(s, g, result, &err);
	share_charge(g->share, generation_must_encode(g) ? 1 : g->n_source);
	s->counters.prompt_tokens += generation_must_encode(g) ? 0 : (uint64_t)g->n_source;
	return STATUS_OK;
}

/* Read and score one slice of a prompt, or deliver scores. */
static status score_prompt(scheduler *s, generation *g)
{
	error err = ERROR_INIT;
	const int64_t before = g->n_read;
	status result = generation_score(g, slice_beside_streams(s, g->session->model), &err);
	s->counters.prompt_tokens += (uint64_t)(g->n_read - before);
	share_charge(g->share, g->n_read > before ? g->n_read - before : 1);
	if (result != STATUS_OK)
		return scheduler_give_up(s, g, result, &err);
	if (!generation_scores_remain(g) && g->max_tokens == 0)
		scheduler_proceed(s, g, -1, false);
	return STATUS_OK;
}

/* Give a beam search a turn in which no token is read. */
static status turn_beams(scheduler *s, generation *g)
{
	error err = ERROR_INIT;
	bool done = false;
	status result = g->cancelled ? STATUS_CANCELLED : beams_turn(g, &done, &err);
	share_charge(g->share, 1);
	if (result != STATUS_OK)
		return scheduler_give_up(s, g, result, &err);
	if (done)
		scheduler_finish(s, g, STATUS_OK, NULL);
	return STATUS_OK;
}

/* Deliver first tokens. A callback may end any generation. */
static status deliver_first(scheduler *s)
{
	generation *g = s->first;
	while (g) {
		const bool drawn = g->drawn;
		g->drawn = false;
		if (drawn)
			scheduler_proceed(s, g, g->first, false);
		TRY(scheduler_settle_failure(s));
		g = drawn ? s->first : g->following;
	}
	return STATUS_OK;
}

/* Sample the first tokens of g and of others in the same situation, until RESUME_NS are over. Sessions that continue at
 * the same time then share decode steps sooner. A device draws all rows of a call in about the time of one. A host
 * takes longer for each row, and draws HOST_BATCH before it looks at the time. */
static status resume_some(scheduler *s, generation *g)
{
	enum { HOST_BATCH = 4 };
	const uint64_t end = clock_ns() + RESUME_NS;
	do {
		error err = ERROR_INIT;
		const int most = g->session->model->host_rows;
		status result =
		    scheduler_draw_first(s, g, s->backend->fetch || most < HOST_BATCH ? most : HOST_BATCH, &err);
		if (result == STATUS_NOMEM)
			result = scheduler_draw_first(s, g, 1, &err);
		if (result != STATUS_OK)
			return scheduler_give_up(s, g, result, &err);
		TRY(deliver_first(s));
		g = scheduler_prompts_first(s);
	} while (g && scheduler_resumes(g) && clock_ns() < end);
	return STATUS_OK;
}

status scheduler_copy_states(scheduler *s)
{
	size_t room = prefixes_copy_room(&s->prefixes, s->turn_ns);
	for (generation *g = s->first; g && room > 0; g = g->following) {
		error err = ERROR_INIT;
		if (!session_copies(g->session))
			continue;
		scheduler_begin(s, g);
		if (s->ahead)
			(void)step_wait(s, s->ahead); /* the copy's time does not contain it; its turn returns a failure */
		const status result = prefixes_copy(&s->prefixes, g->session, &room);
		if (result == STATUS_OK)
			continue;
		error_set(&err, result, NULL, "the state could not be copied: %s", status_text(result));
		return scheduler_give_up(s, g, result, &err); /* the list has changed */
	}
	return STATUS_OK;
}

/* Note the time of a step of prompts. */
static void note_time(const inflight_step *f, uint64_t ns)
{
	int64_t tokens = 0;
	for (int i = 0; i < f->streams_from; i++)
		tokens += f->batch[i]->reading;
	scheduler_note_prompts(f->model, f->n - f->streams_from, tokens, ns);
}

status scheduler_prefill(scheduler *s, generation *g)
{
	inflight_step *f = scheduler_free_step(s);
	error err = ERROR_INIT;
	status result;
	s->prompt_steps++;
	shares_chosen(scheduler_shares(s, g->background), g->share);
	scheduler_begin(s, g);
	if (!generation_tallied(g))
		return (result = generation_tally(g)) == STATUS_OK ? result : scheduler_give_up(s, g, result, &err);
	if (!model_dimensions(g->session->model->model)->form->stepwise)
		return read_whole(s, g);
	if (generation_must_encode(g))
		return scheduler_encode(s, g);
	if (generation_scores_remain(g))
		return score_prompt(s, g);
	if (g->beams && g->n_read == g->n_prompt)
		return turn_beams(s, g);
	if (scheduler_resumes(g))
		return resume_some(s, g);
	scheduler_prompts_gather(s, g, f);
	result = step_plan_some(s, f, &err);
	if (result != STATUS_OK)
		return scheduler_give_up(s, g, result, &err);
	for (int i = 0; i < f->n; i++)
		scheduler_begin(s, f->batch[i]);
	scheduler_prompts_rows(s, f);
	const uint64_t began = clock_ns();
	if (step_issue(s, f) == STATUS_OK) {
		if (step_wait(s, f) == STATUS_OK)
			note_time(f, clock_ns() - began);
		return scheduler_complete(s, f);
	}
	/* The device may refuse the prompts, or the size of both. So the next step has the prompts alone. */
	const bool lost = f->result == STATUS_DEVICE && backend_is_lost(s->backend);
	if (!lost && !served_plan_has_changed(f->plan) && step_remove_streams(s, f))
		return STATUS_OK;
	return scheduler_fail_step(s, f);
}
