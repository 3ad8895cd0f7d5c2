/* choices_run.c - a set on the executor: it starts the generations and receives the scheduler's callbacks. */
#include <stdio.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/daemon/generation/choices_private.h"
#include "engine/daemon/generation/event_message.h"

static int64_t on_event(void *context, const generation_event *e)
{
	choice *x = context;
	event_message *m = event_message_new(e, x, choices_deliver_event);
	if (m) {
		executor_post(x->set->executor, &m->task);
	} else {
		x->starved = true; /* a stream must not lack an event */
		generation_cancel(x->running);
	}
	return --x->credit;
}

static void on_finished(void *context, const generation_result *r)
{
	choice *x = context;
	choices *c = x->set;
	x->running = NULL;
	x->result = *r;
	if (x->starved) {
		x->result.status = STATUS_NOMEM;
		x->result.error = (error)ERROR_INIT;
	}
	if (c->plan.session)
		session_ticket_look(&c->change, c->device, c->plan.ticket.id);
	x->ended_task = (task){.done = choices_deliver_end};
	executor_post(c->executor, &x->ended_task);
}

/* Copy the tokens that the session has read so far; the offsets of later tokens depend on them. */
static status copy_prefix(choices *c, session *x, error *err)
{
	const float *scores;
	if (!x || c->plan.sampling.request.n_alpha == 0)
		return STATUS_OK;
	TRY(scheduler_session_log(x, &scores, &c->n_prefix, err));
	c->prefix = memory_new((size_t)c->n_prefix, sizeof *c->prefix);
	if (!c->prefix) {
		c->n_prefix = 0;
		return STATUS_NOMEM;
	}
	scheduler_session_tokens(x, 0, c->n_prefix, c->prefix);
	return STATUS_OK;
}

static generation_request request_of(choices *c, int i)
{
	choice *item = &c->items[i];
	const choices_prompt *prompt = &c->plan.prompt.list[i / c->plan.sampling.samples];
	generation_request r = c->plan.sampling.request;
	r.adapter = c->adapter;
	if (c->plan.session) {
		const automatic_snapshots automatic = sessions_automatic(c->plan.session);
		const call_rules *calls = &c->plan.sampling.format.calls;
		r.snapshot_every = automatic.every;
		r.calls = automatic.before_calls && calls->tools ? &calls->form : NULL;
	}
	r.prompt = prompt->ids;
	r.n_prompt = (int64_t)prompt->count;
	r.source = prompt->source;
	r.n_source = (int64_t)prompt->n_source;
	r.sampling.seed += (uint64_t)(c->plan.sampling.seeded ? i % c->plan.sampling.samples : i);
	r.event = on_event;
	r.finished = on_finished;
	r.context = item;
	r.credit = item->credit;
	return r;
}

/* Start the next samples of a prompt. */
static status start_samples(choices *c, device *d, served_model *m, session *x, int prompt, error *err)
{
	while (c->started < (prompt + 1) * c->plan.sampling.samples) {
		const generation_request r = request_of(c, c->started);
		TRY(scheduler_generate(device_scheduler(d), m, x, &r, &c->items[c->started].running, err));
		c->started++;
	}
	return STATUS_OK;
}

/* Start a search whose hypotheses are all samples of a prompt. */
static status start_search(choices *c, device *d, served_model *m, int prompt, error *err)
{
	generation_request r[BEAM_SEARCH_MAX];
	generation *found[BEAM_SEARCH_MAX];
	const int n = c->plan.sampling.samples, first = prompt * n;
	for (int i = 0; i < n && i < BEAM_SEARCH_MAX; i++)
		r[i] = request_of(c, first + i);
	TRY(scheduler_search(device_scheduler(d), m, &c->plan.sampling.search, r, n, found, err));
	for (int i = 0; i < n; i++)
		c->items[first + i].running = found[i];
	c->started += n;
	return STATUS_OK;
}

static status start_all(choices *c, device *d, error *err)
{
	served_model *m;
	session *x = NULL;
	if (c->start_cancelled)
		return error_set(err, STATUS_CANCELLED, NULL, "cancelled");
	if (c->start_error.status != STATUS_OK)
		return c->start_error.status;
	if (c->plan.session) {
		TRY(session_ticket_redeem(&c->plan.ticket, c->plan.model, d, &x, err));
		TRY(copy_prefix(c, x, err));
		if (c->plan.prompt.choose)
			c->plan.prompt.choose(&c->plan, x);
	}
	TRY(catalog_model(c->plan.model, d, &m, err));
	if (c->plan.adapter.id[0] && !c->adapter)
		return error_set(err, STATUS_DEVICE, NULL, "the compute device failed");
	for (int i = 0; i < c->plan.prompt.n && !c->plan.prompts_only; i++)
		TRY(c->plan.sampling.search.beams > 1 ? start_search(c, d, m, i, err)
		                                      : start_samples(c, d, m, x, i, err));
	return STATUS_OK;
}

/* Copy the next part of the session's state, before it changes. False: there is more to copy. (The snapshot of a
 * durable session is its stored state.) */
static bool snapshot_step(choices *c, device *d)
{
	session *x;
	session_info info;
	bool done = false;
	error *err = &c->start_error;
	status s = session_ticket_redeem(&c->plan.ticket, c->plan.model, d, &x, err);
	if (s == STATUS_OK)
		s = scheduler_session_snapshot_step(device_scheduler(d), x, c->plan.snapshot, &c->snapshot_moved, &done,
		                                    err);
	error_settle(err, s);
	if (done) {
		scheduler_session_info(x, &info);
		c->snapshot_tokens = info.tokens;
	}
	return s != STATUS_OK || done;
}

/* Bring the states with which the prompts begin to memory. False: one is being read. */
static bool prefixes_step(choices *c, device *d)
{
	scheduler *s = device_scheduler(d);
	if (c->plan.session || c->plan.prompts_only || c->start_cancelled || !s)
		return true;
	for (; c->prefix_next < c->plan.prompt.n; c->prefix_next++) {
		const generation_request r = request_of(c, c->prefix_next * c->plan.sampling.samples);
		if (!scheduler_prefix_ready(s, c->plan.model->id, &r, &c->prefix_wait)) {
			device_wait(d, c->plan.model->id);
			return false;
		}
	}
	return true;
}

/* Open the adapter once the model is loaded, before a state is imported that belongs to both. False: it is not loaded
 * yet. */
static bool adapter_step(choices *c, device *d)
{
	served_model *m;
	served_adapter *opened;
	error ignored = ERROR_INIT; /* start_all gets it again */
	if (!c->plan.adapter.id[0] || c->adapter || c->start_error.status != STATUS_OK)
		return true;
	if (!catalog_prepare(c->plan.model, d))
		return false;
	if (catalog_model(c->plan.model, d, &m, &ignored) != STATUS_OK)
		return true;
	error_settle(&c->start_error, adapters_open(&c->plan.adapter, m, d, &opened, &c->start_error));
	c->plan.ticket.options.adapter = c->plan.ticket.import.adapter = c->adapter = opened;
	return true;
}

bool choices_prepare_start(task *t, device *d)
{
	choices *c = TASK_OWNER(t, choices, start);
	const bool copies = c->plan.snapshot[0] && !c->plan.ticket.options.durable && c->snapshot_tokens < 0;
	if (!adapter_step(c, d))
		return false;
	return c->start_error.status != STATUS_OK || (session_ticket_prepare(&c->plan.ticket, c->plan.model, d) &&
	                                              (!copies || snapshot_step(c, d)) && prefixes_step(c, d));
}

void choices_run_start(task *t, device *d)
{
	choices *c = TASK_OWNER(t, choices, start);
	c->device = d;
	status s = start_all(c, d, &c->start_error);
	if (s == STATUS_OK)
		return;
	error_set(&c->start_error, s, NULL, "%s", status_text(s));
	/* Replace the scheduler's names of a request's fields with those of the client. */
	char *param = c->start_error.param;
	const char *name = strcmp(param, "prompt") == 0   ? c->plan.prompt.field
	                   : strcmp(param, "source") == 0 ? c->plan.prompt.source_field
	                   : strcmp(param, "state") == 0  ? c->plan.state.field
	                                                  : NULL;
	if (name)
		snprintf(param, sizeof c->start_error.param, "%s", name);
	if (c->plan.session && c->started == 0)
		session_ticket_look(&c->change, d, c->plan.ticket.id);
	for (int i = 0; i < c->started; i++)
		if (c->items[i].running)
			generation_cancel(c->items[i].running);
}
