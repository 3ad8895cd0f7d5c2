/* generation.c - turns a request into sampling requests, and a sampled token into an event. */
#include "engine/serve/generation.h"

#include <math.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/memory.h"
#include "engine/explain/explain.h"
#include "engine/serve/beams.h"

/* --- beginning ----------------------------------------------------------------- */

/* Check ids; `param` names them in the error. */
static status generation_check_ids(const int32_t *ids, int64_t n, int64_t vocab, const char *param, error *err)
{
	uint32_t most = 0; /* without a branch for each token; a prompt may have millions */
	for (int64_t i = 0; i < n; i++)
		most = (uint32_t)ids[i] > most ? (uint32_t)ids[i] : most;
	for (int64_t i = 0; most >= vocab && i < n; i++)
		if (ids[i] < 0 || ids[i] >= vocab)
			return error_set(err, STATUS_INVALID, param, "token %d is not in the vocabulary of %lld",
			                 (int)ids[i], (long long)vocab);
	return STATUS_OK;
}

static status generation_check_source(const session *x, const generation_request *r, error *err)
{
	const model_dims *d = model_dimensions(x->model->model);
	if (d->parallel_only)
		return error_set(err, STATUS_UNSUPPORTED, "model", "the model cannot read token by token: it has %s",
		                 d->parallel_only);
	if (!d->source)
		return r->n_source == 0 ? STATUS_OK
		                        : error_set(err, STATUS_INVALID, "source", "this model reads no source");
	if ((x->n_source == 0) == (r->n_source == 0))
		return error_set(err, STATUS_INVALID, "source",
		                 r->n_source ? "the session already has a source, which cannot be replaced"
		                             : "this model reads a source: it must not be missing or empty");
	if (r->n_source > d->source)
		return error_set(err, STATUS_INVALID, "source",
		                 "%lld tokens do not fit: this model reads sources of up to %lld",
		                 (long long)r->n_source, (long long)d->source);
	return generation_check_ids(r->source, r->n_source, d->source_inputs, "source", err);
}

static status generation_check_prompt(const session *x, bool temporary, const generation_request *r, error *err)
{
	int64_t limit = session_limit(x);
	if (r->n_prompt < 0 || (r->n_prompt == 0 && x->tokens == 0))
		return error_set(err, STATUS_INVALID, "prompt", "must not be empty%s",
		                 temporary ? "" : " on a session that has read nothing");
	TRY(generation_check_ids(r->prompt, r->n_prompt, model_dimensions(x->model->model)->inputs, "prompt", err));
	if (r->n_prompt > limit - x->tokens)
		return error_set(err, STATUS_INVALID, "prompt",
		                 "%lld tokens do not fit: %lld of the %lld positions are taken", (long long)r->n_prompt,
		                 (long long)x->tokens, (long long)limit);
	return STATUS_OK;
}

static status generation_check(const session *x, bool temporary, const generation_request *r, error *err)
{
	TRY(session_check(x, err));
	TRY(generation_check_source(x, r, err));
	TRY(generation_check_prompt(x, temporary, r, err));
	if (!model_dimensions(x->model->model)->form->stepwise && (!temporary || r->max_tokens > 0 || !r->explain))
		return error_set(err, STATUS_UNSUPPORTED, "model",
		                 "this model reads whole sequences, and predicts no "
		                 "token after them");
	TRY(sampling_check(&r->sampling, model_dimensions(x->model->model)->outputs, err));
	if (r->max_tokens < 0)
		return error_set(err, STATUS_INVALID, "max_tokens", "must be at least 0");
	if (r->n_logprobs < -1 || r->n_logprobs > GENERATION_MAX_LOGPROBS)
		return error_set(err, STATUS_INVALID, "logprobs", "must be at most %d", GENERATION_MAX_LOGPROBS);
	if (r->score_prompt && (r->n_logprobs < 0 || !temporary))
		return error_set(err, STATUS_INVALID, "logprobs", "the tokens of a prompt are reported with logprobs");
	if (r->score_prompt && x->options.adapter)
		return error_set(err, STATUS_UNSUPPORTED, "adapter",
		                 "the tokens of a prompt are not scored with an adapter");
	if (r->n_alpha < 0 || r->n_alpha > GENERATION_MAX_ALPHA)
		return error_set(err, STATUS_INVALID, "alpha", "must be between 0 and %d tokens", GENERATION_MAX_ALPHA);
	if (r->n_alpha > 0 && !x->options.explain)
		return error_set(err, STATUS_INVALID, "alpha", "needs a session opened with explain");
	if (r->n_alpha > 0 && !model_explainer(x->model->model)->scores)
		return error_set(err, STATUS_UNSUPPORTED, "alpha", "this model has no score per token");
	return STATUS_OK;
}

/* Maximum tokens that a generation reads, the prompt's and its own. */
static int64_t generation_most(const session *x, const generation_request *r)
{
	int64_t room = session_limit(x) - x->tokens - r->n_prompt;
	return x->tokens + r->n_prompt + (r->max_tokens < room ? r->max_tokens : room);
}

bool generation_passes_snapshot(const generation *g, int64_t from, int64_t to)
{
	return g->snapshot_every > 0 && to / g->snapshot_every > from / g->snapshot_every;
}

status generation_tally(generation *g)
{
	enum { SLICE = 1 << 16 }; /* about a millisecond */
	const session *x = g->session;
	int64_t end = g->to_tally - g->n_tallied < SLICE ? g->to_tally : g->n_tallied + SLICE;
	for (; g->n_tallied < end; g->n_tallied++) {
		TRY(tally_reserve(&g->tally));
		tally_add(&g->tally, g->n_tallied < x->tokens ? token_history_at(&x->history, g->n_tallied)
		                                              : g->prompt[g->n_tallied - x->tokens]);
	}
	return STATUS_OK;
}

bool generation_tallied(const generation *g)
{
	return g->n_tallied == g->to_tally;
}

static const bool *generation_pick(bool *out, const bool *chosen, int64_t n)
{
	if (chosen)
		memcpy(out, chosen, (size_t)n * sizeof *out);
	else
		memset(out, true, (size_t)n);
	return out;
}

static int64_t generation_count(const bool *chosen, int64_t n)
{
	int64_t count = 0;
	for (int64_t i = 0; i < n; i++)
		count += chosen[i];
	return count;
}

static status generation_check_rollout(const generation *g, const generation_request *r, error *err)
{
	const model *m = g->session->model->model;
	int64_t tokens = generation_most(g->session, r);
	explain_log l;
	explain_log_init(&l, model_architecture(m), model_config(m), NULL, tokens);
	int64_t followed = tokens - explain_rollout_first(&l, &g->pick, tokens - 1);
	int64_t rows = generation_count(g->pick.layers, l.layers) * generation_count(g->pick.heads, l.heads) *
	               generation_count(g->pick.rounds, l.rounds);
	if (followed * rows <= SCHEDULER_MAX_ROLLOUT)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, "alpha.aggregate",
	                 "rollout would follow %lld tokens in %lld rows of weights at the last one; with generated "
	                 "tokens their product is at most %d: choose fewer layers, heads or rounds",
	                 (long long)followed, (long long)rows, SCHEDULER_MAX_ROLLOUT);
}

static status generation_prepare_alpha(generation *g, const generation_request *r, error *err)
{
	const model *m = g->session->model->model;
	const model_dims *d = model_dimensions(m);
	g->n_alpha = r->n_alpha;
	if (g->n_alpha == 0)
		return STATUS_OK;
	int64_t rounds = model_explainer(m)->n_rounds;
	g->picked = memory_new((size_t)(d->layers + d->heads + rounds), sizeof *g->picked);
	g->alpha = memory_new((size_t)g->n_alpha, sizeof *g->alpha);
	if (!g->picked || !g->alpha)
		return STATUS_NOMEM;
	g->pick.layers = generation_pick(g->picked, r->alpha.layers, d->layers);
	g->pick.heads = generation_pick(g->picked + d->layers, r->alpha.heads, d->heads);
	g->pick.rounds = generation_pick(g->picked + d->layers + d->heads, r->alpha.rounds, rounds);
	g->rollout = r->alpha_rollout;
	return g->rollout ? generation_check_rollout(g, r, err) : STATUS_OK;
}

/* Set the message of status s of a constrained text. */
static status generation_check_constrained(const generation *g, status s, error *err)
{
	if (s == STATUS_TOO_LARGE)
		error_set(err, s, g->constraint_field,
		          "too many alternatives have the same beginning, or the text is nested too deep");
	return s;
}

static status generation_copy(generation *g, const generation_request *r, error *err)
{
	size_t bias = (size_t)r->sampling.n_bias;
	g->credit = r->credit;
	g->n_prompt = r->n_prompt;
	g->max_tokens = generation_most(g->session, r) - g->session->tokens - g->n_prompt;
	g->sampling = r->sampling;
	g->n_shared = r->n_shared;
	g->ignore_end = r->ignore_end;
	g->constraint_field = r->constraint_field;
	g->n_stop_tokens = r->n_stop_tokens;
	memcpy(g->stop_tokens, r->stop_tokens, sizeof g->stop_tokens);
	g->n_logprobs = r->n_logprobs;
	g->scores_only = r->scores_only;
	g->background = r->background;
	g->priority = r->priority;
	g->explain = g->temporary && r->explain;
	g->snapshot_every = g->temporary ? 0 : r->snapshot_every;
	if (r->calls && !g->temporary) {
		g->calls = memory_new(1, sizeof *g->calls);
		if (!g->calls)
			return STATUS_NOMEM;
		g->calls->snapshot = -1;
		TRY(call_search_init(&g->calls->search, r->calls, NULL, 0, err));
	}
	g->event = r->event;
	g->finished = r->finished;
	g->context = r->context;
	g->prompt = memory_new((size_t)r->n_prompt, sizeof *g->prompt);
	g->sampling.bias = memory_new(bias, sizeof *g->sampling.bias);
	if (!g->prompt || !g->sampling.bias)
		return STATUS_NOMEM;
	if (r->n_source > 0) {
		g->n_source = r->n_source;
		g->source = memory_new((size_t)r->n_source, sizeof *g->source);
		if (!g->source)
			return STATUS_NOMEM;
		memcpy(g->source, r->source, (size_t)r->n_source * sizeof *g->source);
	}
	if (r->n_prompt > 0)
		memcpy(g->prompt, r->prompt, (size_t)r->n_prompt * sizeof *g->prompt);
	if (bias > 0)
		memcpy(g->sampling.bias, r->sampling.bias, bias * sizeof *g->sampling.bias);
	TRY(stop_filter_init(&g->stop, r->stops, r->n_stops, err));
	/* Count the tokens that the session has read and those of the prompt; in a long text, only a first slice. */
	TRY(tally_init(&g->tally, &g->sampling));
	g->to_tally = g->tally.penalises ? g->session->tokens + g->n_prompt : 0;
	TRY(generation_tally(g));
	TRY(generation_prepare_alpha(g, r, err));
	if (r->constraint)
		TRY(generation_check_constrained(g,
		                                 constrained_text_new(&g->constrained, r->constraint, g->stop_tokens,
		                                                      g->n_stop_tokens, g->ignore_end),
		                                 err));
	if (r->score_prompt && r->n_prompt > 1)
		TRY(prompt_scores_new(&g->scores, g->session, g->prompt, g->n_prompt, g->n_logprobs));
	return session_reserve(g->session, r->n_prompt, err);
}

static void generation_free(generation *g)
{
	stop_filter_fini(&g->stop);
	prompt_scores_free(g->scores);
	constrained_text_free(g->constrained);
	session_free(g->calls ? g->calls->before : NULL);
	free(g->calls);
	free(g->prompt);
	free(g->source);
	free(g->sampling.bias);
	tally_fini(&g->tally);
	free(g->weights);
	free(g->picked);
	free(g->alpha);
	free(g);
}

/* True if the prompt's tokens, from the second on, are delivered with their text. */
static bool generation_gives_prompt(const generation *g)
{
	return g->scores && !g->scores_only;
}

/* True if text precedes the first delivered token. Special tokens have none, but for the marks of calls. */
static bool generation_has_text(const generation *g)
{
	const session *x = g->session;
	const tokenizer *t = x->model->tokenizer;
	for (int64_t i = 0; i < x->tokens; i++)
		if (tokenizer_token_bytes(t, token_history_at(&x->history, i), NULL, 0) > 0)
			return true;
	for (int64_t i = 0; i < (generation_gives_prompt(g) ? 1 : g->n_prompt); i++)
		if (tokenizer_token_bytes(t, g->prompt[i], NULL, 0) > 0)
			return true;
	return false;
}

/* Restore the end of the text before the first event, with its unfinished character. It is the session's if this
 * request continues it without a prompt, and that of the prompt's first token if the others are delivered. */
static void generation_resume_text(generation *g)
{
	enum { UNFINISHED = 3 }; /* maximum bytes of an unfinished character, hence maximum tokens */
	const session *x = g->session;
	char whole[TEXT_STREAM_ROOM];
	const bool gives_prompt = generation_gives_prompt(g);
	const int64_t n = gives_prompt ? 1 : g->n_prompt == 0 ? x->tokens : 0;
	g->text.started = generation_has_text(g);
	for (int64_t i = n > UNFINISHED ? n - UNFINISHED : 0; i < n; i++)
		text_stream_token(&g->text, x->model->tokenizer,
		                  gives_prompt ? g->prompt[i] : token_history_at(&x->history, i), false, whole);
}

status generation_new(generation **out, session *x, bool temporary, const generation_request *r, error *err)
{
	*out = NULL;
	TRY(generation_check(x, temporary, r, err));
	generation *g = memory_new(1, sizeof *g);
	if (!g)
		return error_set(err, STATUS_NOMEM, NULL, "no memory for another request");
	g->session = x;
	g->temporary = temporary;
	g->n_cached = temporary ? x->tokens : 0;
	g->accepted_ns = g->delivered_ns = clock_ns();
	status s = generation_copy(g, r, err);
	if (s != STATUS_OK) {
		generation_free(g);
		return error_set(err, s, NULL, "no memory for another request");
	}
	generation_resume_text(g);
	x->busy = true;
	*out = g;
	return STATUS_OK;
}

status generation_new_like(generation **out, const generation *g, session *x, const generation_request *r)
{
	generation *y = *out = memory_new(1, sizeof *y);
	if (!y)
		return STATUS_NOMEM;
	y->session = x;
	y->temporary = true;
	y->max_tokens = g->max_tokens;
	y->n_cached = g->n_cached + g->n_source + g->n_prompt;
	y->n_logprobs = g->n_logprobs;
	y->text = g->text;
	y->accepted_ns = g->accepted_ns;
	y->delivered_ns = g->delivered_ns;
	y->credit = r->credit;
	y->background = r->background;
	y->priority = r->priority;
	y->event = r->event;
	y->finished = r->finished;
	y->context = r->context;
	x->busy = true;
	return STATUS_OK;
}

void generation_discard(generation *g)
{
	if (!g)
		return;
	session_free(g->session);
	generation_free(g);
}

/* --- reading and sampling ---------------------------------------------------------- */

bool generation_runnable(const generation *g)
{
	if (session_copies(g->session) || (g->held && !g->cancelled))
		return false;
	if (g->beams && !g->cancelled)
		return beams_runnable(g);
	return g->cancelled || g->phase == GENERATION_CLOSE || (g->max_tokens == 0 && !generation_scores_remain(g)) ||
	       g->credit > 0;
}

void generation_read(generation *g, int64_t count)
{
	if (g->phase == GENERATION_PROMPT)
		g->n_read += count;
	g->unread = false;
}

static status generation_read_slice(const generation *g, uint64_t slice_ns, bool *done)
{
	uint64_t began = clock_ns();
	do
		TRY(read_pass_step(g->whole, done));
	while (!*done && clock_ns() - began < slice_ns);
	return STATUS_OK;
}

bool generation_must_encode(const generation *g)
{
	return g->source;
}

status generation_encode(generation *g, uint64_t slice_ns, error *err)
{
	session *x = g->session;
	const read_pass_piece all = {.ids = g->source, .count = g->n_source, .slot = x->slot};
	bool done;
	if (!g->whole)
		return read_pass_begin(&g->whole, x->model, (read_pass_form){.source = true}, &all, err);
	TRY(generation_read_slice(g, slice_ns, &done));
	if (!done)
		return STATUS_OK;
	read_pass_end(x->model, g->whole);
	g->whole = NULL;
	free(x->source);
	x->source = g->source;
	x->n_source = g->n_source;
	g->source = NULL;
	return STATUS_OK;
}

status generation_read_whole(generation *g, bool *done, error *err)
{
	session *x = g->session;
	*done = false;
	if (!g->whole)
		return read_pass_begin(&g->whole, x->model, (read_pass_form){.log = true},
		                       &(read_pass_piece){.ids = g->prompt, .count = g->n_prompt, .log = x->log}, err);
	TRY(generation_read_slice(g, GENERATION_SLICE_NS, done));
	if (*done) {
		token_history_append(&x->history, g->prompt, g->n_prompt);
		x->tokens = g->n_prompt;
		generation_read(g, g->n_prompt);
	}
	return STATUS_OK;
}

int64_t generation_adjusts(const generation *g)
{
	return sample_row_adjusts(g->tally.count, g->constrained, model_dimensions(g->session->model->model)->outputs);
}

sample_row generation_sample_row(const generation *g, int64_t tokens, int64_t prompt)
{
	const session *x = g->session;
	bool on = g->n_read + prompt == g->n_prompt && g->phase != GENERATION_CLOSE && !g->cancelled &&
	          g->max_tokens > 0 && !g->beams;
	return (sample_row){on ? &g->sampling : NULL, &g->tally, (uint64_t)(x->tokens + tokens),
	                    g->constrained ? constrained_text_allowed(g->constrained) : NULL};
}

status generation_leave(generation *g)
{
	session *x = g->session;
	if (g->temporary || x->lost)
		return STATUS_OK;
	if (!g->unread)
		return session_fetch(x);
	x->pending = g->next;
	return STATUS_OK;
}

/* --- events --------------------------------------------------------------------------- */

/* Write the tokens with the largest weights to g->alpha: the mean or rollout of the selected heads, at the last of the
 * first `tokens` tokens. */
static status generation_explain(generation *g, int64_t tokens, int *n_alpha)
{
	const session *x = g->session;
	const model *m = x->model->model;
	explain_log log;
	*n_alpha = 0;
	if (g->n_alpha == 0)
		return STATUS_OK;
	if (tokens > g->weights_size) {
		double *bigger = realloc(g->weights, (size_t)x->log_capacity * sizeof *bigger);
		if (!bigger)
			return STATUS_NOMEM;
		g->weights = bigger;
		g->weights_size = x->log_capacity;
	}
	explain_log_init(&log, model_architecture(m), model_config(m), x->log, tokens);
	TRY((g->rollout ? explain_rollout : explain_mean)(&log, &g->pick, tokens - 1, g->weights));
	int n = 0;
	for (int64_t i = 0; i < tokens; i++) {
		float w = (float)g->weights[i];
		if (!(w > 0) || (n == g->n_alpha && w <= g->alpha[n - 1].weight))
			continue;
		int at = n < g->n_alpha ? n++ : n - 1;
		for (; at > 0 && w > g->alpha[at - 1].weight; at--)
			g->alpha[at] = g->alpha[at - 1];
		g->alpha[at] = (alpha_weight){token_history_at(&x->history, i), i, w};
	}
	*n_alpha = n;
	return STATUS_OK;
}

static void generation_emit(generation *g, generation_event *e)
{
	uint64_t now = clock_ns();
	e->alpha = e->n_alpha > 0 ? g->alpha : NULL;
	e->time_ms = (double)(now - g->delivered_ns) * 1e-6;
	g->delivered_ns = now;
	g->credit = g->event(g->context, e);
}

bool generation_ends(const generation *g, int32_t token)
{
	bool end = !g->ignore_end && tokenizer_ends(g->session->model->tokenizer, token);
	for (int i = 0; i < g->n_stop_tokens; i++)
		end |= token == g->stop_tokens[i];
	return end;
}

/* Send the sampled token as an event, with the text it completes. */
static status generation_send(generation *g, token_logprob picked, error *err)
{
	generation_event e = {.tokens = &picked.token, .n_tokens = 1};
	char characters[TEXT_STREAM_ROOM];
	const tokenizer *t = g->session->model->tokenizer;
	bool end = generation_ends(g, picked.token);
	bool whole = g->constrained && constrained_text_done(g->constrained);
	bool last = end || whole || g->completed == g->max_tokens;
	/* The session's next generation may complete the character that max_tokens has cut. */
	size_t bytes = text_stream_token(&g->text, t, picked.token, end || (last && g->temporary), characters);
	status s = stop_filter_push(&g->stop, characters, bytes, last, &e.text, &e.text_bytes);
	if (s == STATUS_OK)
		s = generation_explain(g, g->session->tokens, &e.n_alpha);
	if (s != STATUS_OK)
		return error_set(err, s, NULL, "the next token could not be delivered: %s", status_text(s));
	if (end || whole || g->stop.found)
		g->finish = FINISH_STOP;
	else if (last)
		g->finish = FINISH_LENGTH;
	if (g->n_logprobs >= 0) {
		e.logprobs = &picked;
		e.top = g->top;
		e.n_top = g->n_logprobs;
	}
	generation_emit(g, &e);
	return STATUS_OK;
}

/* --- the tokens of a prompt that is scored ---------------------------------------------- */

bool generation_scores_remain(const generation *g)
{
	return g->scores && !prompt_scores_all_taken(g->scores);
}

void generation_send_tokens(generation *g, generation_event *e, bool last)
{
	char characters[GENERATION_EVENT_TOKENS * TEXT_STREAM_ROOM];
	const tokenizer *t = g->session->model->tokenizer;
	e->text = characters;
	for (int i = 0; i < e->n_tokens; i++)
		e->text_bytes += text_stream_token(&g->text, t, e->tokens[i], last && i + 1 == e->n_tokens,
		                                   characters + e->text_bytes);
	generation_emit(g, e);
}

/* Send one event of the next scored tokens; if weights are requested for each token, of one token. */
static status generation_send_scores(generation *g)
{
	generation_event e = {.text = "", .n_top = g->n_logprobs};
	e.n_tokens =
	    prompt_scores_take(g->scores, g->n_alpha > 0 ? 1 : GENERATION_EVENT_TOKENS, &e.tokens, &e.logprobs, &e.top);
	TRY(generation_explain(g, e.tokens - g->prompt, &e.n_alpha));
	if (g->scores_only)
		generation_emit(g, &e);
	else
		generation_send_tokens(g, &e, e.tokens + e.n_tokens == g->prompt + g->n_prompt && g->max_tokens == 0);
	return STATUS_OK;
}

status generation_score(generation *g, uint64_t slice_ns, error *err)
{
	status s = STATUS_OK;
	if (!prompt_scores_waiting(g->scores))
		s = prompt_scores_step(g->scores, slice_ns, &g->n_read, err);
	while (s == STATUS_OK && prompt_scores_waiting(g->scores) && g->credit > 0 && !g->cancelled)
		s = generation_send_scores(g);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "the prompt could not be scored: %s", status_text(s));
}

/* --- delivering a token ----------------------------------------------------------------- */

status generation_deliver(generation *g, int32_t token, error *err)
{
	session *x = g->session;
	if (g->beams)
		return beams_read_logits(g, err);
	g->next = token;
	if (token < 0 && g->constrained && !constrained_text_continues(g->constrained))
		return error_set(err, STATUS_UNSUPPORTED, g->constraint_field,
		                 "no token of the model's vocabulary continues the text");
	if (token < 0)
		return error_set(err, STATUS_INVALID, "model",
		                 "the model's logits are not finite: products of its weights overflow");
	TRY(session_reserve(x, 1, err));
	TRY(tally_reserve(&g->tally));
	if (g->constrained && !generation_ends(g, token))
		TRY(generation_check_constrained(g, constrained_text_push(g->constrained, token), err));
	if (g->phase == GENERATION_PROMPT)
		g->prompted_ns = clock_ns();
	token_logprob picked = {.token = token, .logprob = -INFINITY};
	if (g->n_logprobs >= 0) {
		TRY(session_fetch(x));
		picked = sampler_logprob(x->logits, model_dimensions(x->model->model)->outputs, token, g->top,
		                         g->n_logprobs);
	}
	tally_add(&g->tally, token);
	g->completed++;
	TRY(generation_send(g, picked, err));
	g->unread = true;
	x->device_logits = NULL; /* the step that reads this token replaces these logits */
	g->phase = g->finish == FINISH_NONE ? GENERATION_DECODE : GENERATION_CLOSE;
	return STATUS_OK;
}

/* --- ending -------------------------------------------------------------------------- */

/* Send the text that was held back. */
static void generation_flush(generation *g)
{
	char characters[TEXT_STREAM_ROOM];
	generation_event e = {.tokens = &g->next};
	const size_t bytes = g->temporary ? text_stream_push(&g->text, NULL, 0, true, characters) : 0;
	if (g->credit > 0 && stop_filter_push(&g->stop, characters, bytes, true, &e.text, &e.text_bytes) == STATUS_OK &&
	    e.text_bytes > 0)
		generation_emit(g, &e);
}

status generation_end_early(generation *g)
{
	if (!g->expired)
		return STATUS_CANCELLED;
	if (g->completed == 0 || g->beams)
		return STATUS_TIMEOUT;
	generation_flush(g);
	g->finish = FINISH_TIMEOUT;
	return STATUS_OK;
}

void generation_finish(generation *g, status s, const error *err)
{
	error reason = err ? *err : (error)ERROR_INIT;
	if (g->beams)
		s = beams_leave(g, s, &reason);
	generation_result r = {
	    .status = s,
	    .error = reason,
	    .finish = s == STATUS_OK ? g->finish : FINISH_NONE,
	    .prompt_tokens = g->n_cached + g->n_source + g->n_prompt,
	    .cached_tokens = g->n_cached,
	    .completion_tokens = g->completed,
	    .call_snapshot = g->calls ? g->calls->snapshot : -1,
	    .accepted_ns = g->accepted_ns,
	    .started_ns = g->started_ns,
	    .prompted_ns = g->prompted_ns,
	    .ended_ns = clock_ns(),
	};
	if (s != STATUS_OK && r.error.status == STATUS_OK)
		error_set(&r.error, s, NULL, "%s", status_text(s));
	g->session->busy = false;
	if (g->explain && s == STATUS_OK) {
		r.log = g->session->log;
		g->session->log = NULL;
	}
	read_pass_end(g->session->model, g->whole);
	prompt_scores_free(g->scores); /* must precede its session */
	g->scores = NULL;
	if (g->temporary)
		session_free(g->session);
	g->finished(g->context, &r);
	generation_free(g);
}

void generation_grant(generation *g, int64_t credits)
{
	g->credit = credits > 0 && g->credit > INT64_MAX - credits ? INT64_MAX : g->credit + credits;
}

void generation_cancel(generation *g)
{
	*g->cancellations += !g->cancelled;
	g->cancelled = true;
}

void generation_expire(generation *g)
{
	g->expired = true;
	generation_cancel(g);
}
