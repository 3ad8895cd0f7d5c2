#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "engine/base/status.h"

static void every_status_has_a_name_a_text_and_a_code(void **state)
{
	(void)state;
	for (int s = 0; s < STATUS_COUNT; s++) {
		assert_true(status_name((status)s)[0]);
		assert_true(status_text((status)s)[0]);
		assert_in_range(status_http((status)s), 200, 599);
		for (const char *c = status_name((status)s); *c; c++)
			assert_true((*c >= 'a' && *c <= 'z') || *c == '_');
	}
	assert_int_equal(STATUS_OK, 0);
}

static void names_are_unique(void **state)
{
	(void)state;
	for (int s = 0; s < STATUS_COUNT; s++)
		for (int t = 0; t < s; t++)
			assert_string_not_equal(status_name((status)s), status_name((status)t));
}

static void only_success_is_answered_with_200(void **state)
{
	(void)state;
	assert_int_equal(status_http(STATUS_OK), 200);
	for (int s = 1; s < STATUS_COUNT; s++)
		assert_in_range(status_http((status)s), 400, 599);
	assert_int_equal(status_http(STATUS_NOT_FOUND), 404);
	assert_int_equal(status_http(STATUS_BUSY), 429);
}

static void an_unknown_number_is_an_internal_error(void **state)
{
	(void)state;
	assert_string_equal(status_name(STATUS_COUNT), status_name(STATUS_INTERNAL));
	assert_string_equal(status_text((status)-1), status_text(STATUS_INTERNAL));
	assert_int_equal(status_http((status)1000), 500);
}

static status twice(status s, int *reached)
{
	TRY(s);
	(*reached)++;
	return STATUS_OK;
}

static void try_returns_early_on_failure_only(void **state)
{
	(void)state;
	int reached = 0;
	assert_int_equal(twice(STATUS_OK, &reached), STATUS_OK);
	assert_int_equal(reached, 1);
	assert_int_equal(twice(STATUS_IO, &reached), STATUS_IO);
	assert_int_equal(reached, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_status_has_a_name_a_text_and_a_code),
	    cmocka_unit_test(names_are_unique),
	    cmocka_unit_test(only_success_is_answered_with_200),
	    cmocka_unit_test(an_unknown_number_is_an_internal_error),
	    cmocka_unit_test(try_returns_early_on_failure_only),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
