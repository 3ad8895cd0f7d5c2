/* choices_end.c - the end of a set: its error, times, counted tokens, snapshot and answer. Loop thread. */
#include "engine/daemon/generation/choices_private.h"
#include "engine/daemon/generation/generation.h"
#include "engine/daemon/keys/keys.h"

/* If the time was over when some choices had tokens, the others are part of the answer, without text. */
static void settle_expired(choices *c)
{
	bool any = false;
	for (int i = 0; i < c->started; i++)
		any |= c->items[i].result.status == STATUS_OK;
	for (int i = 0; any && i < c->started; i++) {
		generation_result *r = &c->items[i].result;
		if (r->status != STATUS_TIMEOUT)
			continue;
		r->status = STATUS_OK;
		r->finish = FINISH_TIMEOUT;
	}
}

/* Choose the error of the answer: why the set could not start, otherwise the first failure. A cancellation caused by
 * another failure is never the first. */
static void choose_error(choices *c)
{
	if (c->start_error.status != STATUS_OK)
		c->error = c->start_error;
	settle_expired(c);
	for (int i = 0; i < c->started && c->error.status == STATUS_OK; i++) {
		const generation_result *r = &c->items[i].result;
		if (r->status != STATUS_OK)
			error_set(&c->error, r->status, r->error.param, "%s",
			          r->error.status != STATUS_OK ? error_message(&r->error) : status_text(r->status));
	}
}

static json_t *settled_result(session_settlement *x)
{
	choices *c = TASK_OWNER(x, choices, settlement);
	return c->plan.answer.result(c);
}

static void settled(session_settlement *x)
{
	choices *c = TASK_OWNER(x, choices, settlement);
	if (c->plan.state.hidden && x->entry)
		sessions_remove(x->sessions, x->entry, NULL);
	choices_free(c);
}

void choices_settle(choices *c)
{
	c->settlement = (session_settlement){.stream = c->stream,
	                                     .sessions = generation_room_of(c->stream)->sessions,
	                                     .entry = c->plan.session,
	                                     .ticket = &c->plan.ticket,
	                                     .making = c->plan.ticket.create,
	                                     .changed = c->started > 0,
	                                     .all_or_nothing = c->plan.all_or_nothing || c->stream->key,
	                                     .change = c->change,
	                                     .error = c->error,
	                                     .result = settled_result,
	                                     .settled = settled};
	session_settle(&c->settlement);
}

void choices_leave(choices *c)
{
	fleet_leave(generation_room_of(c->stream)->fleet, c->at, c->units);
	admission_leave(generation_room_of(c->stream)->admission, &c->place, uv_now(c->stream->net->loop));
}

static void note_first(uint64_t *first, uint64_t at)
{
	if (at && (!*first || at < *first))
		*first = at;
}

/* Set the stream's times: those of the first choice, and the end of the last. */
static void choices_note_times(choices *c)
{
	stream_times *t = &c->stream->times;
	for (int i = 0; i < c->started; i++) {
		const generation_result *r = &c->items[i].result;
		note_first(&t->queued, r->accepted_ns);
		note_first(&t->started, r->started_ns);
		note_first(&t->first_token, r->prompted_ns);
		t->ended = r->ended_ns > t->ended ? r->ended_ns : t->ended;
	}
}

/* Keep the snapshot of a session that is not durable, if it has been made. A durable one's is settled with it. */
static void keep_snapshot(choices *c)
{
	sessions *all = generation_room_of(c->stream)->sessions;
	if (c->snapshot_tokens < 0) {
		sessions_cancel_snapshots(all, c->plan.session);
		return;
	}
	sessions_adding(c->plan.session)->tokens = c->snapshot_tokens;
	sessions_keep_snapshots(all, c->plan.session);
}

/* Correct the reserved tokens to those that were read and generated. */
static void correct_tokens(const choices *c)
{
	int64_t n = 0;
	if (c->plan.prompts_only && c->error.status == STATUS_OK)
		return; /* the prompts are still to be read */
	for (int i = 0; i < c->started; i++) {
		const generation_result *r = &c->items[i].result;
		n += r->completion_tokens + (i % c->plan.sampling.samples == 0 ? r->prompt_tokens : 0);
	}
	keys_count_tokens(c->stream, n);
}

void choices_try_finish(choices *c)
{
	if (!c->start_done || c->ended < c->started || c->control_under_way)
		return;
	choose_error(c);
	choices_note_times(c);
	correct_tokens(c);
	c->stream->watch = NULL;
	choices_leave(c);
	if (c->plan.session && c->plan.snapshot[0] && !sessions_is_durable(c->plan.session))
		keep_snapshot(c);
	if (c->plan.session && c->plan.state.returned && c->error.status == STATUS_OK) {
		choices_export(c);
		return;
	}
	if (c->plan.session) {
		choices_settle(c);
		return;
	}
	if (c->error.status == STATUS_OK && c->plan.answer.send)
		c->plan.answer.send(c);
	else if (c->error.status == STATUS_OK)
		stream_result(c->stream, c->plan.answer.result(c));
	else
		stream_error(c->stream, &c->error, NULL);
	choices_free(c);
}

void choices_deliver_end(task *t)
{
	choice *x = TASK_OWNER(t, choice, ended_task);
	choices *c = x->set;
	x->ended = true;
	c->ended++;
	c->granted -= x->granted;
	x->granted = x->pending = 0;
	if (c->start_done && c->ended < c->n && choices_credit_deal(c))
		choices_credit_send(c);
	choices_try_finish(c);
}
