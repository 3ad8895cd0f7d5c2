/* Calls that the device refuses without being lost: a launch with too many resources, a copy with an invalid value.
 * Only the work that needed the call ends. Faults are planted in the emulated device. */
#include "tests/unit/serve/fixture.h"
#include "tests/unit/serve/refusal.h"

#include "engine/tensor/ops.h"
#include "engine/tensor/plan.h"
#include "tests/unit/cuda/device.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/random.h"

/* --- a backend ------------------------------------------------------------------------------ */

enum { N = 96 };

/* y = layernorm(gelu(x)) + x */
typedef struct small {
	plan *plan;
	value x, y;
} small;

static void open_small(small *s, backend *b)
{
	graph *g = graph_new();
	error err = ERROR_INIT;
	value gain = graph_input(g, "gain", DTYPE_F32, SHAPE1(N)), bias = graph_input(g, "bias", DTYPE_F32, SHAPE1(N));
	s->x = graph_input(g, "x", DTYPE_F32, SHAPE2(1, N));
	s->y = op_add(g, op_layernorm(g, op_gelu(g, s->x, false), gain, bias, 1e-5f), s->x);
	graph_output(g, s->y, "y");
	if (plan_new(&s->plan, g, b, NULL, 0, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	float ones[N];
	for (int i = 0; i < N; i++)
		ones[i] = 1;
	assert_int_equal(plan_write(s->plan, gain, ones), STATUS_OK);
	assert_int_equal(plan_write(s->plan, bias, ones), STATUS_OK);
}

static status run_small(const small *s, uint64_t seed, float *y)
{
	float x[N];
	random_normal(x, N, seed, 1);
	TRY(plan_write(s->plan, s->x, x));
	TRY(plan_run(s->plan));
	return plan_read(s->plan, s->y, y);
}

static backend *open_directly(void)
{
	setenv("ADDITIVE_CUDA_RECORD", "0", 1);
	backend *b = open_device();
	unsetenv("ADDITIVE_CUDA_RECORD");
	return b;
}

static void a_refused_call_leaves_the_device_usable(void **state)
{
	static const char *const faults[] = {
	    "launch:1:cudaErrorInvalidConfiguration", "launch:1:cudaErrorLaunchOutOfResources",
	    "launch:1:cudaErrorInvalidValue",         "launch:1:cudaErrorUnknown",
	    "memcpy:1:cudaErrorInvalidValue",         "memcpy:2:cudaErrorInvalidValue"};
	float want[N], y[N];
	small s;
	(void)state;
	skip_unless_emulated();
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
		backend *b = open_directly(), *other = open_device();
		open_small(&s, b);
		assert_int_equal(run_small(&s, 1, want), STATUS_OK);
		setenv("ADDITIVE_EMULATOR_FAULT", faults[i], 1);
		assert_int_equal(run_small(&s, 1, y), STATUS_DEVICE);
		unsetenv("ADDITIVE_EMULATOR_FAULT");
		assert_false(b->lost(b));
		assert_false(other->lost(other));
		assert_int_equal(other->synchronize(other), STATUS_OK);
		assert_int_equal(run_small(&s, 1, y), STATUS_OK);
		assert_true(compare_same(faults[i], y, want, N));
		plan_free(s.plan);
		backend_close(b);
		backend_close(other);
	}
}

/* After a final error, or if the device does not compute after another one. */
static void a_device_that_does_not_compute_is_lost(void **state)
{
	static const char *const faults[] = {"launch:1:cudaErrorIllegalAddress", "launch:1:cudaErrorECCUncorrectable",
	                                     "launch:1+:cudaErrorLaunchOutOfResources",
	                                     "memcpy:1+:cudaErrorInvalidValue"};
	float y[N];
	small s;
	(void)state;
	skip_unless_emulated();
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
		backend *b = open_directly();
		open_small(&s, b);
		setenv("ADDITIVE_EMULATOR_FAULT", faults[i], 1);
		assert_int_equal(run_small(&s, 1, y), STATUS_DEVICE);
		unsetenv("ADDITIVE_EMULATOR_FAULT");
		assert_true(b->lost(b));
		assert_int_equal(run_small(&s, 1, y), STATUS_DEVICE);
		plan_free(s.plan);
		backend_close(b);
	}
}

/* Run 0 is direct, run 1 records and replays, later ones replay; each launch of each of these is refused once. */
static void a_recording_with_a_refused_launch_runs_directly(void **state)
{
	enum { RUNS = 5, LAUNCHES = 5 };
	float want[RUNS][N], y[N];
	small s;
	(void)state;
	skip_unless_emulated();
	backend *b = open_device();
	open_small(&s, b);
	for (int run = 0; run < RUNS; run++)
		assert_int_equal(run_small(&s, (uint64_t)run, want[run]), STATUS_OK);
	plan_free(s.plan);
	for (int at = 1; at < RUNS; at++)
		for (int launch = 1; launch <= LAUNCHES; launch++) {
			char fault[64];
			snprintf(fault, sizeof fault, "launch:%d:cudaErrorLaunchOutOfResources", launch);
			open_small(&s, b);
			for (int run = 0; run < RUNS; run++) {
				if (run == at)
					setenv("ADDITIVE_EMULATOR_FAULT", fault, 1);
				assert_int_equal(run_small(&s, (uint64_t)run, y), STATUS_OK);
				assert_true(compare_same(fault, y, want[run], N));
			}
			unsetenv("ADDITIVE_EMULATOR_FAULT");
			plan_free(s.plan);
		}
	assert_false(b->lost(b));
	backend_close(b);
}

/* --- sessions --------------------------------------------------------------------------------- */

static void plant(void *context, int call)
{
	char fault[64];
	snprintf(fault, sizeof fault, context, call);
	setenv("ADDITIVE_EMULATOR_FAULT", fault, 1);
}

static void refuse_calls(fixture *f, refusal_day *golden, char *fault, refusal_count *all)
{
	for (int call = 1; call < 160; call += call < 12 ? 1 : call < 60 ? 7 : 31) {
		refusal_day d;
		refusal_run(&d, f, plant, fault, call);
		unsetenv("ADDITIVE_EMULATOR_FAULT");
		refusal_judge(&d, golden, all);
		refusal_end(&d);
	}
}

static void serve_with_refusals(backend *b, refusal_count *all)
{
	fixture f;
	refusal_day golden;
	fixture_folder(&f);
	backend_close(f.backend);
	f.backend = b;
	b->records = false; /* no plan is prepared, which takes the emulated device long; steps are still recorded */
	refusal_run(&golden, &f, NULL, NULL, 0);
	refuse_calls(&f, &golden, (char[]){"launch:%d:cudaErrorLaunchOutOfResources"}, all);
	refuse_calls(&f, &golden, (char[]){"launch:%d:cudaErrorMemoryAllocation"}, all);
	refuse_calls(&f, &golden, (char[]){"memcpy:%d:cudaErrorInvalidValue"}, all);
	assert_false(f.backend->lost(f.backend));
	refusal_end(&golden);
	f.scheduler = NULL;
	fixture_close(&f);
}

static void a_refused_call_ends_only_its_step(void **state)
{
	refusal_count all = {0};
	(void)state;
	skip_unless_emulated();
	serve_with_refusals(open_directly(), &all);
	assert_true(all.decode > 0 && all.prompt > 0);
	assert_true(all.kept > 0 && all.lost > 0);
}

static void recorded_steps_survive_refused_launches(void **state)
{
	refusal_count all = {0};
	(void)state;
	skip_unless_emulated();
	serve_with_refusals(open_device(), &all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_refused_call_leaves_the_device_usable),
	    cmocka_unit_test(a_device_that_does_not_compute_is_lost),
	    cmocka_unit_test(a_recording_with_a_refused_launch_runs_directly),
	    cmocka_unit_test(a_refused_call_ends_only_its_step),
	    cmocka_unit_test(recorded_steps_survive_refused_launches),
	};
	find_plugin();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
