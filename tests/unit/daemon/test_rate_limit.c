#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "engine/daemon/keys/rate_limit.h"

#define SECOND UINT64_C(1000000000)

static void it_is_full_at_first_and_refills_with_time(void **state)
{
	(void)state;
	rate_limit r = {0};
	rate_limit_set(&r, 60, 5 * SECOND);
	assert_int_equal(rate_limit_remaining(&r, 5 * SECOND), 60);
	assert_true(rate_limit_take(&r, 60, 5 * SECOND) == 0);
	assert_true(rate_limit_take(&r, 2, 5 * SECOND) == 2);
	assert_true(rate_limit_take(&r, 2, 6 * SECOND) == 1);
	assert_true(rate_limit_take(&r, 2, 7 * SECOND) == 0);
	assert_true(rate_limit_reset(&r, 7 * SECOND) == 60);
	assert_int_equal(rate_limit_remaining(&r, 1000 * SECOND), 60);
}

static void a_correction_may_leave_it_in_debt(void **state)
{
	(void)state;
	rate_limit r = {0};
	rate_limit_set(&r, 60, SECOND);
	rate_limit_take(&r, 50, SECOND);
	rate_limit_correct(&r, 20, SECOND);
	assert_int_equal(rate_limit_remaining(&r, SECOND), 30);
	rate_limit_correct(&r, -40, SECOND);
	assert_int_equal(rate_limit_remaining(&r, SECOND), 0);
	assert_true(rate_limit_take(&r, 1, SECOND) == 11);
}

static void a_changed_limit_keeps_what_was_taken(void **state)
{
	(void)state;
	rate_limit r = {0};
	rate_limit_set(&r, 60, SECOND);
	rate_limit_take(&r, 10, SECOND);
	rate_limit_set(&r, 100, SECOND);
	assert_int_equal(rate_limit_remaining(&r, SECOND), 90);
	rate_limit_set(&r, 5, SECOND);
	assert_int_equal(rate_limit_remaining(&r, SECOND), 0);
	assert_true(rate_limit_take(&r, 1, SECOND) == 72);
}

static void without_a_limit_everything_is_taken(void **state)
{
	(void)state;
	rate_limit r = {0};
	rate_limit_set(&r, 0, SECOND);
	assert_true(rate_limit_take(&r, INT64_MAX, SECOND) == 0);
	rate_limit_correct(&r, -7, SECOND);
	rate_limit_set(&r, 60, SECOND);
	assert_int_equal(rate_limit_remaining(&r, SECOND), 60);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(it_is_full_at_first_and_refills_with_time),
	    cmocka_unit_test(a_correction_may_leave_it_in_debt),
	    cmocka_unit_test(a_changed_limit_keeps_what_was_taken),
	    cmocka_unit_test(without_a_limit_everything_is_taken),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
