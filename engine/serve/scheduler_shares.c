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

/* --- the times of steps --------------------------------------------------------------- */

/* Move *median by a small part towards ns. A few long steps, while another program runs, hardly change it. */
static void note_median(uint64_t *median, uint64_t ns)
{
	enum { PART = 32 };
	const uint64_t part = *median / PART + 1;
	*median = *median == 0 ? ns : ns > *median ? *median + part : *median > part ? *median - part : 1;
}

/* Note the least of the latest times: other programs only make a step longer. */
static void note_least(uint64_t *least, uint64_t ns)
{
	enum { STEPS = 64 }; /* after which a time counts less */
	const uint64_t grown = *least + *least / STEPS;
	*least = *least == 0 || ns < grown ? ns : grown;
}

/* Time that rows and prompts may add to a step of m that another owner's next request may wait for. */
static uint64_t added_ns(const served_model *m)
{
	return m->step_ns < SHARES_STEP_NS / 2 ? SHARES_STEP_NS - m->step_ns : m->step_ns;
}

/* Number of rows or tokens that add `ns` to a step, if each adds each_ns. It is at least `least` and at most `most`. */
static int64_t number_in(uint64_t ns, uint64_t each_ns, int64_t least, int64_t most)
{
	const uint64_t n = each_ns > 0 ? ns / each_ns : (uint64_t)most;
	return n < (uint64_t)least ? least : n < (uint64_t)most ? (int64_t)n : most;
}

/* Number of rows or tokens from which on a step tells how long each takes: the first ones add less. */
static int64_t least_noted(const served_model *m, uint64_t each_ns, int64_t least)
{
	return each_ns > 0 ? number_in(added_ns(m) / 4, each_ns, least, INT64_MAX) : least;
}

/* Note the time that each of n rows or tokens adds to a step. */
static void note_each(uint64_t *median, int64_t n, uint64_t ns, uint64_t other_ns)
{
	note_median(median, ns > other_ns ? (ns - other_ns) / (uint64_t)n : 0);
}

/* A step of few rows is noted as step_ns instead. */
static void note_rows(served_model *m, int rows, uint64_t ns, uint64_t other_ns)
{
	if (rows >= least_noted(m, m->row_ns, SHARES_HOST_ROWS + 1))
		note_each(&m->row_ns, rows, ns, other_ns);
}

/* If their time is taken for too long, all steps have SHARES_HOST_ROWS tokens. So these are always noted. */
static void note_tokens(served_model *m, int64_t tokens, uint64_t ns, uint64_t other_ns)
{
	if (tokens == SHARES_HOST_ROWS || tokens >= least_noted(m, m->token_ns, SHARES_HOST_ROWS))
		note_each(&m->token_ns, tokens, ns, other_ns);
}

void scheduler_note_decode(served_model *m, int rows, uint64_t ns)
{
	if (rows <= SHARES_HOST_ROWS)
		note_least(&m->step_ns, ns);
	note_rows(m, rows, ns, m->step_ns);
}

void scheduler_note_prompts(served_model *m, int rows, int64_t tokens, uint64_t ns)
{
	note_least(&m->prompt_ns, ns / (uint64_t)(rows + tokens));
	const uint64_t for_rows = (uint64_t)rows * m->row_ns, for_tokens = (uint64_t)tokens * m->token_ns;
	if (rows > tokens && for_rows >= for_tokens)
		note_rows(m, rows, ns, m->step_ns + for_tokens);
	else
		note_tokens(m, tokens, ns, m->step_ns + for_rows);
}

/* --- dividing a step -------------------------------------------------------------------- */

/* Maximum rows of a step of m. shared: a request of another owner, or one that is not in the background, may wait for
 * it. With prompts, these take half of the time. */
static int step_rows(const scheduler *s, const served_model *m, bool shared, bool prompts)
{
	const int most = s->limits.max_batch;
	if (!shared || s->backend->prompt_tokens || most < SHARES_HOST_ROWS)
		return most;
	return (int)number_in(added_ns(m) / (prompts ? 2 : 1), m->row_ns, SHARES_HOST_ROWS, most);
}

/* Divide a decode step of m so that it has few rows, whose time is not known. Returns the rows; 0: it is known, it will
 * not be noted, or too many owners have streams. */
static int divide_few(scheduler *s, const served_model *m)
{
	if (m->step_ns > 0 || s->backend->prompt_tokens || s->backend->fetch ||
	    s->limits.max_batch < SHARES_HOST_ROWS)
		return 0;
	const int rows = shares_divide(&s->shares, NULL, 1, SHARES_HOST_ROWS);
	return rows <= SHARES_HOST_ROWS ? rows : 0;
}

int scheduler_divide(scheduler *s, const served_model *m, const share *reader)
{
	const uint64_t now = clock_ns();
	const int least = s->backend->prompt_tokens ? SHARES_DEVICE_ROWS : SHARES_HOST_ROWS;
	shares_begin(&s->shares, now);
	shares_begin(&s->background_shares, now);
	for (const generation *g = s->first; g; g = g->following)
		g->share->streams += g->session->model == m && g->phase != GENERATION_PROMPT && generation_runnable(g);
	const bool several = shares_are_several(&s->shares);
	const int few = several && !reader ? divide_few(s, m) : 0;
	if (few > 0)
		return few;
	const int rows = shares_divide(&s->shares, reader, least, step_rows(s, m, several, reader));
	return rows > 0 ? rows : shares_divide(&s->background_shares, reader, least, step_rows(s, m, true, reader));
}

int64_t scheduler_divide_prompts(scheduler *s, const served_model *m, const share *reader)
{
	if (s->backend->prompt_tokens || !shares_are_several(&s->shares))
		return INT64_MAX;
	const uint64_t most = added_ns(m), for_rows = (uint64_t)scheduler_divide(s, m, reader) * m->row_ns;
	const uint64_t ns = shares_prompt_ns(&s->shares, reader, m->step_ns, m->row_ns,
	                                     for_rows < most / 2 ? most - for_rows : most / 2);
	return number_in(ns, m->token_ns, SHARES_HOST_ROWS, INT64_MAX);
}

/* True if a generation or score task that is not in the background can run, or waits for a copy of its state. */
static bool foreground_runs(const scheduler *s)
{
	for (const generation *g = s->first; g; g = g->following)
		if (!g->background && (session_copies(g->session) || generation_runnable(g)))
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
