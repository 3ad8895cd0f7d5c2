#include "engine/daemon/compute/fleet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

typedef struct fleet_member {
	device *device;
	executor *executor; /* NULL: not started */
	bool stopped;
	int units;     /* generations and score tasks */
	int trainings; /* training runs */
	int sessions;  /* with a slot */
} fleet_member;

struct fleet {
	int n;
	atomic_int n_open; /* devices that are open or were not yet found closed */
	char description[FLEET_DESCRIPTION_BYTES];
	fleet_member members[FLEET_MAX];
};

/* --- opening and closing ------------------------------------------------------------ */

static status open_members(fleet *f, const device_options *options, int n, error *err)
{
	for (int i = 0; i < n; i++) {
		device_options o = options[i];
		o.n_open = &f->n_open;
		if (i > 0 && strcmp(o.backend, "auto") == 0)
			o.backend = device_backend_name(f->members[0].device);
		error reason = ERROR_INIT;
		const status s = device_open(&f->members[i].device, &o, &reason);
		if (s != STATUS_OK && n > 1)
			error_set(err, s, reason.param, "%s (--device %d)", error_message(&reason), o.device);
		if (s != STATUS_OK)
			return error_set(err, s, reason.param, "%s", error_message(&reason));
		f->n++;
		if (n > 1 && !o.cpu && strcmp(device_backend_name(f->members[i].device), "cpu") == 0)
			return error_set(err, STATUS_INVALID, "device",
			                 "--device names %d devices, but the CPU backend has one", n);
	}
	return STATUS_OK;
}

status fleet_open(fleet **out, const device_options *options, int n, error *err)
{
	*out = NULL;
	fleet *f = memory_new(1, sizeof *f);
	if (!f)
		return STATUS_NOMEM;
	atomic_init(&f->n_open, n);
	status s = open_members(f, options, n, err);
	if (s != STATUS_OK) {
		fleet_free(f);
		return s;
	}
	const char *first = device_description(f->members[0].device);
	snprintf(f->description, sizeof f->description, "%s", first);
	if (n > 1)
		snprintf(f->description, sizeof f->description, "%s (%d devices)", first, n);
	*out = f;
	return STATUS_OK;
}

status fleet_start(fleet *f, uv_loop_t *loop, error *err)
{
	for (int i = 0; i < f->n; i++)
		TRY(executor_start(&f->members[i].executor, loop, &device_work, f->members[i].device, err));
	return STATUS_OK;
}

void fleet_stop(fleet *f)
{
	for (int i = 0; i < f->n; i++) {
		fleet_member *m = &f->members[i];
		if (m->executor && !m->stopped)
			executor_stop(m->executor);
		m->stopped = true;
	}
}

void fleet_free(fleet *f)
{
	if (!f)
		return;
	for (int i = 0; i < f->n; i++)
		executor_free(f->members[i].executor);
	for (int i = 0; i < f->n; i++)
		device_close(f->members[i].device);
	free(f);
}

/* --- what the devices are and do ---------------------------------------------------------- */

int fleet_count(const fleet *f)
{
	return f->n;
}

device *fleet_device(const fleet *f, int i)
{
	return f->members[i].device;
}

executor *fleet_executor(const fleet *f, int i)
{
	return f->members[i].executor;
}

const char *fleet_backend_name(const fleet *f)
{
	return device_backend_name(f->members[0].device);
}

const char *fleet_description(const fleet *f)
{
	return f->description;
}

void fleet_device_list(const fleet *f, char out[DEVICE_LIST_BYTES])
{
	int numbers[FLEET_MAX];
	for (int i = 0; i < f->n; i++)
		numbers[i] = device_number(f->members[i].device);
	device_list_write(numbers, f->n, out);
}

int fleet_threads(const fleet *f)
{
	int threads = 0;
	for (int i = 0; i < f->n; i++)
		threads += device_threads(f->members[i].device);
	return threads;
}

int fleet_pending(const fleet *f)
{
	int pending = 0;
	for (int i = 0; i < f->n; i++)
		pending += executor_pending(f->members[i].executor);
	return pending;
}

bool fleet_is_open(const fleet *f)
{
	int i = 0;
	while (i < f->n && !device_is_open(f->members[i].device))
		i++;
	return i < f->n;
}

bool fleet_is_left(const fleet *f)
{
	bool left = false;
	for (int i = 0; i < f->n; i++)
		left |= device_is_left(f->members[i].device);
	return left && !fleet_is_open(f);
}

bool fleet_wants_process(const fleet *f)
{
	bool wants = false;
	for (int i = 0; i < f->n; i++)
		wants |= device_wants_process(f->members[i].device);
	return wants && fleet_is_open(f);
}

void fleet_hand_over(const fleet *f, device_history *history)
{
	for (int i = 0; i < f->n; i++)
		device_hand_over(f->members[i].device, &history[i]);
}

static void add_stats(device_stats *all, const device_stats *one)
{
	const scheduler_stats *s = &one->scheduler;
	all->scheduler.models += s->models;
	all->scheduler.sessions += s->sessions;
	all->scheduler.running += s->running;
	all->scheduler.waiting += s->waiting;
	all->scheduler.state_bytes += s->state_bytes;
	all->scheduler.prefix_bytes += s->prefix_bytes;
	all->scheduler.cached_tokens += s->cached_tokens;
	all->scheduler.prefix_too_large += s->prefix_too_large;
	all->scheduler.prefix_thinned += s->prefix_thinned;
	all->scheduler.prompt_tokens += s->prompt_tokens;
	all->scheduler.generated_tokens += s->generated_tokens;
	all->scheduler.ticks += s->ticks;
	all->scheduler.batched_sequences += s->batched_sequences;
	for (int i = 0; i <= DEVICE_TICK_BUCKETS; i++)
		all->tick_count[i] += one->tick_count[i];
	all->tick_seconds += one->tick_seconds;
	all->training_steps += one->training_steps;
	all->training_tokens += one->training_tokens;
	all->training_tokens_per_second += one->training_tokens_per_second;
	all->restarts += one->restarts;
	all->processes = one->processes; /* equal in all */
}

void fleet_snapshot(const fleet *f, device_stats *out)
{
	bool open = false;
	*out = (device_stats){0};
	for (int i = 0; i < f->n; i++) {
		device_stats one;
		device_snapshot(f->members[i].device, &one);
		add_stats(out, &one);
		open |= !one.problem[0];
		if (!out->problem[0])
			memcpy(out->problem, one.problem, sizeof out->problem);
	}
	if (open)
		out->problem[0] = 0;
}

bool fleet_has_loaded(const fleet *f, const char *id)
{
	int i = 0;
	while (i < f->n && !device_has_loaded(f->members[i].device, id))
		i++;
	return i < f->n;
}

/* --- placement ----------------------------------------------------------------------------- */

static int load_of(const fleet_member *m)
{
	return (m->units + 1) * (1 + m->trainings);
}

static int users_of(const fleet_member *m)
{
	return m->sessions + m->units;
}

/* Return the open device with the least `first`, then the least load. */
static int find_least(const fleet *f, int (*first)(const fleet_member *m))
{
	int best = -1;
	for (int i = 0; i < f->n; i++) {
		const fleet_member *m = &f->members[i], *b = best < 0 ? NULL : &f->members[best];
		if (device_is_open(m->device) &&
		    (!b || first(m) < first(b) || (first(m) == first(b) && load_of(m) < load_of(b))))
			best = i;
	}
	return best < 0 ? 0 : best;
}

int fleet_enter(fleet *f, int i, int units)
{
	i = i == FLEET_ANY ? find_least(f, load_of) : i;
	f->members[i].units += units;
	return i;
}

void fleet_leave(fleet *f, int i, int units)
{
	f->members[i].units -= units;
}

int fleet_enter_training(fleet *f)
{
	const int i = find_least(f, users_of);
	f->members[i].trainings++;
	return i;
}

void fleet_leave_training(fleet *f, int i)
{
	f->members[i].trainings--;
}

bool fleet_trains(const fleet *f, int i)
{
	return f->members[i].trainings > 0;
}

void fleet_count_sessions(fleet *f, int i, int change)
{
	f->members[i].sessions += change;
}

static int sessions_of(const fleet_member *m)
{
	return m->sessions;
}

int fleet_sessions(const fleet *f, int i)
{
	return f->members[i].sessions;
}

int fleet_emptiest(const fleet *f)
{
	return find_least(f, sessions_of);
}

/* --- rounds --------------------------------------------------------------------------------- */

static bool prepare_round(task *t, device *d)
{
	fleet_round *r = TASK_OWNER(t, fleet_round, task);
	return r->prepare(r, d);
}

static void run_round(task *t, device *d)
{
	fleet_round *r = TASK_OWNER(t, fleet_round, task);
	if (r->stage == FLEET_UNDO)
		r->undo(r, d);
	else
		r->result = r->stage == FLEET_CHECK ? r->check(r, d) : r->run(r, d);
}

/* Set r->at to the next device of the stage, from r->at on; false: there is none. */
static bool find_next(fleet_round *r)
{
	const fleet *f = r->fleet;
	const bool skip = r->only_open && fleet_is_open(f);
	while (r->at <= r->last && skip && !device_is_open(f->members[r->at].device))
		r->at++;
	return r->at <= r->last;
}

/* Return the executor of the first device of a stage. If the last open device was lost meanwhile, its error becomes the
 * result. */
static executor *begin_stage(fleet_round *r, fleet_stage stage, int last)
{
	r->stage = stage;
	r->at = 0;
	r->last = last;
	if (!find_next(r))
		r->at = 0;
	return r->fleet->members[r->at].executor;
}

/* Return the executor of the round's next task; NULL: the round is over. */
static executor *continue_round(fleet_round *r)
{
	const int at = r->at++;
	const bool failed = r->stage != FLEET_UNDO && r->result != STATUS_OK;
	if (!failed && find_next(r))
		return r->fleet->members[r->at].executor;
	if (!failed && r->stage == FLEET_CHECK)
		return begin_stage(r, FLEET_RUN, r->last);
	if (!failed && r->stage == FLEET_RUN && r->commit)
		r->result = r->commit(r);
	return r->stage == FLEET_RUN && r->result != STATUS_OK && r->undo ? begin_stage(r, FLEET_UNDO, at) : NULL;
}

static void round_done(task *t)
{
	fleet_round *r = TASK_OWNER(t, fleet_round, task);
	executor *next = continue_round(r);
	if (next)
		executor_control(next, t);
	else
		r->done(r);
}

bool fleet_begin_round(const fleet *f, fleet_round *r)
{
	r->fleet = f;
	r->result = STATUS_OK;
	r->task = (task){.prepare = r->prepare ? prepare_round : NULL, .run = run_round, .done = round_done};
	return executor_submit(begin_stage(r, r->check ? FLEET_CHECK : FLEET_RUN, f->n - 1), &r->task);
}
