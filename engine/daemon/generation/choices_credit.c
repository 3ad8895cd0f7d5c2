/* choices_credit.c - divides the credit of a client among the choices of its request, and cancels them. */
#include "engine/daemon/generation/choices_private.h"

#include "engine/daemon/generation/generation.h"

static void run_control(task *t, device *d)
{
	choices *c = TASK_OWNER(t, choices, control);
	(void)d;
	c->start_cancelled |= c->control_cancels;
	for (int i = 0; i < c->n; i++) {
		choice *x = &c->items[i];
		x->credit += x->handed;
		if (x->running && x->handed)
			generation_grant(x->running, x->handed);
		x->handed = 0;
		if (x->running && c->control_expires)
			generation_expire(x->running);
		else if (x->running && c->control_cancels)
			generation_cancel(x->running);
	}
}

static void control_done(task *t)
{
	choices *c = TASK_OWNER(t, choices, control);
	bool more = c->cancelled && !c->control_cancels;
	c->control_under_way = false;
	for (int i = 0; i < c->n; i++)
		more |= c->items[i].pending > 0;
	if (more && (!c->start_done || c->ended < c->started))
		choices_credit_send(c);
	else
		choices_try_finish(c);
}

void choices_credit_send(choices *c)
{
	if (c->control_under_way)
		return; /* control_done sends what has been collected */
	for (int i = 0; i < c->n; i++) {
		c->items[i].handed = c->items[i].pending;
		c->items[i].pending = 0;
	}
	c->control_under_way = true;
	c->control_cancels = c->cancelled;
	c->control_expires = c->cancelled && c->stream->expired && c->error.status == STATUS_OK;
	c->control = (task){.run = run_control, .done = control_done};
	executor_control(c->executor, &c->control);
}

bool choices_credit_deal(choices *c)
{
	int live = c->n - c->ended;
	int64_t left = stream_ready(c->stream) - c->granted;
	bool any = false;
	for (int i = 0; i < c->n && left > 0 && live > 0; i++) {
		choice *x = &c->items[c->turn];
		c->turn = (c->turn + 1) % c->n;
		if (x->ended || x->granted > CHOICES_WINDOW / 2)
			continue;
		int64_t give = left / live > 0 ? left / live : 1;
		if (give > CHOICES_WINDOW - x->granted)
			give = CHOICES_WINDOW - x->granted;
		x->granted += give;
		x->pending += give;
		c->granted += give;
		left -= give;
		any = true;
	}
	return any;
}

void choices_credit_look(choices *c)
{
	bool sends = c->plan.sampling.request.max_tokens > 0 || c->plan.sampling.request.score_prompt;
	if (c->place.stalled || !sends || c->stream->credit > 0 || stream_detached(c->stream))
		return;
	c->place.stalled = true;
	c->place.stalled_ms = uv_now(c->stream->net->loop);
}

static void choices_credit_on_credit(stream *s)
{
	choices *c = s->context;
	c->place.stalled = false;
	choices_credit_look(c);
	if (choices_credit_deal(c))
		choices_credit_send(c);
}

void choices_credit_evict(admitted *x)
{
	choices *c = TASK_OWNER(x, choices, place);
	if (c->error.status == STATUS_OK)
		error_set(&c->error, STATUS_BUSY, NULL,
		          "the stream was not read for %d s while other requests waited for its place",
		          ADMISSION_STALL_MS / 1000);
	c->cancelled = true;
	choices_credit_send(c);
}

static void choices_credit_on_cancel(stream *s)
{
	choices *c = s->context;
	if (stream_detached(s)) { /* continues, so that a repeated request receives the answer */
		choices_credit_on_credit(s);
		return;
	}
	c->cancelled = true;
	choices_credit_send(c);
}

const stream_watch choices_credit_watch = {.credit = choices_credit_on_credit, .cancel = choices_credit_on_cancel};
