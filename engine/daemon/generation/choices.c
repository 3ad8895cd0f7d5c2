/* choices.c - a set of choices: its beginning, its events on the loop, and its results. choices_private.h describes the
 * threads. */
#include "engine/daemon/generation/choices_private.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/daemon/generation/admission.h"
#include "engine/daemon/generation/choice_events.h"
#include "engine/daemon/generation/tokens.h"
#include "engine/daemon/keys/keys.h"
#include "engine/daemon/generation/event_message.h"
#include "engine/daemon/generation/prompt_logprobs.h"
#include "engine/daemon/generation/generation.h"

/* --- events ----------------------------------------------------------------------------- */

/* End the answer with an error, because it cannot be complete. */
static void choices_give_up(choices *c)
{
	if (c->error.status != STATUS_OK)
		return;
	error_set(&c->error, STATUS_NOMEM, NULL, "out of memory");
	c->cancelled = true;
	choices_credit_send(c);
}

/* Append these tokens to the choice's sequence. */
static void choices_remember(choice *x, const int32_t *ids, int64_t n)
{
	if (choice_events_remember(&x->events, ids, n) != STATUS_OK)
		choices_give_up(x->set);
}

/* True if the prompt's tokens, with their log-probabilities, are part of the text. */
static bool echoes_scores(const choices_plan *p)
{
	return p->answer.echo && p->answer.n_logprobs >= 0;
}

/* True if the next event has prompt tokens; such an event has no others. */
static bool is_in_prompt(const choice *x)
{
	const choices_plan *p = &x->set->plan;
	return p->sampling.request.score_prompt &&
	       x->n_tokens + 1 < (int64_t)p->prompt.list[x->events.index / p->sampling.samples].count;
}

/* Return an event of prompt tokens as a document. NULL: out of memory. */
static json_t *prompt_event(choice *x, event_message *m)
{
	const choices_plan *p = &x->set->plan;
	json_t *list = p->answer.n_prompt_logprobs < 0
	                   ? NULL
	                   : prompt_logprobs_list(x->events.tokenizer, &m->event, p->answer.n_prompt_logprobs);
	event_message_keep_top(m, p->answer.n_logprobs);
	json_t *object = echoes_scores(p) ? choice_events_object(&x->events, &m->event)
	                                  : json_pack("{s:i, s:s}", "index", x->events.index, "text", "");
	if (p->answer.n_prompt_logprobs < 0 || json_object_set_new(object, "prompt_logprobs", list) == 0)
		return object;
	json_decref(object);
	return NULL;
}

/* Replace the event's text by what is text of the answer. *calls: parts of calls, or NULL. */
static bool divide_event(choice *x, generation_event *e, bool last, json_t **calls)
{
	*calls = NULL;
	return !x->calls ||
	       call_reader_push(x->calls, e->text, e->text_bytes, last, &e->text, &e->text_bytes, calls) == STATUS_OK;
}

/* Return an event as a document; calls is stolen. NULL: out of memory. */
static json_t *event_object(choice *x, const generation_event *e, json_t *calls)
{
	json_t *object = choice_events_object(&x->events, e);
	if (!calls || json_object_set_new(object, "tool_calls", calls) == 0)
		return object;
	json_decref(object);
	return NULL;
}

static void send_event(choice *x, event_message *m)
{
	json_t *calls;
	stream *s = x->set->stream;
	char plain[PLAIN_EVENT_BYTES];
	if (is_in_prompt(x)) {
		stream_event(s, prompt_event(x, m));
		return;
	}
	event_message_keep_top(m, x->set->plan.answer.n_logprobs);
	if (!divide_event(x, &m->event, false, &calls))
		choices_give_up(x->set);
	else if (!calls && choice_events_plain(&x->events, &m->event))
		stream_event_text(s, plain, choice_events_write(&x->events, &m->event, plain));
	else
		stream_event(s, event_object(x, &m->event, calls));
}

void choices_deliver_event(task *t)
{
	event_message *m = (event_message *)t;
	choice *x = m->owner;
	choices *c = x->set;
	const bool in_prompt = is_in_prompt(x); /* these tokens are remembered from the start */
	x->granted--;
	c->granted--;
	if (c->plan.answer.best && !in_prompt) {
		/* Sum the log-probabilities of sampled tokens. */
		for (int i = 0; i < m->event.n_tokens; i++)
			x->logprob += (double)m->event.logprobs[i].logprob;
		x->n_scored += m->event.n_tokens;
	}
	if (c->error.status == STATUS_OK) /* otherwise the answer already has an error */
		send_event(x, m);
	x->n_tokens += m->event.n_tokens;
	if (c->plan.sampling.request.n_alpha && !in_prompt)
		choices_remember(x, m->event.tokens, m->event.n_tokens);
	if (c->place.tokens == 0)
		c->place.first_ms = uv_now(c->stream->net->loop);
	c->place.tokens += m->event.n_tokens;
	choices_credit_look(c);
	free(m);
	if (x->granted <= CHOICES_WINDOW / 2 && choices_credit_deal(c))
		choices_credit_send(c);
}

/* True if text precedes what is generated; its first token then has a space that it would not have at the start. */
static bool has_text_before(const choices *c, const choices_prompt *prompt)
{
	bool any = c->plan.session && (!c->plan.state.hidden || c->plan.state.given);
	for (size_t i = 0; i < prompt->count && !any; i++)
		any = tokenizer_token_bytes(c->plan.model->tokenizer, prompt->ids[i], NULL, 0) > 0;
	return any;
}

static void read_calls(choices *c)
{
	const response_format *f = &c->plan.sampling.format;
	for (int i = 0; f->calls.tools && i < c->n; i++)
		if (call_reader_new(&c->items[i].calls, &f->calls.form, f->calls.choice, f->stops, f->calls.n_stops,
		                    NULL) != STATUS_OK)
			choices_give_up(c);
}

static void start_done(task *t)
{
	choices *c = TASK_OWNER(t, choices, start);
	c->start_done = true;
	read_calls(c);
	for (int i = 0; c->plan.sampling.request.n_logprobs >= 0 && !c->plan.answer.echo && i < c->n; i++)
		c->items[i].events.text.started =
		    has_text_before(c, &c->plan.prompt.list[i / c->plan.sampling.samples]);
	for (int i = 0; c->plan.answer.echo && i < c->n; i++) {
		const choices_prompt *prompt = &c->plan.prompt.list[i / c->plan.sampling.samples];
		c->items[i].events.echo = prompt->ids;
		c->items[i].events.n_echo = (int64_t)prompt->count;
		c->items[i].events.echo_text = prompt->text;
	}
	for (int i = 0; c->plan.sampling.request.n_alpha && i < c->n; i++) {
		const choices_prompt *prompt = &c->plan.prompt.list[i / c->plan.sampling.samples];
		choices_remember(&c->items[i], c->prefix, c->n_prefix);
		choices_remember(&c->items[i], prompt->ids, (int64_t)prompt->count);
	}
	choices_try_finish(c);
}

/* --- beginning -------------------------------------------------------------------------- */

/* Place the set on the device of its session, or on the least loaded one. */
static void choices_enter_device(choices *c)
{
	fleet *f = generation_room_of(c->stream)->fleet;
	c->units = choices_generations(&c->plan);
	c->at = fleet_enter(f, c->plan.session ? sessions_device(c->plan.session) : FLEET_ANY, c->units);
	c->executor = fleet_executor(f, c->at);
}

static void choices_refuse(choices *c, error *err, status result)
{
	sessions *all = generation_room_of(c->stream)->sessions;
	choices_leave(c);
	if (c->plan.session && c->plan.ticket.create)
		sessions_remove(all, c->plan.session, NULL);
	else if (c->plan.session)
		sessions_release(all, c->plan.session);
	error_set(err, result, NULL, "%s", status_text(result));
	stream_error(c->stream, err, NULL);
	choices_free(c);
}

choices *choices_new(stream *s)
{
	choices *c = memory_new(1, sizeof *c);
	if (c) {
		c->stream = s;
		c->plan.prompt.start = TOKEN_NONE;
		c->snapshot_tokens = -1;
		c->plan.answer.n_logprobs = c->plan.answer.n_prompt_logprobs = -1;
		c->plan.sampling.request.n_logprobs = -1;
	}
	return c;
}

void choices_free(choices *c)
{
	if (!c)
		return;
	choices_plan *p = &c->plan;
	for (int i = 0; p->prompt.list && i < p->prompt.n; i++) {
		free(p->prompt.list[i].ids);
		free(p->prompt.list[i].source);
	}
	free(p->prompt.list);
	free(p->prompt.closed.ids);
	json_decref(p->prompt.messages);
	json_decref(p->state.answer);
	free(p->sampling.request.sampling.bias);
	selection_fini(&p->sampling.alpha);
	response_format_fini(&p->sampling.format);
	catalog_release(p->model);
	for (int i = 0; c->items && i < c->n; i++) {
		choice_events_fini(&c->items[i].events);
		call_reader_free(c->items[i].calls);
		free(c->items[i].result.log);
	}
	free(c->items);
	free(c->prefix);
	session_ticket_fini(&c->plan.ticket);
	served_adapter_free(c->adapter);
	scheduler_transfer_fini(&c->exported);
	free(c->state_text);
	free(c);
}

status choices_check_bytes(const choices_plan *p, size_t bytes, error *err)
{
	if (p->session && !sessions_is_bounded(p->session))
		return STATUS_OK;
	return tokens_check_bytes(p->model, bytes, p->model->dims.positions,
	                          p->prompt.field ? p->prompt.field : "prompt", err);
}

void choices_ask_logprobs(choices_plan *p)
{
	generation_request *r = &p->sampling.request;
	r->n_logprobs =
	    p->answer.n_logprobs > p->answer.n_prompt_logprobs ? p->answer.n_logprobs : p->answer.n_prompt_logprobs;
	if (p->answer.best && r->n_logprobs < 0)
		r->n_logprobs = 0;
	r->score_prompt = echoes_scores(p) || p->answer.n_prompt_logprobs >= 0;
	r->scores_only = !echoes_scores(p);
}

choices_plan *choices_get_plan(choices *c)
{
	return &c->plan;
}

bool choices_continue(const choices_plan *p)
{
	return p->state.given || (p->session && sessions_tokens(p->session) > 0);
}

int choices_generations(const choices_plan *p)
{
	return p->prompt.n * (p->sampling.search.beams > 1 ? p->sampling.search.beams : p->sampling.samples);
}

/* Enter all choices into admission. */
static status enter(choices *c, error *err)
{
	stream *s = c->stream;
	int64_t most = c->plan.sampling.request.max_tokens;
	c->plan.sampling.request.priority = (int)json_integer_value(json_object_get(s->params, "priority"));
	TRY(keys_check_priority(s, c->plan.sampling.request.priority, err));
	c->place = (admitted){.slots = choices_generations(&c->plan),
	                      .background = s->background,
	                      .most_tokens = most * c->n,
	                      .evict = choices_credit_evict};
	stream_full_owner(s, c->owner);
	c->plan.sampling.request.owner = c->owner;
	c->plan.sampling.request.background = s->background;
	c->plan.sampling.request.weight = keys_weight(s);
	choices_credit_look(c);
	return admission_enter(generation_room_of(s)->admission, &c->place, c->owner, uv_now(s->net->loop),
	                       &s->retry_after, err);
}

/* The request's name for what may make it too large. */
static const char *name_of_limit(const choices_prompts *p, const json_t *params, bool generates)
{
	static const char *const newer[] = {"max_output_tokens", "max_completion_tokens"};
	for (size_t i = 0; generates && i < sizeof newer / sizeof *newer; i++)
		if (json_object_get(params, newer[i]))
			return newer[i];
	return generates ? "max_tokens" : p->field ? p->field : "prompt";
}

/* Reserve the tokens of the prompts and of everything that may be generated. */
static status reserve_tokens(choices *c, error *err)
{
	const choices_prompts *p = &c->plan.prompt;
	const int64_t most = c->plan.prompts_only ? 0 : c->plan.sampling.request.max_tokens;
	int64_t n = choices_generations(&c->plan) * most;
	for (int i = 0; i < p->n; i++)
		n += (int64_t)(p->list[i].count + p->list[i].n_source);
	return keys_reserve_tokens(c->stream, name_of_limit(p, c->stream->params, most > 0), n, err);
}

/* Submit the set to the executor, also if the pool has found that it cannot start, because it may have a session's task
 * there. */
static void submit(choices *c)
{
	stream *s = c->stream;
	if (c->start_error.status == STATUS_OK)
		error_settle(&c->start_error, reserve_tokens(c, &c->start_error));
	c->place.stalled = false;
	choices_credit_look(c);
	choices_credit_deal(c);
	for (int i = 0; i < c->n; i++) {
		c->items[i].credit = c->items[i].pending;
		c->items[i].pending = 0;
	}
	c->start = (task){.prepare = choices_prepare_start, .run = choices_run_start, .done = start_done};
	if (!executor_submit(c->executor, &c->start)) {
		error_set(&c->start_error, STATUS_BUSY, NULL, "too many requests are waiting");
		executor_control(c->executor, &c->start);
	}
	s->watch = &choices_credit_watch;
	if (s->cancelled)
		choices_credit_watch.cancel(s);
}

static status read_prompts(choices *c, error *err)
{
	choices_plan *p = &c->plan;
	TRY(p->prompt.read(p, err));
	return p->prompt.check ? p->prompt.check(p, c->stream->params, err) : STATUS_OK;
}

static void choices_pool_read(uv_work_t *work)
{
	choices *c = work->data;
	choices_plan *p = &c->plan;
	if (p->prompt.read)
		error_settle(&c->start_error, read_prompts(c, &c->start_error));
	if (c->start_error.status == STATUS_OK) {
		error_settle(&c->start_error,
		             response_format_compile(&p->sampling.format, p->model, c->at, &c->start_error));
		if (c->start_error.status != STATUS_OK && p->prompt.rename)
			p->prompt.rename(p->prompt.unread, &c->start_error);
	}
	p->sampling.request.constraint = p->sampling.format.constraint;
	p->sampling.request.constraint_field = p->sampling.format.field;
	if (c->start_error.status == STATUS_OK && p->state.given)
		error_settle(&c->start_error, choices_decode_state(c, &c->start_error));
	if (c->start_error.status == STATUS_OK && session_ticket_has_work(&p->ticket))
		session_ticket_fetch(&p->ticket);
}

static void prompts_read(uv_work_t *work, int cancelled)
{
	choices *c = work->data;
	const stream *s = c->stream;
	(void)cancelled; /* cannot be cancelled */
	if (c->start_error.status == STATUS_OK && s->cancelled && !stream_detached(s))
		error_set(&c->start_error, STATUS_CANCELLED, NULL, "cancelled");
	submit(c);
}

void choices_begin(choices *c)
{
	stream *s = c->stream;
	c->n = c->plan.prompt.n * c->plan.sampling.samples;
	c->items = memory_new((size_t)c->n, sizeof *c->items);
	s->context = c;
	error err = ERROR_INIT;
	if (!c->items) {
		choices_refuse(c, &err, STATUS_NOMEM);
		return;
	}
	status result = enter(c, &err);
	if (result != STATUS_OK) {
		choices_refuse(c, &err, result);
		return;
	}
	choices_enter_device(c);
	for (int i = 0; i < c->n; i++) {
		c->items[i].set = c;
		c->items[i].events =
		    (choice_events){.tokenizer = c->plan.model->tokenizer,
		                    .index = i,
		                    .chat = c->plan.answer.chat,
		                    .model = c->plan.session && !c->plan.state.hidden ? c->plan.model->id : NULL};
	}
	c->read.data = c;
	if (!c->plan.prompt.read && !c->plan.sampling.format.constrains && !c->plan.state.given &&
	    !session_ticket_has_work(&c->plan.ticket))
		submit(c);
	else if (uv_queue_work(s->net->loop, &c->read, choices_pool_read, prompts_read) != 0)
		choices_refuse(c, &err, STATUS_NOMEM);
}

stream *choices_stream(const choices *c)
{
	return c->stream;
}

float *choices_take_log(choices *c, int i)
{
	float *log = c->items[i].result.log;
	c->items[i].result.log = NULL;
	return log;
}

int choices_count(const choices *c)
{
	return c->n;
}

const generation_result *choices_result(const choices *c, int i)
{
	return &c->items[i].result;
}

double choices_score(const choices *c, int i)
{
	const choice *x = &c->items[i];
	return x->n_scored ? x->logprob / (double)x->n_scored : 0;
}

bool choices_take_last(choices *c, int i, json_t **event)
{
	choice *x = &c->items[i];
	static const token_logprob none;
	generation_event e = {.text = "", .logprobs = x->events.echo && echoes_scores(&c->plan) ? &none : NULL};
	json_t *calls;
	*event = NULL;
	if (!divide_event(x, &e, true, &calls))
		return false;
	const bool requested = x->events.echo || e.text_bytes > 0 || calls;
	*event = requested ? event_object(x, &e, calls) : NULL;
	return !requested || *event;
}

bool choices_called(const choices *c, int i)
{
	return c->items[i].calls && call_reader_called(c->items[i].calls);
}
