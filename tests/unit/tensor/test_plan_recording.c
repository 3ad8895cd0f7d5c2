/* Plans on a backend that records: a stand-in stores the calls issued while it records and runs them at a replay. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/cpu/cpu.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/plan.h"
#include "tests/unit/support/compare.h"

enum { MAX_CALLS = 8, N = 5 };

typedef struct tape {
	op_id ids[MAX_CALLS];
	op_call calls[MAX_CALLS];
	int n;
} tape;

typedef struct recorder {
	backend base;
	backend *inner;
	tape *recording; /* NULL: not recording */
	int started, replayed, forgotten, direct;
	status begin_fails, kernel_fails, end_fails; /* STATUS_OK: never. kernel_fails: only while recording */
	status replay_fails;
	int failures; /* number of failures of end and replay left; 0: unlimited */
} recorder;

static status issue(backend *b, op_id id, const op_call *call)
{
	recorder *r = (recorder *)b;
	if (!r->recording) {
		r->direct++;
		return r->inner->kernel[id](r->inner, call);
	}
	if (r->kernel_fails)
		return r->kernel_fails;
	assert_true(r->recording->n < MAX_CALLS);
	r->recording->ids[r->recording->n] = id;
	r->recording->calls[r->recording->n++] = *call;
	return STATUS_OK;
}

static status issue_scale(backend *b, const op_call *call)
{
	return issue(b, OP_scale, call);
}

static status issue_gelu(backend *b, const op_call *call)
{
	return issue(b, OP_gelu, call);
}

static status begin(backend *b)
{
	recorder *r = (recorder *)b;
	assert_null(r->recording);
	r->started++;
	if (r->begin_fails)
		return r->begin_fails;
	r->recording = calloc(1, sizeof *r->recording);
	assert_non_null(r->recording);
	return STATUS_OK;
}

/* Return *s, which becomes STATUS_OK after the last of the failures. */
static status failing(recorder *r, status *s)
{
	const status now = *s;
	if (now && r->failures && --r->failures == 0)
		*s = STATUS_OK;
	return now;
}

static status end(backend *b, void **out)
{
	recorder *r = (recorder *)b;
	const status s = failing(r, &r->end_fails);
	assert_non_null(r->recording);
	*out = s ? NULL : r->recording;
	if (s)
		free(r->recording);
	r->recording = NULL;
	return s;
}

static status replay(backend *b, void *recording)
{
	recorder *r = (recorder *)b;
	const tape *t = recording;
	TRY(failing(r, &r->replay_fails));
	r->replayed++;
	for (int i = 0; i < t->n; i++)
		assert_int_equal(r->inner->kernel[t->ids[i]](r->inner, &t->calls[i]), STATUS_OK);
	return STATUS_OK;
}

static void forget(backend *b, void *recording)
{
	((recorder *)b)->forgotten++;
	free(recording);
}

static int open_recorder(void **state)
{
	recorder *r = calloc(1, sizeof *r);
	*state = r;
	if (!r || cpu_reference_open(&r->inner, 0, NULL) != STATUS_OK)
		return 1;
	r->base = *r->inner;
	r->base.kernel[OP_scale] = issue_scale;
	r->base.kernel[OP_gelu] = issue_gelu;
	r->base.record_begin = begin;
	r->base.record_end = end;
	r->base.replay = replay;
	r->base.forget = forget;
	return 0;
}

static int close_recorder(void **state)
{
	recorder *r = *state;
	backend_close(r->inner);
	free(r);
	return 0;
}

/* y = 3 gelu(2 x) */
static plan *three_nodes(recorder *r)
{
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE1(N));
	graph_output(g, op_scale(g, op_gelu(g, op_scale(g, x, 2), false), 3), "y");
	plan *p;
	assert_int_equal(plan_new(&p, g, &r->base, NULL, 0, NULL), STATUS_OK);
	return p;
}

/* Run the plan at once (first 0), or as a part of `first` nodes and the rest. */
static void run_in_parts(plan *p, int first)
{
	int cursor = 0;
	if (first == 0) {
		assert_int_equal(plan_run(p), STATUS_OK);
		return;
	}
	assert_int_equal(plan_run_part(p, &cursor, first), STATUS_OK);
	assert_int_equal(cursor, first);
	assert_int_equal(plan_run_part(p, &cursor, plan_node_count(p)), STATUS_OK);
	assert_int_equal(cursor, plan_node_count(p));
}

/* Run p on inputs that differ between runs; the result must equal that of a plan of the reference. */
static void run_parts_and_compare(recorder *r, plan *p, int run, int first)
{
	float x[N], got[N], want[N];
	for (int i = 0; i < N; i++)
		x[i] = (float)(i - 2) / (float)(run + 1);
	const value in = graph_find(plan_graph(p), "x"), out = graph_find(plan_graph(p), "y");
	assert_int_equal(plan_write(p, in, x), STATUS_OK);
	run_in_parts(p, first);
	assert_int_equal(plan_read(p, out, got), STATUS_OK);
	recorder plain = {.base = *r->inner};
	plan *reference = three_nodes(&plain);
	assert_int_equal(plan_write(reference, in, x), STATUS_OK);
	assert_int_equal(plan_run(reference), STATUS_OK);
	assert_int_equal(plan_read(reference, out, want), STATUS_OK);
	assert_true(compare_same("y", got, want, N));
	plan_free(reference);
}

static void run_and_compare(recorder *r, plan *p, int run)
{
	run_parts_and_compare(r, p, run, 0);
}

static void the_second_run_is_recorded_and_later_ones_are_replayed(void **state)
{
	recorder *r = *state;
	plan *p = three_nodes(r);
	run_and_compare(r, p, 0);
	assert_int_equal(r->direct, 3);
	assert_int_equal(r->started, 0);
	for (int run = 1; run < 4; run++)
		run_and_compare(r, p, run);
	assert_int_equal(r->direct, 3);
	assert_int_equal(r->started, 1);
	assert_int_equal(r->replayed, 3);
	assert_int_equal(r->forgotten, 0);
	plan_free(p);
	assert_int_equal(r->forgotten, 1);
}

static void steps_are_never_recorded(void **state)
{
	recorder *r = *state;
	plan *p = three_nodes(r);
	for (int run = 0; run < 3; run++)
		for (int cursor = 0; cursor < plan_node_count(p);)
			assert_int_equal(plan_step(p, &cursor), STATUS_OK);
	assert_int_equal(r->direct, 9);
	assert_int_equal(r->started, 0);
	plan_free(p);
	assert_int_equal(r->forgotten, 0);
}

static void a_first_run_by_nodes_counts_as_a_run(void **state)
{
	recorder *r = *state;
	plan *p = three_nodes(r);
	for (int cursor = 0; cursor < plan_node_count(p);) {
		assert_true(plan_is_new(p));
		assert_int_equal(plan_step_first(p, &cursor), STATUS_OK);
	}
	assert_false(plan_is_new(p));
	for (int run = 1; run < 3; run++)
		run_and_compare(r, p, run);
	assert_int_equal(r->direct, 3);
	assert_int_equal(r->started, 1);
	assert_int_equal(r->replayed, 2);
	plan_free(p);
}

static void each_part_of_a_plan_has_its_own_recording(void **state)
{
	recorder *r = *state;
	plan *p = three_nodes(r);
	for (int run = 0; run < 4; run++)
		run_parts_and_compare(r, p, run, 1);
	assert_int_equal(r->direct, 3);
	assert_int_equal(r->started, 2);
	assert_int_equal(r->replayed, 6);
	for (int run = 0; run < 3;
	     run++) /* divided elsewhere: the first part is a different one, and the last is new */
		run_parts_and_compare(r, p, run, 2);
	assert_int_equal(r->direct, 6);
	assert_int_equal(r->started, 4);
	assert_int_equal(r->replayed, 10);
	assert_int_equal(r->forgotten, 1);
	run_and_compare(r, p, 7); /* a part's recording is not used for the plan */
	assert_int_equal(r->direct, 9);
	plan_free(p);
	assert_int_equal(r->forgotten, 4);
}

static void a_part_must_be_within_the_plan(void **state)
{
	recorder *r = *state;
	plan *p = three_nodes(r);
	const int wrong[][2] = {{0, 4}, {1, 1}, {2, 1}, {-1, 2}};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		int cursor = wrong[i][0];
		assert_int_equal(plan_run_part(p, &cursor, wrong[i][1]), STATUS_INVALID);
		assert_int_equal(cursor, wrong[i][0]);
	}
	assert_int_equal(r->direct, 0);
	plan_free(p);
}

static void expect_direct_runs(recorder *r)
{
	plan *p = three_nodes(r);
	for (int run = 0; run < 4; run++)
		run_and_compare(r, p, run);
	assert_int_equal(r->direct, 12);
	assert_int_equal(r->started, 1); /* and never tried again */
	assert_int_equal(r->replayed, 0);
	plan_free(p);
}

static void without_a_recording_runs_are_direct(void **state)
{
	recorder *r = *state;
	r->begin_fails = STATUS_UNSUPPORTED;
	expect_direct_runs(r);
	assert_int_equal(r->forgotten, 0);
}

static void a_kernel_that_cannot_be_recorded_causes_direct_runs(void **state)
{
	recorder *r = *state;
	r->kernel_fails = STATUS_UNSUPPORTED;
	expect_direct_runs(r);
	assert_int_equal(r->forgotten, 1);
}

static void a_recording_too_large_for_memory_causes_direct_runs(void **state)
{
	recorder *r = *state;
	r->end_fails = STATUS_NOMEM;
	expect_direct_runs(r);
	assert_int_equal(r->forgotten, 0);
}

static void expect_a_second_recording(recorder *r, int runs_before)
{
	plan *p = three_nodes(r);
	status end_fails = r->end_fails, replay_fails = r->replay_fails;
	r->end_fails = r->replay_fails = STATUS_OK;
	for (int run = 0; run < runs_before; run++)
		run_and_compare(r, p, run);
	r->end_fails = end_fails;
	r->replay_fails = replay_fails;
	r->failures = 1;
	for (int run = runs_before; run < 6; run++)
		run_and_compare(r, p, run);
	assert_int_equal(r->direct, 3);
	assert_int_equal(r->started, 2);
	assert_int_equal(r->replayed, 5);
	plan_free(p);
}

static void a_recording_that_can_be_simpler_is_repeated_immediately(void **state)
{
	recorder *r = *state;
	r->end_fails = STATUS_BUSY;
	expect_a_second_recording(r, 1);
	assert_int_equal(r->forgotten, 1);
}

static void a_replay_that_can_be_simpler_is_recorded_again_immediately(void **state)
{
	recorder *r = *state;
	r->replay_fails = STATUS_BUSY;
	expect_a_second_recording(r, 3);
	assert_int_equal(r->forgotten, 2);
}

static void a_recording_that_fails_twice_causes_direct_runs(void **state)
{
	recorder *r = *state;
	r->end_fails = STATUS_BUSY; /* every time */
	plan *p = three_nodes(r);
	for (int run = 0; run < 4; run++)
		run_and_compare(r, p, run);
	assert_int_equal(r->direct, 12);
	assert_int_equal(r->started, 2);
	plan_free(p);
	assert_int_equal(r->forgotten, 0);
}

static void a_replay_that_fails_causes_direct_runs(void **state)
{
	recorder *r = *state;
	r->replay_fails = STATUS_UNSUPPORTED;
	expect_direct_runs(r);
	assert_int_equal(r->forgotten, 1);
}

static void a_device_lost_while_recording_ends_the_run(void **state)
{
	recorder *r = *state;
	plan *p = three_nodes(r);
	assert_int_equal(plan_run(p), STATUS_OK);
	r->kernel_fails = r->end_fails = STATUS_DEVICE;
	assert_int_equal(plan_run(p), STATUS_DEVICE);
	assert_int_equal(r->direct, 3);
	plan_free(p);
}

int main(void)
{
#define EACH(test) cmocka_unit_test_setup_teardown(test, open_recorder, close_recorder)
	const struct CMUnitTest tests[] = {
	    EACH(the_second_run_is_recorded_and_later_ones_are_replayed),
	    EACH(steps_are_never_recorded),
	    EACH(a_first_run_by_nodes_counts_as_a_run),
	    EACH(each_part_of_a_plan_has_its_own_recording),
	    EACH(a_part_must_be_within_the_plan),
	    EACH(without_a_recording_runs_are_direct),
	    EACH(a_kernel_that_cannot_be_recorded_causes_direct_runs),
	    EACH(a_recording_too_large_for_memory_causes_direct_runs),
	    EACH(a_recording_that_can_be_simpler_is_repeated_immediately),
	    EACH(a_replay_that_can_be_simpler_is_recorded_again_immediately),
	    EACH(a_recording_that_fails_twice_causes_direct_runs),
	    EACH(a_replay_that_fails_causes_direct_runs),
	    EACH(a_device_lost_while_recording_ends_the_run),
	};
#undef EACH
	return cmocka_run_group_tests(tests, NULL, NULL);
}
