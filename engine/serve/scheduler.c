/* scheduler.c - chooses the step that runs next, and completes it.
 *
 * Turns are round-robin: one decode step for each model with generations to decode, then one step of prompts, then one
 * slice of a score task (scheduler_score.c). If a step of prompts also decodes (scheduler_prompts.c), its model needs
 * no other turn, and the turn of prompts is left out. A decode step moves its generations to the end of the queue, so
 * with more than max_batch generations of equal priority all wait equally long (scheduler_order.c).
 *
 * A step reads tokens and samples the next ones for the whole batch in one call. Only the tokens are copied to the
 * host. A row of logits is copied only if a session stops there or log-probabilities are requested.
 *
 * Asynchronous steps: a device must not wait for the host. Where the backend allows it, the next decode step is issued
 * before the last one is completed; a row in both steps reads its token on the device. Between two ticks one step is in
 * flight (s->ahead). The tokens that it reads are delivered before it is completed. Consequences:
 *
 *   - A delivered token may end its generation (end of text, stop sequence). The step in flight still reads it, which a
 *     session needs anyway and a temporary session ignores. The token sampled after it is dropped.
 *   - A token that the step in flight reads is delivered even if a callback of the same tick cancels its generation.
 *     If there is no memory to deliver it, the session keeps it as undelivered. If sampling failed (-1: the logits are
 *     not finite) and the next step has already consumed the token, the session is marked lost.
 *   - The next step overwrites the logits and samples before the host sees the tokens. It therefore waits if
 *     log-probabilities are requested, a session stops, penalties count tokens, or the log is read (explain).
 *     Without a device every step waits.
 *   - A row joins the next step only if it certainly continues: max_tokens allows another token and there is credit for
 *     two. Otherwise it joins the step after that.
 *   - A generation that ends for another reason while a step reads its token (scheduler_free) waits for that step.
 *
 * Callbacks may start, cancel, grant and delete; they must not tick or free the scheduler. No function here keeps a
 * list position across a callback. A callback may make a session read its pending token, which runs the plan for one
 * prompt. Only the generation that calls back may have logits in that plan, and it no longer needs them. */
#include "engine/base/clock.h"
#include "engine/base/memory.h"
#include "engine/serve/scheduler_state.h"

status scheduler_new(scheduler **out, backend *b, const scheduler_limits *limits)
{
	*out = NULL;
	if (limits->max_models < 1 || limits->max_sessions < 0 || limits->max_generations < 1 || limits->max_batch < 1)
		return STATUS_INVALID;
	scheduler *s = memory_new(1, sizeof *s);
	if (!s)
		return STATUS_NOMEM;
	s->backend = b;
	s->limits = *limits;
	prefixes_init(&s->prefixes, b, limits->prefix_bytes, limits->prefix_disk);
	s->rows = memory_new((size_t)limits->max_batch, sizeof *s->rows);
	s->draws = memory_new((size_t)limits->max_batch, sizeof *s->draws);
	bool complete = s->rows && s->draws;
	for (int i = 0; i < INFLIGHT_STEPS; i++) {
		s->inflight[i].batch = memory_new((size_t)limits->max_batch, sizeof *s->inflight[i].batch);
		s->inflight[i].tokens = memory_new((size_t)limits->max_batch, sizeof *s->inflight[i].tokens);
		complete &= s->inflight[i].batch && s->inflight[i].tokens;
	}
	if (!complete) {
		scheduler_free(s);
		return STATUS_NOMEM;
	}
	*out = s;
	return STATUS_OK;
}

/* --- steps in flight ------------------------------------------------------------- */

/* Remove g, which is ending, from the steps in flight. A session first waits for them, because its state includes the
 * tokens that they read. */
static void leave_steps(scheduler *s, generation *g)
{
	for (int i = 0; i < INFLIGHT_STEPS; i++) {
		inflight_step *f = &s->inflight[i];
		generation **row = g->row[i];
		if (!row)
			continue;
		if (!g->temporary && !g->session->lost && step_wait(s, f) == STATUS_OK)
			step_commit(s, f, (int)(row - f->batch));
		*row = NULL;
		g->row[i] = NULL;
		if (--f->live == 0 && s->ahead == f)
			s->ahead = NULL;
	}
}

/* The error of a session whose logits could not be copied. */
static void set_uncopied(error *err)
{
	error_set(err, STATUS_DEVICE, NULL, "the logits could not be copied: %s; the session's state is lost",
	          status_text(STATUS_DEVICE));
}

void scheduler_finish(scheduler *s, generation *g, status result, const error *err)
{
	error uncopied = ERROR_INIT;
	prefixes_keep_end(&s->prefixes, g);
	leave_steps(s, g);
	bool failed = generation_leave(g) != STATUS_OK;
	s->failed |= failed;
	if (failed)
		set_uncopied(&uncopied);
	scheduler_dequeue(s, g);
	generation_finish(g, failed ? STATUS_DEVICE : result, failed ? &uncopied : err);
}

/* Finish the generations that exist on entry, but not those that callbacks start. */
static void finish_all(scheduler *s, status result, const error *err)
{
	uint64_t end = s->serial;
	generation *g = s->first;
	while (g) {
		if (g->serial < end) {
			scheduler_finish(s, g, result, err);
			g = s->first;
		} else {
			g = g->following;
		}
	}
	scheduler_score_end_all(s, result, err);
}

void scheduler_free(scheduler *s)
{
	if (!s)
		return;
	s->closing = true;
	finish_all(s, STATUS_CANCELLED, NULL);
	scheduler_session_free_all(s);
	scheduler_model_free_all(s);
	for (int i = 0; i < INFLIGHT_STEPS; i++) {
		free(s->inflight[i].batch);
		free(s->inflight[i].tokens);
	}
	free(s->rows);
	free(s->draws);
	prefixes_fini(&s->prefixes);
	shares_fini(&s->shares);
	shares_fini(&s->background_shares);
	shares_fini(&s->score_shares);
	free(s);
}

/* --- a turn ----------------------------------------------------------------------- */

/* Return the model that decodes in turn `turn`; NULL: the turn is for prompts or a score task. */
static served_model *turn_model(const scheduler *s, int turn)
{
	served_model *m = s->models;
	while (m && turn-- > 0)
		m = m->next;
	return m;
}

static void begin_step(inflight_step *f, served_model *m)
{
	f->model = m;
	f->n = 0;
	f->prompts = false;
}

void scheduler_token_row(scheduler *s, int i, generation *g, int from)
{
	const int64_t ahead = from >= 0;
	served_row *r = &s->rows[i];
	*r = session_row(g->session, &g->next, 1);
	r->position += ahead;
	r->from = from;
	s->draws[i] = generation_sample_row(g, 1 + ahead, 0);
}

static void scheduler_add_row(scheduler *s, inflight_step *f, generation *g, int from)
{
	scheduler_token_row(s, f->n, g, from);
	f->batch[f->n++] = g;
}

/* Fill f with the generations of m that can decode, in queue order. */
static void decode_gather(scheduler *s, served_model *m, inflight_step *f)
{
	begin_step(f, m);
	scheduler_divide(s, m, NULL);
	for (generation *g = s->first; g && f->n < s->limits.max_batch; g = g->following)
		if (g->session->model == m && g->phase != GENERATION_PROMPT && generation_runnable(g) &&
		    share_take(g->share))
			scheduler_add_row(s, f, g, -1);
}

/* Keep g's session consistent when its token cannot be delivered although the next step has been issued. */
static void lose_undelivered(generation *g, int32_t token)
{
	bool is_read = false;
	for (int i = 0; i < INFLIGHT_STEPS; i++)
		is_read |= g->row[i] != NULL;
	if (token < 0)
		g->session->lost = true;
	else if (!is_read)
		g->unread = true; /* its logits are overwritten */
}

void scheduler_proceed(scheduler *s, generation *g, int32_t token, bool overtaken)
{
	error err = ERROR_INIT;
	if (g->phase == GENERATION_CLOSE) {
		scheduler_finish(s, g, g->finish == FINISH_NONE ? STATUS_CANCELLED : STATUS_OK, NULL);
	} else if (g->cancelled && (!overtaken || g->temporary)) {
		scheduler_finish(s, g, generation_end_early(g), NULL);
	} else if (g->max_tokens == 0 && !g->beams) {
		g->finish = FINISH_LENGTH;
		scheduler_finish(s, g, STATUS_OK, NULL);
	} else if (scheduler_watch_calls(s, g, token)) {
		status result = generation_deliver(g, token, &err);
		s->counters.generated_tokens += result == STATUS_OK;
		s->failed |= result == STATUS_DEVICE;
		if (result != STATUS_OK && overtaken && !g->temporary)
			lose_undelivered(g, token);
		if (result != STATUS_OK || (g->finish != FINISH_NONE && g->temporary))
			scheduler_finish(s, g, result, &err);
		else if (!g->beams) /* a search also takes turns among prompts */
			scheduler_left_prompt(s, g);
	}
}

/* End all generations and score tasks with STATUS_DEVICE. */
static status lose_device(scheduler *s, const error *err)
{
	s->failed = false;
	finish_all(s, STATUS_DEVICE, err);
	s->ahead = NULL;
	return STATUS_DEVICE;
}

void scheduler_lose(scheduler *s)
{
	(void)lose_device(s, NULL);
}

status scheduler_settle_failure(scheduler *s)
{
	const bool lost = s->failed && backend_is_lost(s->backend);
	s->failed = false;
	return lost ? lose_device(s, NULL) : STATUS_OK;
}

status scheduler_fail_step(scheduler *s, const inflight_step *f)
{
	const status result = f->result == STATUS_NOMEM ? STATUS_NOMEM : STATUS_DEVICE;
	if (f->result == STATUS_DEVICE && backend_is_lost(s->backend))
		return lose_device(s, NULL);
	for (int i = 0; i < f->n; i++) {
		generation *g = f->batch[i];
		error err = ERROR_INIT;
		if (!g)
			continue;
		error_set(&err, result, NULL, "a step could not be computed: %s%s", status_text(f->result),
		          g->temporary       ? ""
		          : g->session->lost ? "; the session's state is lost"
		                             : "; the session keeps the tokens that it has read");
		scheduler_finish(s, g, result, &err);
	}
	return STATUS_OK;
}

bool scheduler_fetch_logits(scheduler *s, generation *g)
{
	error err = ERROR_INIT;
	if (session_fetch(g->session) == STATUS_OK)
		return true;
	set_uncopied(&err);
	s->failed = true;
	scheduler_finish(s, g, STATUS_DEVICE, &err);
	return false;
}

static void commit_row(const scheduler *s, const inflight_step *f, int i)
{
	generation *g = f->batch[i];
	const int64_t before = g->session->tokens;
	step_commit(s, f, i);
	g->snapshot_due =
	    !f->overtaken && (g->snapshot_due || generation_passes_snapshot(g, before, g->session->tokens));
}

status scheduler_complete(scheduler *s, inflight_step *f)
{
	if (step_wait(s, f) != STATUS_OK)
		return scheduler_fail_step(s, f);
	size_t left = SCHEDULER_AUTOMATIC_BYTES;
	for (int i = 0; i < f->n; i++)
		if (f->batch[i])
			commit_row(s, f, i);
	for (int i = 0; i < f->n; i++) {
		generation *g = f->batch[i];
		if (!g || !scheduler_keep_automatic(s, g, &left))
			continue;
		if (g->phase == GENERATION_PROMPT)
			prefixes_keep(&s->prefixes, g);
		if (g->n_read == g->n_prompt)
			scheduler_proceed(s, g, f->samples ? f->tokens[i] : -1, f->overtaken);
		else if (!g->temporary)
			scheduler_fetch_logits(s, g); /* it may be cancelled before its next chunk */
	}
	return scheduler_settle_failure(s);
}

status scheduler_give_up(scheduler *s, generation *g, status result, const error *err)
{
	if (result == STATUS_DEVICE && backend_is_lost(s->backend))
		return lose_device(s, err);
	scheduler_finish(s, g, result, err);
	return STATUS_OK;
}

/* Issue a decode step and move its batch to the end of the queue. */
static status decode_issue(scheduler *s, inflight_step *f)
{
	TRY(step_issue(s, f));
	s->counters.batched_sequences += (uint64_t)f->n;
	for (int i = 0; i < f->n; i++)
		scheduler_requeue(s, f->batch[i]);
	return STATUS_OK;
}

/* True if the next step may be issued before f is completed. */
static bool may_be_overtaken(const scheduler *s, const inflight_step *f)
{
	if (!step_is_fetched(s, f) || served_plan_logs(f->plan) || (s->ahead && s->ahead != f))
		return false;
	for (int i = 0; i < f->n; i++) {
		const generation *g = f->batch[i];
		if (!g)
			continue;
		session *x = g->session;
		if ((g->phase == GENERATION_CLOSE && !g->temporary) || g->tally.penalises || g->constrained ||
		    g->n_logprobs >= 0 || g->beams || g->calls || g->snapshot_due ||
		    generation_passes_snapshot(g, x->tokens, x->tokens + 1) || session_reserve(x, 2, NULL) != STATUS_OK)
			return false;
	}
	return true;
}

/* True if g certainly reads the token of the step in flight and requests another one. */
static bool goes_on(const generation *g)
{
	return g->phase == GENERATION_DECODE && !g->cancelled && !g->held && g->completed + 1 < g->max_tokens &&
	       g->credit >= 2;
}

/* Handle the failure to issue the step after `now`. If that has changed nothing, its rows wait for a later step. */
static status fail_ahead(scheduler *s, inflight_step *now, const inflight_step *next)
{
	if (next->result == STATUS_DEVICE && backend_is_lost(s->backend)) {
		step_lose(now);
		return lose_device(s, NULL);
	}
	if (!served_plan_has_changed(next->plan))
		return STATUS_OK;
	now->overtaken = true;
	return scheduler_fail_step(s, next);
}

/* Issue the step after `now` if possible and set s->ahead to it or NULL. STATUS_DEVICE: the device is lost. */
static status run_ahead(scheduler *s, inflight_step *now)
{
	inflight_step *next = &s->inflight[now == &s->inflight[0]];
	if (!may_be_overtaken(s, now))
		return STATUS_OK;
	s->ahead = NULL;
	if (scheduler_joins(s, now->model))
		return STATUS_OK;
	begin_step(next, now->model);
	scheduler_divide(s, now->model, NULL);
	for (generation *g = s->first; g && next->n < s->limits.max_batch; g = g->following) {
		generation **row = g->row[now - s->inflight];
		if (g->session->model != now->model || g->phase == GENERATION_PROMPT ||
		    !(row ? goes_on(g) : generation_runnable(g)))
			continue;
		if (g->session->log)
			return STATUS_OK;
		if (!share_take(g->share))
			continue;
		scheduler_add_row(s, next, g, row ? (int)(row - now->batch) : -1);
	}
	if (next->n == 0 || step_plan(next, NULL) != STATUS_OK)
		return STATUS_OK;
	if (decode_issue(s, next) != STATUS_OK)
		return fail_ahead(s, now, next);
	now->overtaken = true;
	s->ahead = next;
	return STATUS_OK;
}

/* Run a decode step: complete the one in flight, or issue that of f's batch. */
static status decode(scheduler *s, inflight_step *f)
{
	error err;
	bool was_ahead = f == s->ahead;
	const uint64_t began = clock_ns();
	if (!was_ahead) {
		status result = step_plan_some(s, f, &err);
		if (result != STATUS_OK)
			return scheduler_give_up(s, f->batch[0], result, &err);
		if (decode_issue(s, f) != STATUS_OK)
			return scheduler_fail_step(s, f);
	}
	TRY(run_ahead(s, f));
	if (was_ahead && s->ahead == f)
		s->ahead = NULL;
	if (!was_ahead && !s->ahead && step_wait(s, f) == STATUS_OK)
		scheduler_note_decode(f->model, f->n, clock_ns() - began);
	return scheduler_complete(s, f);
}

inflight_step *scheduler_free_step(scheduler *s)
{
	return &s->inflight[s->ahead == &s->inflight[0]];
}

/* End the cancelled generations. A session first reads its delivered token. */
static void reap(scheduler *s)
{
	generation *g = s->n_cancelled > 0 ? s->first : NULL;
	while (g) {
		bool ended = g->cancelled && g->phase != GENERATION_CLOSE;
		const status result = ended ? generation_end_early(g) : STATUS_OK;
		if (ended && g->phase == GENERATION_DECODE && !g->temporary) {
			g->phase = GENERATION_CLOSE;
			ended = false;
		}
		if (ended)
			scheduler_finish(s, g, result, NULL);
		g = ended ? s->first : g->following;
	}
}

bool scheduler_runnable(const scheduler *s)
{
	for (const generation *g = s->first; g && !s->ahead; g = g->following)
		if (g->held || session_copies(g->session) || generation_runnable(g))
			return true;
	return s->ahead || s->score_tasks;
}

/* Run the next turn that has work. */
static status run_turn(scheduler *s)
{
	for (int tried = 0; tried <= s->n_models + 1; tried++) {
		int turn = s->turn;
		served_model *m = turn_model(s, turn);
		s->turn = turn <= s->n_models ? turn + 1 : 0;
		if (m) {
			inflight_step *f = s->ahead;
			if (!s->joined && scheduler_joins(s, m)) {
				s->joined = true;
				return scheduler_prefill(s, scheduler_prompts_first(s));
			}
			if (!f || f->model != m)
				decode_gather(s, m, f = scheduler_free_step(s));
			if (f->n > 0)
				return decode(s, f);
		} else if (turn == s->n_models) {
			generation *g = s->joined ? NULL : scheduler_prompts_first(s);
			s->joined = false;
			if (g)
				return scheduler_prefill(s, g);
		} else if (scheduler_scores(s)) {
			return scheduler_score_turn(s) == STATUS_OK ? STATUS_OK : lose_device(s, NULL);
		}
	}
	return STATUS_OK;
}

status scheduler_tick(scheduler *s)
{
	s->counters.ticks++;
	reap(s);
	scheduler_hold_background(s);
	TRY(scheduler_copy_states(s));
	const uint64_t began = clock_ns();
	const status result = run_turn(s);
	s->turn_ns = clock_ns() - began;
	return result;
}

void scheduler_stats_read(const scheduler *s, scheduler_stats *out)
{
	*out = s->counters;
	for (const served_model *m = s->models; m; m = m->next)
		if (m->pool)
			out->state_bytes += statepool_slots(m->pool) * (int64_t)statepool_slot_bytes(m->pool);
	out->prefix_bytes = s->prefixes.bytes;
	out->prefix_too_large = s->prefixes.too_large;
	out->prefix_thinned = s->prefixes.thinned;
	out->models = s->n_models;
	out->sessions = (int)s->sessions.count;
	out->waiting = s->n_waiting;
	out->running = s->n_generations - s->n_waiting;
}
