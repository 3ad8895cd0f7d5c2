/* Programs (cuda/program.cuh): phases of a recorded plan as one launch give the bits of their kernels, in every replay,
 * with fewer blocks than pieces, and with more. Ops that are no phase, or exceed a program, run between programs. A
 * recording that fails with a program is made again without one. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/panel.h"
#include "engine/tensor/plan.h"
#include "tests/emulator/count.h"
#include "tests/unit/cuda/device.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/random.h"

enum {
	RUNS = 4,
	MOST_ROWS = 9,
	MOST_WIDTH = 64,
	MOST_WEIGHTS = 48 * 2088,
	MOST_COUNT = MOST_ROWS * MOST_WIDTH,
	WEIGHTS = 2
};

/* `layers` times x := x + W2 gelu(W1 layernorm(x)), two phases each; with `cut`, an op that is no phase follows half of
 * them. */
typedef struct network {
	dtype type;
	int64_t rows, width, hidden;
	int layers;
	bool cut;
} network;

enum { PROCESSORS = 4 /* the emulated device has these, unless a test wants more */ };
/* Slices have one or two stages, whole or in part. Some warps have none: 64 and 144 inputs are fewer than eight
 * slices. */
static const network networks[] = {
    {.type = DTYPE_PANEL_BF16, .rows = 1, .width = 64, .hidden = 144, .layers = 6},
    {.type = DTYPE_PANEL_BF16, .rows = 8, .width = 64, .hidden = 144, .layers = 4},
    {.type = DTYPE_PANEL_BF16, .rows = 5, .width = 32, .hidden = 48, .layers = 4},
    {.type = DTYPE_PANEL_BF16, .rows = 1, .width = 32, .hidden = 48, .layers = 4},
    {.type = DTYPE_PANEL_BF16, .rows = 1, .width = 64, .hidden = 1040, .layers = 4},
    {.type = DTYPE_PANEL_BF16, .rows = 3, .width = 64, .hidden = 1040, .layers = 4},
    {.type = DTYPE_PANEL_F32, .rows = 1, .width = 64, .hidden = 144, .layers = 4},
    {.type = DTYPE_PANEL_F32, .rows = 4, .width = 24, .hidden = 1040, .layers = 4},
    {.type = DTYPE_PANEL_F32, .rows = 2, .width = 36, .hidden = 300, .layers = 4},
    {.type = DTYPE_PANEL_INT8, .rows = 1, .width = 64, .hidden = 160, .layers = 4},
    {.type = DTYPE_PANEL_INT8, .rows = 8, .width = 32, .hidden = 96, .layers = 4},
    /* Parts of steps. */
    {.type = DTYPE_PANEL_INT8, .rows = 1, .width = 40, .hidden = 2088, .layers = 4},
    {.type = DTYPE_PANEL_INT8, .rows = 3, .width = 56, .hidden = 72, .layers = 4},
};
enum { NETWORKS = sizeof networks / sizeof *networks };

typedef struct results {
	float y[RUNS][MOST_COUNT];
	int programs, kernels; /* launches of the last run; 0 if not counted */
	unsigned blocks;       /* grid of a program */
} results;

/* --- a plan ---------------------------------------------------------------------------------- */

static void *upload(backend *b, const void *host, size_t bytes)
{
	void *data;
	assert_int_equal(b->allocate(b, bytes, &data), STATUS_OK);
	assert_int_equal(b->upload(b, data, host, bytes), STATUS_OK);
	return data;
}

static void *random_panels(backend *b, dtype type, int64_t n, int64_t k, uint64_t seed)
{
	static float w[MOST_WEIGHTS];
	size_t bytes;
	assert_true(panel_bytes(type, n, k, &bytes));
	void *panels = malloc(bytes);
	assert_non_null(panels);
	random_normal(w, (int)(n * k), seed, 0.2);
	panel_pack(type, w, n, k, panels);
	void *data = upload(b, panels, bytes);
	free(panels);
	return data;
}

static plan *plan_of(backend *b, const network *o, plan_binding bindings[WEIGHTS + 2])
{
	float gain[MOST_WIDTH], bias[MOST_WIDTH];
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE2(o->rows, o->width)),
	      up = graph_weight(g, "up", o->type, SHAPE2(o->hidden, o->width)),
	      down = graph_weight(g, "down", o->type, SHAPE2(o->width, o->hidden)),
	      weight = graph_parameter(g, "gain", SHAPE1(o->width)),
	      shift = graph_parameter(g, "bias", SHAPE1(o->width));
	random_normal(gain, (int)o->width, 3, 1);
	random_normal(bias, (int)o->width, 4, 1);
	bindings[0] = (plan_binding){up, random_panels(b, o->type, o->hidden, o->width, 1)};
	bindings[1] = (plan_binding){down, random_panels(b, o->type, o->width, o->hidden, 2)};
	bindings[2] = (plan_binding){weight, upload(b, gain, (size_t)o->width * sizeof *gain)};
	bindings[3] = (plan_binding){shift, upload(b, bias, (size_t)o->width * sizeof *bias)};
	for (int i = 0; i < o->layers; i++) {
		if (o->cut && i == o->layers / 2)
			x = op_tanh(g, x);
		value n = op_layernorm(g, x, weight, shift, 1e-5f);
		value h = op_gelu(g, op_linear(g, n, up, VALUE_NONE, 1), false);
		x = op_add(g, x, op_linear(g, h, down, VALUE_NONE, 1));
	}
	graph_output(g, x, "y");
	plan *p;
	error err = ERROR_INIT;
	if (plan_new(&p, g, b, bindings, WEIGHTS + 2, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	return p;
}

static void count_work(emulator_counter counter, results *out)
{
	size_t n;
	const emulator_work *work = counter.end(&n);
	for (size_t i = 0; i < n; i++) {
		const bool program = strncmp(work[i].name, "program_kernel", strlen("program_kernel")) == 0;
		out->programs += program;
		out->blocks = program ? work[i].grid[0] : out->blocks;
		out->kernels += work[i].kind == EMULATOR_KERNEL;
	}
}

/* `fault` is planted after the first run, which is never recorded. */
static void run_all(backend *b, const network *o, const char *fault, results *out)
{
	plan_binding bindings[WEIGHTS + 2];
	plan *p = plan_of(b, o, bindings);
	const value in = graph_find(plan_graph(p), "x"), result = graph_find(plan_graph(p), "y");
	const emulator_counter counter = emulator_counting();
	float x[MOST_COUNT];
	memset(out, 0, sizeof *out);
	for (int run = 0; run < RUNS; run++) {
		random_normal(x, (int)(o->rows * o->width), 10 + (uint64_t)run, 1);
		if (counter.begin && run == RUNS - 1)
			counter.begin();
		assert_int_equal(plan_write(p, in, x), STATUS_OK);
		assert_int_equal(plan_run(p), STATUS_OK);
		assert_int_equal(plan_read(p, result, out->y[run]), STATUS_OK);
		if (fault && run == 0)
			setenv("ADDITIVE_EMULATOR_FAULT", fault, 1);
	}
	unsetenv("ADDITIVE_EMULATOR_FAULT");
	if (counter.begin)
		count_work(counter, out);
	plan_free(p);
	for (int i = 0; i < WEIGHTS + 2; i++)
		b->release(b, bindings[i].data);
}

static backend *open_with(int blocks)
{
	char text[16];
	snprintf(text, sizeof text, "%d", blocks);
	setenv("ADDITIVE_CUDA_PERSISTENT", text, 1);
	backend *b = open_device();
	unsetenv("ADDITIVE_CUDA_PERSISTENT");
	return b;
}

static void run_with(int blocks, const network *o, results *out)
{
	backend *b = open_with(blocks);
	run_all(b, o, NULL, out);
	backend_close(b);
}

static void assert_same(const results *got, const results *want, const network *o, const char *what)
{
	for (int run = 0; run < RUNS; run++)
		if (!compare_same("y", got->y[run], want->y[run], o->rows * o->width))
			fail_msg("%s: %s, %d rows, width %d: run %d", what, dtype_name(o->type), (int)o->rows,
			         (int)o->width, run);
}

/* Run without programs, and with programs of at most `blocks` blocks; such a run must have `programs` programs and
 * `kernels` other kernels. */
static void expect_in(int blocks, const network *o, int programs, int kernels)
{
	results want, got;
	run_with(0, o, &want);
	run_with(blocks, o, &got);
	assert_same(&got, &want, o, "one launch");
	if (emulator_counting().begin) {
		assert_int_equal(want.programs, 0);
		assert_int_equal(got.programs, programs);
		assert_int_equal(got.kernels, programs + kernels);
		const int64_t panels = (o->hidden + PANEL_WIDTH - 1) / PANEL_WIDTH;
		assert_int_equal(got.blocks, programs == 0 ? 0 : panels < blocks ? panels : blocks);
	}
}

static void expect(const network *o, int programs, int kernels)
{
	expect_in(PROCESSORS, o, programs, kernels);
}

/* --- tests -------------------------------------------------------------------------------------- */

static void phases_as_one_launch_change_no_bit(void **state)
{
	(void)state;
	for (int i = 0; i < NETWORKS; i++)
		expect(&networks[i], 1, 0);
	network o = networks[2];
	for (o.rows = 1; o.rows <= 8; o.rows++)
		expect(&o, 1, 0);
}

static void any_number_of_blocks_changes_no_bit(void **state)
{
	(void)state;
	skip_unless_emulated();
	setenv("ADDITIVE_EMULATOR_PROCESSORS", "132", 1);
	network o = networks[0];
	for (int blocks = 2; blocks <= 3; blocks++)
		expect_in(blocks, &o, 1, 0);
	expect_in(2, &networks[1], 1, 0);
	o.hidden = 2112; /* as many panels as blocks */
	o.width = 16;
	o.layers = 4;
	expect_in(132, &o, 1, 0);
	unsetenv("ADDITIVE_EMULATOR_PROCESSORS");
}

static void the_order_of_blocks_and_threads_changes_no_bit(void **state)
{
	static const char *const orders[] = {"reverse", "shuffle:3", "shuffle:4"};
	results want, got;
	(void)state;
	skip_unless_emulated();
	run_with(0, &networks[0], &want);
	for (int i = 0; i < 3; i++) {
		setenv("ADDITIVE_EMULATOR_ORDER", orders[i], 1);
		run_with(PROCESSORS, &networks[0], &got);
		assert_same(&got, &want, &networks[0], orders[i]);
	}
	unsetenv("ADDITIVE_EMULATOR_ORDER");
}

static void ops_that_are_no_phase_run_between_programs(void **state)
{
	network o = networks[2];
	(void)state;
	o.layers = 8;
	o.cut = true;
	expect(&o, 2, 1);
}

static void a_few_phases_are_launched_one_by_one(void **state)
{
	network o = networks[2];
	(void)state;
	o.layers = 3;
	expect(&o, 0, 6);
}

static void more_phases_than_a_program_holds_make_two_programs(void **state)
{
	network o = networks[3];
	(void)state;
	o.layers = 60; /* 120 phases */
	expect(&o, 2, 0);
}

static void products_that_a_ring_cannot_hold_are_no_phases(void **state)
{
	network o = networks[2];
	(void)state;
	o.rows = 9;
	expect(&o, 0, 8);
	o = networks[2];
	o.type = DTYPE_PANEL_F32;
	o.rows = 5; /* layernorm is a kernel */
	expect(&o, 0, 12);
	o = networks[2];
	o.width = 24; /* one and a half steps */
	o.hidden = 40;
	expect(&o, 0, 8);
	o.type = DTYPE_PANEL_INT8;
	o.width = 36; /* one step and half of a lane's words */
	expect(&o, 0, 8);
}

/* Number of calls passed on to the backend's function. */
static int started;
static status (*begin)(backend *b);

static status count_begin(backend *b)
{
	started++;
	return begin(b);
}

static void a_recording_that_fails_with_a_program_is_made_without(void **state)
{
	static const char *const faults[] = {"cooperative:1",
	                                     "cooperative:1+:cudaErrorNotSupported",
	                                     "capture:1",
	                                     "end:1",
	                                     "instantiate:1:cudaErrorInvalidValue",
	                                     "replay:1",
	                                     "replay:2:cudaErrorCooperativeLaunchTooLarge"};
	const network *o = &networks[2];
	results want, got;
	(void)state;
	skip_unless_emulated();
	run_with(0, o, &want);
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
		backend *b = open_with(PROCESSORS);
		begin = b->record_begin;
		b->record_begin = count_begin;
		started = 0;
		run_all(b, o, faults[i], &got);
		assert_same(&got, &want, o, faults[i]);
		assert_int_equal(started, 2);
		assert_int_equal(got.programs, 0);
		assert_int_equal(got.kernels, want.kernels);
		run_all(b, o, NULL,
		        &got); /* no program is made for another plan either, which is recorded immediately */
		assert_same(&got, &want, o, faults[i]);
		assert_int_equal(started, 3);
		assert_int_equal(got.programs, 0);
		backend_close(b);
	}
}

/* A failure before there is a program is not counted against programs. */
static void a_recording_that_does_not_start_does_not_disable_programs(void **state)
{
	const network *o = &networks[2];
	results want, got;
	(void)state;
	skip_unless_emulated();
	run_with(0, o, &want);
	backend *b = open_with(PROCESSORS);
	run_all(b, o, "begin:1", &got);
	assert_same(&got, &want, o, "begin:1");
	assert_int_equal(got.programs, 0);
	run_all(b, o, NULL, &got);
	assert_same(&got, &want, o, "after begin:1");
	assert_int_equal(got.programs, 1);
	backend_close(b);
}

static void a_background_backend_makes_no_programs(void **state)
{
	const backend_options background = {.background = true};
	results got;
	(void)state;
	setenv("ADDITIVE_CUDA_PERSISTENT", "4", 1);
	backend *b = open_device_as(&background);
	unsetenv("ADDITIVE_CUDA_PERSISTENT");
	run_all(b, &networks[2], NULL, &got);
	assert_int_equal(got.programs, 0);
	backend_close(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(phases_as_one_launch_change_no_bit),
	    cmocka_unit_test(any_number_of_blocks_changes_no_bit),
	    cmocka_unit_test(the_order_of_blocks_and_threads_changes_no_bit),
	    cmocka_unit_test(ops_that_are_no_phase_run_between_programs),
	    cmocka_unit_test(a_few_phases_are_launched_one_by_one),
	    cmocka_unit_test(more_phases_than_a_program_holds_make_two_programs),
	    cmocka_unit_test(products_that_a_ring_cannot_hold_are_no_phases),
	    cmocka_unit_test(a_recording_that_fails_with_a_program_is_made_without),
	    cmocka_unit_test(a_recording_that_does_not_start_does_not_disable_programs),
	    cmocka_unit_test(a_background_backend_makes_no_programs),
	};
	find_plugin();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
