/* scheduler_prompts.c - which prompts a step reads.
 *
 * A step of prompts is for the one with the fewest tokens left, and every fourth for the oldest. So a short prompt does
 * not wait for a long one, prompts of one length are read one after the other (in turns all would be ready
 * when the last is), and none waits for ever. Others of the model join in the order of arrival while their chunks fit.
 * There is room for a chunk, and where threads read side by side, for one of each, beside a first one that is whole.
 * A chunk is always min(SCHEDULER_PREFILL_CHUNK, what is left), never less because of what is beside it: softmax
 * attention adds up in the pieces in which a prompt is read. So a prompt has the bits that it has alone. A model whose
 * bits do not depend on the pieces reads SCHEDULER_PREFILL_SHORT tokens a step while there are streams, which wait for
 * a step between two of their tokens.
 *
 * (Prompts could read beside the rows that decode, in one step: the bits would be the same, and a step of a large
 * model, whose time goes into weights, would be saved.) */
#include "engine/serve/scheduler_state.h"

/* From g on, the first request with something to read, or to sample for the first time. */
static generation *prompt_from(const scheduler *s, generation *g)
{
	if (s->n_prompts == 0)
		return NULL;
	while (g && !(g->phase == GENERATION_PROMPT && generation_runnable(g)))
		g = g->following;
	return g;
}

static int64_t prompt_left(const generation *g)
{
	return g->n_prompt - g->n_read;
}

/* The queue has prompts in the order of arrival, since only what decodes changes places. */
generation *scheduler_prompts_first(const scheduler *s)
{
	enum { OLDEST_EVERY = 4 };
	generation *best = prompt_from(s, s->first);
	if (!best || s->prompt_steps % OLDEST_EVERY == OLDEST_EVERY - 1)
		return best;
	for (generation *g = prompt_from(s, best->following); g; g = prompt_from(s, g->following))
		if (prompt_left(g) < prompt_left(best))
			best = g;
	return best;
}

static bool anything_decodes(const scheduler *s)
{
	const generation *g = s->first;
	while (g && !(g->phase == GENERATION_DECODE && generation_runnable(g)))
		g = g->following;
	return g != NULL;
}

/* g joins the step if its chunk fits. */
static void prompts_add(inflight_step *f, generation *g, int64_t most, int64_t *room)
{
	int64_t left = prompt_left(g), n = left < most ? left : most;
	if (n == 0 || n > *room)
		return;
	*room -= n;
	g->reading = n;
	f->batch[f->n++] = g;
}

void scheduler_prompts_gather(scheduler *s, generation *first, inflight_step *f)
{
	served_model *m = first->session->model;
	int64_t room = served_model_prompt_tokens(m), most = SCHEDULER_PREFILL_CHUNK;
	f->model = m;
	f->n = 0;
	f->prompts = true;
	if (prompt_left(first) < SCHEDULER_PREFILL_CHUNK)
		room = SCHEDULER_PREFILL_CHUNK; /* it is done the sooner */
	if (m->any_pieces && prompt_left(first) > SCHEDULER_PREFILL_SHORT && anything_decodes(s))
		room = most = SCHEDULER_PREFILL_SHORT;
	prompts_add(f, first, most, &room);
	for (generation *g = prompt_from(s, s->first); g && room > 0 && f->n < served_model_prompt_rows(m);
	     g = prompt_from(s, g->following))
		if (g != first && g->session->model == m)
			prompts_add(f, g, most, &room);
}

/* Of a chunk that is not the last, only a session that may stay wants the logits. */
void scheduler_prompts_rows(scheduler *s, const inflight_step *f)
{
	for (int i = 0; i < f->n; i++) {
		generation *g = f->batch[i];
		s->rows[i] = session_row(g->session, g->prompt + g->n_read, g->reading);
		s->rows[i].silent = g->temporary && g->n_read + g->reading < g->n_prompt;
		s->draws[i] = generation_wants(g, g->reading, g->reading);
		s->counters.prompt_tokens += (uint64_t)g->reading;
	}
}
