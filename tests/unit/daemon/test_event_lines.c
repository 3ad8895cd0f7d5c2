/* Tests engine/daemon/requests/event_lines.c; test_responses.c sends them. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

#include "engine/daemon/requests/event_lines.h"
#include "tests/unit/support/allocations.h"

static void growth_is_known_before_an_event_is_added(void **state)
{
	(void)state;
	event_lines l = {0};
	size_t capacity = 0;
	for (int i = 0; i < 2000; i++) {
		capacity += event_lines_growth(&l, 7);
		assert_true(event_lines_add(&l, "{\"a\":1}", 7));
		assert_int_equal(l.capacity, capacity);
		assert_int_equal(l.bytes, 8 * (i + 1));
		assert_true(l.bytes <= l.capacity);
	}
	for (int i = 0; i < 2000; i++)
		assert_memory_equal(l.data + 8 * i, "{\"a\":1}\n", 8);
	free(l.data);
}

static void fitting_returns_the_unused_room(void **state)
{
	(void)state;
	event_lines l = {0};
	assert_int_equal(event_lines_fit(&l), 0);
	assert_true(event_lines_add(&l, "{}", 2));
	const size_t unused = l.capacity - 3;
	assert_true(unused > 0);
	assert_int_equal(event_lines_fit(&l), unused);
	assert_int_equal(l.capacity, 3);
	assert_true(event_lines_growth(&l, 0) > 0);
	assert_int_equal(event_lines_fit(&l), 0);
	free(l.data);
}

static void without_memory_the_lines_stay_as_they_are(void **state)
{
	(void)state;
	event_lines l = {0};
	assert_true(event_lines_set(&l, "{}\n", 3));
	allocations_limit(0);
	const bool added = event_lines_add(&l, "{}", 2), set = event_lines_set(&(event_lines){0}, "{}\n", 3);
	allocations_limit(-1);
	assert_false(added);
	assert_false(set);
	assert_int_equal(l.bytes, 3);
	assert_memory_equal(l.data, "{}\n", 3);
	free(l.data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(growth_is_known_before_an_event_is_added),
	    cmocka_unit_test(fitting_returns_the_unused_room),
	    cmocka_unit_test(without_memory_the_lines_stay_as_they_are),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
