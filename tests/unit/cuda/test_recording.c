/* Recordings that fail at each of their calls of CUDA: the plan's results keep the same bits, and only an error of the
 * device loses the device. Faults are planted in the emulated device. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/plan.h"
#include "tests/unit/cuda/device.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/random.h"

enum { ROWS = 9, WIDTH = 32, COUNT = ROWS * WIDTH, RUNS = 5 };

/* A plan's results for RUNS inputs. */
typedef struct results {
	float y[RUNS][COUNT];
} results;

/* y = gelu(layernorm(layernorm(2 x Wᵀ) + x)): the kernels of layernorm start early. */
static plan *small_plan(backend *b)
{
	graph *g = graph_new();
	float w[WIDTH * WIDTH], ones[WIDTH], zeros[WIDTH] = {0};
	value x = graph_input(g, "x", DTYPE_F32, SHAPE2(ROWS, WIDTH)),
	      weight = graph_input(g, "w", DTYPE_F32, SHAPE2(WIDTH, WIDTH)),
	      gain = graph_input(g, "gain", DTYPE_F32, SHAPE1(WIDTH)),
	      bias = graph_input(g, "bias", DTYPE_F32, SHAPE1(WIDTH));
	value product = op_matmul(g, x, weight, false, true, 2), first = op_layernorm(g, product, gain, bias, 1e-5f);
	graph_output(g, op_gelu(g, op_layernorm(g, op_add(g, first, x), gain, bias, 1e-5f), false), "y");
	plan *p;
	error err = ERROR_INIT;
	if (plan_new(&p, g, b, NULL, 0, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	random_normal(w, WIDTH * WIDTH, 1, 0.3);
	for (int i = 0; i < WIDTH; i++)
		ones[i] = 1;
	assert_int_equal(plan_write(p, weight, w), STATUS_OK);
	assert_int_equal(plan_write(p, gain, ones), STATUS_OK);
	assert_int_equal(plan_write(p, bias, zeros), STATUS_OK);
	return p;
}

/* Number of calls passed on to the backend's functions. */
static struct {
	int started, replayed;
	status (*begin)(backend *b);
	status (*replay)(backend *b, void *recording);
} calls;

static status count_begin(backend *b)
{
	calls.started++;
	return calls.begin(b);
}

static status count_replay(backend *b, void *recording)
{
	status s = calls.replay(b, recording);
	calls.replayed += s == STATUS_OK;
	return s;
}

static backend *open_counted(void)
{
	backend *b = open_device();
	calls.begin = b->record_begin;
	calls.replay = b->replay;
	b->record_begin = count_begin;
	b->replay = count_replay;
	calls.started = calls.replayed = 0;
	return b;
}

static status run_once(plan *p, int run, float *y)
{
	float x[COUNT];
	random_normal(x, COUNT, 10 + (uint64_t)run, 1);
	TRY(plan_write(p, graph_find(plan_graph(p), "x"), x));
	TRY(plan_run(p));
	return plan_read(p, graph_find(plan_graph(p), "y"), y);
}

/* `fault` is planted after the first run, which is never recorded. */
static status run_all(backend *b, const char *fault, results *out)
{
	plan *p = small_plan(b);
	status s = STATUS_OK;
	for (int run = 0; run < RUNS && s == STATUS_OK; run++) {
		s = run_once(p, run, out->y[run]);
		if (fault && run == 0)
			setenv("ADDITIVE_EMULATOR_FAULT", fault, 1);
	}
	unsetenv("ADDITIVE_EMULATOR_FAULT");
	plan_free(p);
	return s;
}

static void assert_same(const char *what, const results *got, const results *want)
{
	for (int run = 0; run < RUNS; run++)
		if (!compare_same("y", got->y[run], want->y[run], COUNT))
			fail_msg("%s: run %d", what, run);
}

static void sound_results(results *out)
{
	backend *b = open_counted();
	assert_int_equal(run_all(b, NULL, out), STATUS_OK);
	assert_int_equal(calls.started, 1);
	assert_int_equal(calls.replayed, RUNS - 1);
	backend_close(b);
}

static void runs_without_recordings_or_early_launches_give_the_same_bits(void **state)
{
	static const char *const switches[] = {"ADDITIVE_CUDA_RECORD", "ADDITIVE_CUDA_EARLY"};
	results want, got;
	(void)state;
	sound_results(&want);
	for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
		setenv(switches[i], "0", 1);
		backend *b = open_counted();
		assert_int_equal(run_all(b, NULL, &got), STATUS_OK);
		assert_int_equal(calls.replayed, i == 0 ? 0 : RUNS - 1);
		backend_close(b);
		unsetenv(switches[i]);
		assert_same(switches[i], &got, &want);
	}
}

typedef struct failure {
	const char *fault;
	int started, replayed; /* recordings, and runs that are replays */
	bool without_early;  /* ADDITIVE_CUDA_EARLY=0 */
} failure;

static void expect_the_same_bits(const failure *f, const results *want)
{
	results got, after;
	if (f->without_early)
		setenv("ADDITIVE_CUDA_EARLY", "0", 1);
	backend *b = open_counted();
	unsetenv("ADDITIVE_CUDA_EARLY");
	assert_int_equal(run_all(b, f->fault, &got), STATUS_OK);
	assert_same(f->fault, &got, want);
	if (calls.started != f->started || calls.replayed != f->replayed)
		fail_msg("%s: %d recordings were begun and %d replays succeeded, not %d and %d", f->fault,
		         calls.started, calls.replayed, f->started, f->replayed);
	calls.started = calls.replayed = 0;
	assert_int_equal(run_all(b, NULL, &after), STATUS_OK); /* another plan is recorded as usual */
	assert_int_equal(calls.started, 1);
	assert_int_equal(calls.replayed, RUNS - 1);
	assert_same(f->fault, &after, want);
	backend_close(b);
}

static void a_failed_recording_changes_neither_bits_nor_device(void **state)
{
	enum { ALL = RUNS - 1 };
	static const failure failures[] = {
	    {.fault = "begin:1", .started = 1},
	    {.fault = "begin:1+:cudaErrorStreamCaptureUnsupported", .started = 1},
	    {.fault = "early:1+", .started = 2, .replayed = ALL},
	    {.fault = "early:1+:cudaErrorInvalidValue", .started = 2, .replayed = ALL},
	    {.fault = "capture:2", .started = 2, .replayed = ALL},
	    {.fault = "capture:3+:cudaErrorInvalidValue", .started = 2},
	    {.fault = "capture:1+:cudaErrorUnknown", .started = 2},
	    {.fault = "capture:1+:cudaErrorMemoryAllocation", .started = 2},
	    {.fault = "end:1", .started = 2, .replayed = ALL},
	    {.fault = "end:1+:cudaErrorStreamCaptureUnjoined", .started = 2},
	    {.fault = "instantiate:1", .started = 2, .replayed = ALL},
	    {.fault = "instantiate:1+:cudaErrorMemoryAllocation", .started = 2},
	    {.fault = "replay:1", .started = 2, .replayed = ALL},
	    {.fault = "replay:1+:cudaErrorInvalidValue", .started = 2},
	    {.fault = "replay:3+:cudaErrorMemoryAllocation", .started = 2, .replayed = 2},
	    {.fault = "end:1", .started = 1, .without_early = true},
	    {.fault = "replay:2", .started = 1, .replayed = 1, .without_early = true},
	};
	results want;
	(void)state;
	skip_unless_emulated();
	sound_results(&want);
	for (size_t i = 0; i < sizeof failures / sizeof *failures; i++)
		expect_the_same_bits(&failures[i], &want);
}

/* The last error is not fatal by its name, but after it the device does not compute. */
static void an_error_of_the_device_while_recording_loses_it(void **state)
{
	static const char *const faults[] = {
	    "begin:1:cudaErrorIllegalAddress",      "capture:2:cudaErrorLaunchFailure",
	    "end:1:cudaErrorECCUncorrectable",      "instantiate:1:cudaErrorIllegalInstruction",
	    "replay:2:cudaErrorHardwareStackError", "launch:1+:cudaErrorUnknown"};
	results want, got;
	(void)state;
	skip_unless_emulated();
	sound_results(&want);
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
		backend *b = open_counted();
		assert_int_equal(run_all(b, faults[i], &got), STATUS_DEVICE);
		assert_int_equal(b->synchronize(b), STATUS_DEVICE);
		backend_close(b);
		b = open_counted();
		assert_int_equal(run_all(b, NULL, &got), STATUS_OK);
		assert_same(faults[i], &got, &want);
		backend_close(b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(runs_without_recordings_or_early_launches_give_the_same_bits),
	    cmocka_unit_test(a_failed_recording_changes_neither_bits_nor_device),
	    cmocka_unit_test(an_error_of_the_device_while_recording_loses_it),
	};
	find_plugin();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
