/* scheduler_step.c - one step: its plan, issuing it, waiting for its tokens. */
#include "engine/base/clock.h"
#include "engine/serve/scheduler_state.h"

status step_plan(inflight_step *f, error *err)
{
	bool log = false, lora = false;
	int64_t adjusts = 0, tokens = 0;
	for (int i = 0; i < f->n; i++) {
		log |= f->batch[i]->session->log != NULL;
		lora |= f->batch[i]->session->entry > 0;
		adjusts += generation_adjusts(f->batch[i]);
		tokens += !f->prompts ? 0 : i < f->streams_from ? f->batch[i]->reading : 1;
	}
	return served_model_plan(f->model, f->n, tokens, log, lora, adjusts, &f->plan, err);
}

/* Halve the batch, or the piece of its only prompt; false: it is as small as it may be. */
static bool halve(inflight_step *f)
{
	const bool several = f->n > 1, cut = !several && f->prompts && f->batch[0]->reading > SCHEDULER_PREFILL_CHUNK;
	if (cut)
		f->batch[0]->reading = (f->batch[0]->reading + 1) / 2;
	f->n = (f->n + 1) / 2;
	f->streams_from = f->streams_from < f->n ? f->streams_from : f->n;
	return several || cut;
}

bool step_remove_streams(const scheduler *s, inflight_step *f)
{
	enum { APART_STEPS = 64 };
	if (!f->prompts || f->streams_from >= f->n)
		return false;
	f->n = f->streams_from;
	f->model->apart_until = s->prompt_steps + APART_STEPS;
	return true;
}

status step_plan_some(const scheduler *s, inflight_step *f, error *err)
{
	status result;
	do {
		*err = (error)ERROR_INIT;
		result = step_plan(f, err);
	} while (result == STATUS_NOMEM && (step_remove_streams(s, f) || halve(f)));
	return result;
}

/* --- issuing and waiting ------------------------------------------------------------------ */

enum { SPIN_NS = 200000 /* waking a sleeping thread takes tens of microseconds */ };

bool step_is_fetched(const scheduler *s, const inflight_step *f)
{
	return s->backend->fetch && (size_t)f->n * sizeof *f->tokens <= BACKEND_FETCH_BYTES;
}

void step_lose(const inflight_step *f)
{
	for (int i = 0; i < f->n; i++)
		if (f->batch[i])
			f->batch[i]->session->lost = true;
}

status step_issue(scheduler *s, inflight_step *f)
{
	f->live = f->n;
	f->waited = f->samples = f->overtaken = false;
	for (int i = 0; i < f->n; i++)
		f->samples |= s->draws[i].settings != NULL;
	f->result = served_model_step(f->model, f->plan, s->rows, f->n, s->draws);
	if (f->result == STATUS_OK && f->samples && step_is_fetched(s, f))
		f->result = s->backend->fetch(s->backend, served_model_sampled(f->plan),
		                              (size_t)f->n * sizeof *f->tokens, &f->fetch);
	for (int i = 0; i < f->n && f->result == STATUS_OK; i++)
		f->batch[i]->row[f - s->inflight] = &f->batch[i];
	if (f->result != STATUS_OK && served_plan_has_changed(f->plan))
		step_lose(f);
	return f->result;
}

status step_wait(const scheduler *s, inflight_step *f)
{
	backend *b = s->backend;
	size_t bytes = (size_t)f->n * sizeof *f->tokens;
	if (f->waited)
		return f->result;
	f->waited = true;
	if (f->samples && step_is_fetched(s, f)) {
		uint64_t until = clock_ns() + SPIN_NS;
		while (!b->fetched(b, f->fetch) && clock_ns() < until)
			;
		f->result = b->fetch_take(b, f->fetch, f->tokens, bytes);
	} else if (f->samples) {
		f->result = b->download(b, f->tokens, served_model_sampled(f->plan), bytes);
	}
	if (f->result != STATUS_OK)
		step_lose(f);
	return f->result;
}

void step_commit(const scheduler *s, const inflight_step *f, int i)
{
	generation *g = f->batch[i];
	const bool prompt = g->phase == GENERATION_PROMPT;
	const int64_t n = prompt ? g->reading : 1;
	session_commit(g->session, prompt ? g->prompt + g->n_read : &g->next, n, f->plan, i);
	generation_read(g, n);
	g->row[f - s->inflight] = NULL;
}
