/* scheduler_first.c - the first tokens of sessions that continue without a prompt, drawn in one call. */
#include "engine/serve/scheduler_state.h"

bool scheduler_resumes(const generation *g)
{
	return g->n_read == g->n_prompt && !g->beams && !generation_scores_remain(g) && generation_tallied(g) &&
	       model_dimensions(g->session->model->model)->form->stepwise;
}

status scheduler_draw_first(scheduler *s, generation *g, int most, error *err)
{
	served_model *m = g->session->model;
	generation *batch[SERVED_MODEL_HOST_ROWS];
	const float *logits[SERVED_MODEL_HOST_ROWS];
	sample_row rows[SERVED_MODEL_HOST_ROWS];
	int32_t tokens[SERVED_MODEL_HOST_ROWS];
	int64_t adjusts = 0;
	int n = 0, active = 0;
	batch[n++] = g;
	for (generation *next = s->first; next && n < most; next = next->following)
		if (next != g && next->session->model == m && next->phase == GENERATION_PROMPT &&
		    generation_runnable(next) && scheduler_resumes(next))
			batch[n++] = next;
	for (int i = 0; i < n; i++) {
		scheduler_begin(s, batch[i]);
		rows[i] = generation_sample_row(batch[i], 0, 0);
		adjusts += rows[i].settings ? generation_adjusts(batch[i]) : 0;
		logits[i] = batch[i]->session->logits;
		tokens[i] = -1;
		active += rows[i].settings != NULL;
	}
	if (active > 0) {
		TRY(served_model_prepare_rows(m, n, adjusts, err));
		if (served_model_sample_rows(m, logits, rows, n, tokens) != STATUS_OK)
			return error_set(
			    err, STATUS_DEVICE, NULL,
			    "the first token could not be sampled: %s; the session keeps the tokens that it has read",
			    status_text(STATUS_DEVICE));
	}
	for (int i = 0; i < n; i++) {
		batch[i]->first = tokens[i];
		batch[i]->drawn = true;
	}
	return STATUS_OK;
}
