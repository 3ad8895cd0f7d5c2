/* scheduler_shares.c - divides steps among the owners of generations (shares.h), and lets the background wait while
 * anything else can run. */
#include "engine/base/clock.h"
#include "engine/serve/scheduler_state.h"

owner_shares *scheduler_shares(scheduler *s, bool background)
{
	return background ? &s->background_shares : &s->shares;
}

status scheduler_enter_share(scheduler *s, const generation_request *r, share **out, error *err)
{
	*out = shares_enter(scheduler_shares(s, r->background), r->owner, r->weight);
	return *out ? STATUS_OK : error_set(err, STATUS_NOMEM, NULL, "out of memory");
}

/* Maximum rows of a decode step of m. shared: a request of another owner, or one that is not in the background, may
 * wait for it. */
static int step_rows(const scheduler *s, const served_model *m, bool shared)
{
	const bool host = !s->backend->prompt_tokens;
	const uint64_t most = host && m->row_ns > 0 ? SHARES_STEP_NS / m->row_ns : UINT64_MAX;
	if (!shared || most >= (uint64_t)s->limits.max_batch)
		return s->limits.max_batch;
	return most < SHARES_HOST_ROWS ? SHARES_HOST_ROWS : (int)most;
}

int scheduler_divide(scheduler *s, const served_model *m)
{
	const uint64_t now = clock_ns();
	const int least = s->backend->prompt_tokens ? SHARES_DEVICE_ROWS : SHARES_HOST_ROWS;
	shares_begin(&s->shares, now);
	shares_begin(&s->background_shares, now);
	for (const generation *g = s->first; g; g = g->following)
		g->share->streams += g->session->model == m && g->phase != GENERATION_PROMPT && generation_runnable(g);
	const int rows = shares_divide(&s->shares, least, step_rows(s, m, shares_are_several(&s->shares)));
	return rows > 0 ? rows : shares_divide(&s->background_shares, least, step_rows(s, m, true));
}

/* True if a generation or score task that is not in the background can run. */
static bool foreground_runs(const scheduler *s)
{
	for (const generation *g = s->first; g; g = g->following)
		if (!g->background && generation_runnable(g))
			return true;
	for (const score_task *x = s->score_tasks; x; x = x->next)
		if (!x->request.background)
			return true;
	return false;
}

void scheduler_hold_background(scheduler *s)
{
	s->holds = s->n_background > 0 && foreground_runs(s);
	for (generation *g = s->n_background > 0 ? s->first : NULL; g; g = g->following)
		g->held = s->holds && g->background;
}
