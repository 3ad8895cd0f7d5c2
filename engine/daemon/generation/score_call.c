#include "engine/daemon/generation/score_call.h"

#include "engine/daemon/keys/keys.h"

static executor *executor_of(const score_call *t)
{
	return fleet_executor(t->fleet, t->device);
}

static void try_finish(score_call *t)
{
	if (!t->over || t->control_under_way)
		return;
	fleet_leave(t->fleet, t->device, 1);
	if (t->stream)
		t->stream->watch = NULL;
	if (t->result != STATUS_OK)
		error_set(&t->error, t->result, NULL, "%s", status_text(t->result));
	t->finished(t);
}

static void ended(void *context, status s, const error *err)
{
	score_call *t = context;
	t->scoring = NULL;
	t->result = s;
	t->error = *err;
	executor_post(executor_of(t), &t->ended);
}

static bool prepare_start(task *start, device *d)
{
	const score_call *t = TASK_OWNER(start, score_call, start);
	return t->cancelled || catalog_prepare(t->model, d);
}

static status score_call_begin(score_call *t, device *d)
{
	served_model *m;
	if (t->cancelled)
		return STATUS_CANCELLED;
	t->request.finished = ended;
	t->request.context = t;
	TRY(catalog_model(t->model, d, &m, &t->error));
	return scheduler_score(device_scheduler(d), m, &t->request, &t->scoring, &t->error);
}

static void run_start(task *start, device *d)
{
	score_call *t = TASK_OWNER(start, score_call, start);
	t->result = score_call_begin(t, d);
	t->started = t->result == STATUS_OK;
}

static void start_done(task *start)
{
	score_call *t = TASK_OWNER(start, score_call, start);
	t->over |= !t->started;
	try_finish(t);
}

static void end_done(task *ended)
{
	score_call *t = TASK_OWNER(ended, score_call, ended);
	t->over = true;
	try_finish(t);
}

static void run_control(task *control, device *d)
{
	score_call *t = TASK_OWNER(control, score_call, control);
	(void)d;
	t->cancelled = true;
	if (t->scoring)
		score_task_cancel(t->scoring);
}

static void control_done(task *control)
{
	score_call *t = TASK_OWNER(control, score_call, control);
	t->control_under_way = false;
	try_finish(t);
}

void score_call_cancel(score_call *t)
{
	if (t->control_under_way)
		return;
	t->control_under_way = true;
	t->control = (task){.run = run_control, .done = control_done};
	executor_control(executor_of(t), &t->control);
}

static void score_call_on_cancel(stream *s)
{
	score_call_cancel(s->context);
}

/* Set the place of the score task among others. */
static status read_order(score_call *t, const stream *s, error *err)
{
	stream_full_owner(s, t->owner);
	t->request.owner = t->owner;
	t->request.background = s->background;
	t->request.weight = keys_weight(s);
	t->request.priority = (int)json_integer_value(json_object_get(s->params, "priority"));
	return keys_check_priority(s, t->request.priority, err);
}

void score_call_submit(score_call *t)
{
	static const stream_watch watch = {.cancel = score_call_on_cancel};
	stream *s = t->stream;
	t->device = fleet_enter(t->fleet, t->device, 1);
	t->result = STATUS_CANCELLED;
	t->over = true; /* unless `finished` takes it */
	t->start = (task){.prepare = prepare_start, .run = run_start, .done = start_done};
	t->ended = (task){.done = end_done};
	if (s) {
		s->context = t;
		s->watch = &watch;
	}
	const status order = s ? read_order(t, s, &t->error) : STATUS_OK;
	if (order != STATUS_OK) {
		t->result = order;
	} else if (!s || !s->cancelled) {
		t->over = !executor_submit(executor_of(t), &t->start);
		if (t->over)
			t->result = error_set(&t->error, STATUS_BUSY, NULL, "too many requests are waiting");
	}
	if (t->over)
		try_finish(t);
}
