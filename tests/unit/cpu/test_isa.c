/* Opening the backend, and every instruction set compared with the baseline. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "tests/unit/cpu/fixture.h"
#include "tests/unit/support/op_trial.h"

static const char *const names[] = {"baseline", "avx2", "avx512", "avx512vnni"};
enum { NAMES = sizeof names / sizeof *names };

static backend *open_isa(const char *name)
{
	assert_int_equal(setenv("ADDITIVE_CPU_ISA", name, 1), 0);
	backend *b = fixture_open(2);
	assert_int_equal(unsetenv("ADDITIVE_CPU_ISA"), 0);
	return b;
}

static void the_environment_lowers_the_instruction_set(void **state)
{
	(void)state;
	backend *b = open_isa("baseline");
	assert_string_equal(b->name, "cpu");
	assert_non_null(strstr(b->device, "2 threads, baseline"));
	assert_true(b->host_memory);
	backend_close(b);
	b = open_isa("");
	backend *best = fixture_open(2);
	assert_string_equal(b->device, best->device);
	backend_close(best);
	backend_close(b);
}

static void an_unknown_instruction_set_is_an_error_that_names_the_variable(void **state)
{
	(void)state;
	backend *b = (backend *)state;
	error err = ERROR_INIT;
	setenv("ADDITIVE_CPU_ISA", "avx1024", 1);
	assert_int_equal(cpu_open(&b, 1, &err), STATUS_INVALID);
	unsetenv("ADDITIVE_CPU_ISA");
	assert_null(b);
	assert_string_equal(err.param, "ADDITIVE_CPU_ISA");
	assert_non_null(strstr(err.message, "avx1024"));
}

static void an_absurd_number_of_threads_is_an_error(void **state)
{
	(void)state;
	static const int threads[] = {-1, 1000000};
	for (int i = 0; i < 2; i++) {
		backend *b = (backend *)state;
		error err = ERROR_INIT;
		assert_int_equal(cpu_open(&b, threads[i], &err), STATUS_INVALID);
		assert_null(b);
		assert_string_equal(err.param, "threads");
	}
}

static void zero_threads_means_all_cores(void **state)
{
	(void)state;
	backend *b = fixture_open(0);
	assert_non_null(strstr(b->device, " thread"));
	assert_null(strstr(b->device, ", 0 thread"));
	backend_close(b);
}

static void the_environment_limits_the_threads(void **state)
{
	(void)state;
	setenv("OMP_NUM_THREADS", "1", 1);
	backend *b = fixture_open(0);
	unsetenv("OMP_NUM_THREADS");
	assert_non_null(strstr(b->device, ", 1 thread,"));
	backend_close(b);
}

static void every_row_of_the_op_table_has_a_kernel(void **state)
{
	(void)state;
	for (int i = 0; i < NAMES; i++) {
		backend *b = open_isa(names[i]);
		for (int id = 0; id < OP_COUNT; id++)
			assert_non_null(b->kernel[id]);
		backend_close(b);
	}
}

static void every_instruction_set_agrees_with_the_baseline(void **state)
{
	(void)state;
	backend *baseline = open_isa("baseline");
	for (int i = 1; i < NAMES; i++) {
		backend *b = open_isa(names[i]); /* a machine without it gets the next lower one */
		int failed = 0;
		for (int c = 0; c < op_cases_count(); c++)
			failed += !op_trial_matches(op_cases_at(c), baseline, b);
		assert_int_equal(failed, 0);
		backend_close(b);
	}
	backend_close(baseline);
}

/* The normal distribution function in either form of gelu, and its density. */
static double distribution(double x, bool form)
{
	return form ? 0.5 + 0.5 * tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)) : 0.5 + 0.5 * erf(x / sqrt(2));
}

static double density(double x, bool form)
{
	double p = distribution(x, true);
	return form ? 2 * p * (1 - p) * sqrt(2 / acos(-1)) * (1 + 3 * 0.044715 * x * x)
	            : exp(-0.5 * x * x) / sqrt(2 * acos(-1));
}

static void check_gelu(backend *b, bool form)
{
	int64_t n = 40001;
	gelu_params p = {form};
	op_call forward = {.params = &p, .n_in = 1, .in = {fixture_tensor(DTYPE_F32, SHAPE1(n))}};
	float *x = forward.in[0].data;
	for (int64_t j = 0; j < n; j++)
		x[j] = (float)(j - n / 2) * 5e-4f;
	op_call backward = {.params = &p, .n_in = 2, .in = {forward.in[0], fixture_tensor(DTYPE_F32, SHAPE1(n))}};
	for (int64_t j = 0; j < n; j++)
		((float *)backward.in[1].data)[j] = 1.0f;
	fixture_run(b, OP_gelu, &forward);
	fixture_run(b, OP_gelu_grad, &backward);
	for (int64_t j = 0; j < n; j++) {
		double v = (double)x[j], upper = distribution(v, form);
		double y = (double)((float *)forward.out[0].data)[j], dy = (double)((float *)backward.out[0].data)[j];
		assert_true(fabs(y - v * upper) <= 2e-7 * (1 + fabs(v)));
		assert_true(fabs(dy - (upper + v * density(v, form))) <= 4e-7);
	}
	fixture_free_outputs(&forward);
	fixture_free(&backward);
}

/* The functions of math.h as compiled for each instruction set, through gelu. */
static void gelu_is_accurate_on_every_instruction_set(void **state)
{
	(void)state;
	for (int i = 0; i < NAMES; i++) {
		backend *b = open_isa(names[i]);
		check_gelu(b, false);
		check_gelu(b, true);
		backend_close(b);
	}
}

/* Far from zero, where x² and e^{-x} leave the range of floats. */
static void gelu_is_the_ramp_far_from_zero(void **state)
{
	(void)state;
	for (int i = 0; i < 6; i++) {
		backend *b = open_isa(names[i / 2]);
		gelu_params p = {i % 2};
		op_call call = {.params = &p, .n_in = 1, .in = {fixture_tensor(DTYPE_F32, SHAPE1(20))}};
		op_call back = {.params = &p, .n_in = 2, .in = {call.in[0], fixture_tensor(DTYPE_F32, SHAPE1(20))}};
		for (int j = 0; j < 20; j++) {
			((float *)call.in[0].data)[j] = (j % 2 ? 1.0f : -1.0f) * 40.0f * powf(60.0f, (float)(j / 2));
			((float *)back.in[1].data)[j] = 3.0f;
		}
		fixture_run(b, OP_gelu, &call);
		fixture_run(b, OP_gelu_grad, &back);
		for (int j = 0; j < 20; j++) {
			assert_true(((float *)call.out[0].data)[j] == (j % 2 ? ((float *)call.in[0].data)[j] : 0.0f));
			assert_true(((float *)back.out[0].data)[j] == (j % 2 ? 3.0f : 0.0f));
		}
		fixture_free_outputs(&call);
		fixture_free(&back);
		backend_close(b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_environment_lowers_the_instruction_set),
	    cmocka_unit_test(an_unknown_instruction_set_is_an_error_that_names_the_variable),
	    cmocka_unit_test(an_absurd_number_of_threads_is_an_error),
	    cmocka_unit_test(zero_threads_means_all_cores),
	    cmocka_unit_test(the_environment_limits_the_threads),
	    cmocka_unit_test(every_row_of_the_op_table_has_a_kernel),
	    cmocka_unit_test(every_instruction_set_agrees_with_the_baseline),
	    cmocka_unit_test(gelu_is_accurate_on_every_instruction_set),
	    cmocka_unit_test(gelu_is_the_ramp_far_from_zero),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
