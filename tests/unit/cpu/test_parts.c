/* test_parts.c - parts that run at the same time. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <sched.h>
#include <stdatomic.h>

#include "engine/cpu/cpu.h"
#include "engine/cpu/kernels/kernels.h"

enum { THREADS = 3, MOST = 40 };

typedef struct trial {
	const cpu *backend;
	_Atomic int ran[MOST];
	int fails; /* index of the failing part; -1: none */
	_Atomic bool shares;
} trial;

static status one_part(void *context, int i)
{
	trial *t = context;
	t->ran[i]++;
	if (t->backend->sharing != 1)
		t->shares = true;
	return i == t->fails ? STATUS_DEVICE : STATUS_OK;
}

static status run(int n, int fails)
{
	backend *b;
	cpu_set_t before, after;
	assert_int_equal(cpu_open(&b, THREADS, NULL), STATUS_OK);
	trial t = {.backend = (const cpu *)b, .fails = fails};
	assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
	status s = b->side_by_side(b, n, one_part, &t);
	assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
	for (int i = 0; i < MOST; i++)
		assert_int_equal(t.ran[i], i < n);
	assert_false(t.shares);
	assert_int_equal(t.backend->sharing, THREADS);
	assert_true(CPU_EQUAL(&before, &after));
	backend_close(b);
	return s;
}

static void every_part_runs_once_with_one_thread_and_the_callers_affinity_is_restored(void **state)
{
	(void)state;
	for (int n = 1; n <= MOST; n++)
		assert_int_equal(run(n, -1), STATUS_OK);
}

static void a_failure_of_any_part_is_returned_and_the_other_parts_run(void **state)
{
	(void)state;
	for (int i = 0; i < MOST; i++)
		assert_int_equal(run(MOST, i), STATUS_DEVICE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_part_runs_once_with_one_thread_and_the_callers_affinity_is_restored),
	    cmocka_unit_test(a_failure_of_any_part_is_returned_and_the_other_parts_run),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
