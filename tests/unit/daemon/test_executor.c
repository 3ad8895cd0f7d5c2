/* The executor with a device made by the test: the order of tasks and their results. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/daemon/compute/executor.h"

/* Written by the executor thread, and read by the test while it runs. */
struct device {
	atomic_uint_fast64_t foreground_ns, background_ns, foreground_turns, background_turns, most_budget;
	atomic_uint_fast64_t unit_ns, op_ns; /* duration of a turn; 0: no work */
	atomic_int slice; /* state of a slice that waits for the test: AWAITED, WAITS, then the test sets GO; 0: none */
	uint64_t units;   /* foreground turns before that slice; then those between it and the next one */
	atomic_int row, longest_row; /* slices since the latest foreground turn */
	int order[64], n_order;
	executor *posts; /* turns post messages to this executor; NULL: none */
	task posted[64];
	int n_posted;
	int yields, slices_since; /* calls before the latest foreground turn; slices since */
	int most_yields;          /* in a turn with both kinds of work */
};

enum { AWAITED = 1, WAITS, GO, COUNTED };

#define PATIENCE_NS 5000000000u

static void spin(uint64_t ns)
{
	for (uint64_t began = clock_ns(); clock_ns() - began < ns;)
		;
}

static atomic_int yields;

/* Replaces that of the C library. */
int sched_yield(void)
{
	yields++;
	return 0;
}

static void post_next(device *d)
{
	if (d->posts && d->n_posted < 64)
		executor_post(d->posts, &d->posted[d->n_posted++]);
}

/* Count the calls since the latest foreground turn began. */
static void count_yields(device *d)
{
	const int n = yields - d->yields;
	d->yields += n;
	d->most_yields = d->slices_since == 1 && n > d->most_yields ? n : d->most_yields;
	d->slices_since = 0;
}

static bool foreground(device *d)
{
	uint64_t began = clock_ns();
	d->foreground_turns++;
	d->row = 0;
	count_yields(d);
	if (!d->unit_ns)
		return false;
	post_next(d);
	spin(d->unit_ns);
	d->foreground_ns += clock_ns() - began;
	return true;
}

static bool background(device *d, uint64_t budget_ns)
{
	uint64_t began = clock_ns();
	const uint64_t op_ns = d->op_ns;
	d->background_turns++;
	d->row++;
	d->slices_since++;
	d->longest_row = d->row > d->longest_row ? d->row : d->longest_row;
	d->most_budget = budget_ns > d->most_budget ? budget_ns : d->most_budget;
	if (d->slice == GO) {
		int go = GO; /* the test may set AWAITED meanwhile */
		d->units = d->foreground_turns - d->units;
		atomic_compare_exchange_strong(&d->slice, &go, COUNTED);
	}
	if (d->slice == AWAITED && d->foreground_turns > 0 && budget_ns == EXECUTOR_SLICE_NS) {
		d->units = d->foreground_turns;
		for (d->slice = WAITS; d->slice == WAITS && clock_ns() - began < PATIENCE_NS;)
			;
	}
	if (!op_ns)
		return false;
	post_next(d);
	do {
		spin(op_ns);
	} while (clock_ns() - began < budget_ns);
	d->background_ns += clock_ns() - began;
	return true;
}

typedef struct fixture {
	uv_loop_t loop;
	device device;
	executor *executor;
} fixture;

static int setup(void **state)
{
	static const executor_work work = {NULL, foreground, background};
	fixture *f = calloc(1, sizeof *f);
	assert_int_equal(uv_loop_init(&f->loop), 0);
	assert_int_equal(executor_start(&f->executor, &f->loop, &work, &f->device, NULL), STATUS_OK);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	fixture *f = *state;
	f->device.unit_ns = f->device.op_ns = 0; /* a failed test leaves work, which would keep the executor running */
	executor_stop(f->executor);
	uv_run(&f->loop, UV_RUN_DEFAULT);
	executor_free(f->executor);
	assert_int_equal(uv_loop_close(&f->loop), 0);
	free(f);
	return 0;
}

typedef struct note {
	task task;
	int number, ran, done;
	atomic_int n_prepared;  /* calls of prepare */
	atomic_int ready_after; /* number of calls until it is ready */
	uint64_t slices;        /* training slices started before it ran */
	int *last_done;
} note;

static void run_note(task *t, device *d)
{
	note *n = TASK_OWNER(t, note, task);
	n->ran++;
	n->slices = d->background_turns;
	d->order[d->n_order++ % 64] = n->number;
}

static bool prepare_note(task *t, device *d)
{
	(void)d;
	note *n = TASK_OWNER(t, note, task);
	return ++n->n_prepared >= n->ready_after;
}

static void note_done(task *t)
{
	note *n = TASK_OWNER(t, note, task);
	n->done++;
	*n->last_done = n->number;
}

static void until(fixture *f, const int *value, int expected)
{
	for (uint64_t began = clock_ns(); *value != expected && clock_ns() - began < PATIENCE_NS;)
		uv_run(&f->loop, UV_RUN_NOWAIT);
	assert_int_equal(*value, expected);
}

static void until_slice(const device *d, int expected)
{
	for (uint64_t began = clock_ns(); d->slice != expected && clock_ns() - began < PATIENCE_NS;)
		;
	assert_int_equal(d->slice, expected);
}

static void sleep_ms(long ms)
{
	nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static void tasks_run_and_complete_in_order(void **state)
{
	fixture *f = *state;
	note notes[40];
	int last = -1;
	for (int i = 0; i < 40; i++) {
		notes[i] = (note){.task = {.run = run_note, .done = note_done}, .number = i, .last_done = &last};
		assert_true(executor_submit(f->executor, &notes[i].task));
	}
	until(f, &last, 39);
	for (int i = 0; i < 40; i++) {
		assert_int_equal(f->device.order[i], i);
		assert_int_equal(notes[i].ran, 1);
		assert_int_equal(notes[i].done, 1);
	}
	assert_int_equal(executor_pending(f->executor), 0);
}

static void a_full_queue_refuses_tasks_but_not_control(void **state)
{
	fixture *f = *state;
	int last = -1;
	note *notes = calloc(EXECUTOR_MAX_TASKS + 2, sizeof *notes);
	for (int i = 0; i < EXECUTOR_MAX_TASKS + 2; i++)
		notes[i] = (note){.task = {.run = run_note, .done = note_done}, .number = i, .last_done = &last};
	for (int i = 0; i < EXECUTOR_MAX_TASKS; i++)
		assert_true(executor_submit(f->executor, &notes[i].task));
	assert_false(executor_submit(f->executor, &notes[EXECUTOR_MAX_TASKS].task));
	executor_control(f->executor, &notes[EXECUTOR_MAX_TASKS + 1].task);
	until(f, &last, EXECUTOR_MAX_TASKS + 1);
	assert_int_equal(notes[EXECUTOR_MAX_TASKS].ran, 0);
	assert_true(executor_submit(f->executor, &notes[EXECUTOR_MAX_TASKS].task));
	until(f, &last, EXECUTOR_MAX_TASKS);
	free(notes);
}

static void without_work_the_thread_sleeps(void **state)
{
	fixture *f = *state;
	sleep_ms(30);
	uint64_t before = f->device.foreground_turns;
	sleep_ms(100);
	assert_int_equal(f->device.foreground_turns, before);
}

static void a_request_goes_before_the_rest_of_the_trainings_share(void **state)
{
	fixture *f = *state;
	int last = -1;
	note n = {.task = {.run = run_note, .done = note_done}, .last_done = &last};
	f->device.unit_ns = EXECUTOR_SHARE_NS;
	f->device.op_ns = 1000;
	assert_true(executor_submit(f->executor, &n.task));
	until(f, &last, 0);
	for (int i = 1; i <= 20; i++) {
		f->device.slice = AWAITED;
		until_slice(&f->device, WAITS);
		n.number = i;
		assert_true(executor_submit(f->executor, &n.task));
		f->device.slice = GO;
		until(f, &last, i);
		until_slice(&f->device, COUNTED);
		assert_true(f->device.units > 0);
	}
}

static void serving_continues_when_training_pauses(void **state)
{
	fixture *f = *state;
	int last = -1;
	note wake = {.task = {.run = run_note, .done = note_done}, .last_done = &last};
	f->device.unit_ns = EXECUTOR_SHARE_NS;
	assert_true(executor_submit(f->executor, &wake.task));
	until(f, &last, 0);
	for (int i = 0; i < 20; i++) {
		f->device.op_ns = 1000;
		f->device.slice = AWAITED;
		until_slice(&f->device, WAITS);
		f->device.op_ns = 0;
		f->device.slice = GO;
		const uint64_t turns = f->device.foreground_turns, began = clock_ns();
		while (f->device.foreground_turns < turns + 2 && clock_ns() - began < PATIENCE_NS)
			;
		assert_true(f->device.foreground_turns >= turns + 2);
	}
}

static void training_alone_gets_full_slices(void **state)
{
	fixture *f = *state;
	int last = -1;
	note wake = {.task = {.run = run_note, .done = note_done}, .last_done = &last};
	f->device.op_ns = 100000;
	assert_true(executor_submit(f->executor, &wake.task));
	until(f, &last, 0);
	sleep_ms(50);
	assert_int_equal(f->device.most_budget, EXECUTOR_SLICE_NS);
	f->device.op_ns = 0;
}

/* An op of training is many times longer than a decode step, and cannot be divided. */
/* Serving's part of the time that passes in 400 ms. */
static double part_of_serving(device *d)
{
	d->foreground_ns = d->background_ns = 0;
	sleep_ms(400);
	const double serving = (double)d->foreground_ns, training = (double)d->background_ns;
	return serving / (serving + training);
}

/* Other programs may take a processor away in the middle of a turn, so one of several measurements is enough. */
static void serving_and_training_each_get_half_of_the_time(void **state)
{
	fixture *f = *state;
	int last = -1;
	bool half = false;
	note wake = {.task = {.run = run_note, .done = note_done}, .last_done = &last};
	f->device.unit_ns = 100000;
	f->device.op_ns = 2000000;
	assert_true(executor_submit(f->executor, &wake.task));
	until(f, &last, 0);
	for (int tries = 0; tries < 20 && !half; tries++) {
		const double part = part_of_serving(&f->device);
		half = part > 0.35 && part < 0.65;
	}
	f->device.unit_ns = f->device.op_ns = 0;
	assert_true(half);
}

static void training_has_several_slices_after_a_long_step(void **state)
{
	fixture *f = *state;
	int last = -1;
	note wake = {.task = {.run = run_note, .done = note_done}, .last_done = &last};
	f->device.unit_ns = EXECUTOR_SHARE_NS;
	f->device.op_ns = 1000;
	assert_true(executor_submit(f->executor, &wake.task));
	until(f, &last, 0);
	while (f->device.foreground_turns < 20)
		;
	assert_true(f->device.longest_row > 1);
	assert_true(f->device.longest_row <= EXECUTOR_SHARE_NS / EXECUTOR_SLICE_NS + 1);
}

static void a_task_waits_for_at_most_one_slice_of_training(void **state)
{
	fixture *f = *state;
	int last = -1;
	note first = {.task = {.run = run_note, .done = note_done}, .last_done = &last};
	f->device.op_ns = 200000;
	assert_true(executor_submit(f->executor, &first.task));
	until(f, &last, 0);
	for (int i = 1; i <= 20; i++) {
		note n = {.task = {.run = run_note, .done = note_done}, .number = i, .last_done = &last};
		assert_true(executor_submit(f->executor, &n.task));
		/* Read after the submission: the running slice is counted already, or is the one that the task waits
		 * for. */
		uint64_t before = f->device.background_turns;
		until(f, &last, i);
		assert_true(n.slices <= before + 1);
		assert_true(f->device.most_budget <= EXECUTOR_SLICE_NS);
	}
	f->device.op_ns = 0;
}

static void post_message(task *t, device *d)
{
	note *n = TASK_OWNER(t, note, task);
	(void)d;
	n->ran++;
}

static void stopping_runs_all_submitted_tasks_and_delivers_their_results(void **state)
{
	static const executor_work work = {NULL, foreground, background};
	uv_loop_t loop;
	device d = {0};
	executor *x;
	int last = -1;
	note notes[10];
	(void)state;
	assert_int_equal(uv_loop_init(&loop), 0);
	assert_int_equal(executor_start(&x, &loop, &work, &d, NULL), STATUS_OK);
	for (int i = 0; i < 10; i++) {
		notes[i] = (note){.task = {.run = post_message, .done = note_done}, .number = i, .last_done = &last};
		assert_true(executor_submit(x, &notes[i].task));
	}
	executor_stop(x);
	for (int i = 0; i < 10; i++)
		assert_true(notes[i].ran == 1 && notes[i].done == 1);
	uv_run(&loop, UV_RUN_DEFAULT);
	executor_free(x);
	assert_int_equal(uv_loop_close(&loop), 0);
}

static note waiting_note(int number, int ready_after, int *last)
{
	return (note){.task = {.prepare = prepare_note, .run = run_note, .done = note_done},
	              .number = number,
	              .ready_after = ready_after,
	              .last_done = last};
}

static void a_waiting_task_delays_no_other_task_and_no_work(void **state)
{
	fixture *f = *state;
	int last = -1;
	f->device.unit_ns = 10000;
	note slow = waiting_note(1, INT32_MAX, &last),
	     quick = {.task = {.run = run_note, .done = note_done}, .number = 2, .last_done = &last};
	assert_true(executor_submit(f->executor, &slow.task));
	assert_true(executor_submit(f->executor, &quick.task));
	until(f, &last, 2);
	uint64_t turns = f->device.foreground_turns;
	int n_prepared = slow.n_prepared;
	sleep_ms(30);
	assert_true(f->device.foreground_turns > turns + 100);
	assert_true(slow.n_prepared > n_prepared + 100);
	assert_int_equal(executor_pending(f->executor), 1);
	slow.ready_after = 0; /* the executor reads it at its next turn */
	until(f, &last, 1);
	f->device.unit_ns = 0;
}

static void waiting_tasks_keep_their_order_and_run_before_newer_ones(void **state)
{
	fixture *f = *state;
	enum { WAITING = 5 };
	note notes[WAITING];
	int last = -1;
	for (int i = 0; i < WAITING; i++) {
		notes[i] = waiting_note(i, 50, &last);
		assert_true(executor_submit(f->executor, &notes[i].task));
	}
	until(f, &last, WAITING - 1);
	for (int i = 0; i < WAITING; i++) {
		assert_int_equal(f->device.order[i], i);
		assert_int_equal(notes[i].n_prepared, 50); /* once per turn, also without other work */
	}
}

static void stopping_waits_for_waiting_tasks(void **state)
{
	static const executor_work work = {NULL, foreground, background};
	uv_loop_t loop;
	device d = {0};
	executor *x;
	int last = -1;
	(void)state;
	assert_int_equal(uv_loop_init(&loop), 0);
	assert_int_equal(executor_start(&x, &loop, &work, &d, NULL), STATUS_OK);
	note slow = waiting_note(3, 1000, &last);
	assert_true(executor_submit(x, &slow.task));
	executor_stop(x);
	assert_int_equal(slow.ran, 1);
	assert_int_equal(last, 3);
	uv_run(&loop, UV_RUN_DEFAULT);
	executor_free(x);
	assert_int_equal(uv_loop_close(&loop), 0);
}

/* The loop takes no message meanwhile. */
static void a_turn_lets_the_loop_run_once(void **state)
{
	fixture *f = *state;
	int last = -1;
	note wake = {.task = {.run = run_note, .done = note_done}, .last_done = &last};
	f->device.posts = f->executor;
	f->device.op_ns = EXECUTOR_SLICE_NS;
	f->device.unit_ns = EXECUTOR_SLICE_NS / 2; /* so that a turn has one slice at most */
	assert_true(executor_submit(f->executor, &wake.task));
	for (uint64_t began = clock_ns(); f->device.foreground_turns < 40 && clock_ns() - began < PATIENCE_NS;)
		;
	f->device.unit_ns = f->device.op_ns = 0;
	until(f, &last, 0);
	sleep_ms(10); /* the thread waits */
	assert_int_equal(f->device.most_yields, 1);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
	    CASE(tasks_run_and_complete_in_order),
	    CASE(a_full_queue_refuses_tasks_but_not_control),
	    CASE(without_work_the_thread_sleeps),
	    CASE(a_request_goes_before_the_rest_of_the_trainings_share),
	    CASE(serving_continues_when_training_pauses),
	    CASE(training_alone_gets_full_slices),
	    CASE(serving_and_training_each_get_half_of_the_time),
	    CASE(training_has_several_slices_after_a_long_step),
	    CASE(a_task_waits_for_at_most_one_slice_of_training),
	    CASE(a_waiting_task_delays_no_other_task_and_no_work),
	    CASE(waiting_tasks_keep_their_order_and_run_before_newer_ones),
	    CASE(a_turn_lets_the_loop_run_once),
	    cmocka_unit_test(stopping_waits_for_waiting_tasks),
	    cmocka_unit_test(stopping_runs_all_submitted_tasks_and_delivers_their_results),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
