#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "server/buffer.h"

static void a_buffer_holds_what_was_appended(void **state)
{
	(void)state;
	buffer b = {0};
	char wanted[4000];
	for (int i = 0; i < 1000; i++) {
		buffer_append(&b, "ab", 2);
		buffer_format(&b, "%d", i % 10);
		buffer_string(&b, "!");
		memcpy(wanted + 4 * i, "ab", 2);
		wanted[4 * i + 2] = (char)('0' + i % 10);
		wanted[4 * i + 3] = '!';
	}
	assert_int_equal(b.used, sizeof wanted);
	assert_memory_equal(b.data, wanted, sizeof wanted);
	buffer_fini(&b);
	assert_null(b.data);
}

static void nothing_appended_is_nothing_allocated(void **state)
{
	(void)state;
	buffer b = {0};
	buffer_append(&b, NULL, 0);
	assert_null(b.data);
	assert_false(b.failed);
	buffer_fini(&b);
}

static void an_impossible_size_fails_and_stays_failed(void **state)
{
	(void)state;
	buffer b = {0};
	buffer_string(&b, "x");
	buffer_append(&b, "x", SIZE_MAX - 8);
	assert_true(b.failed);
	buffer_string(&b, "y");
	assert_true(b.failed);
	assert_int_equal(b.used, 1);
	buffer_fini(&b);
}

static void a_cleared_buffer_gives_large_memory_back(void **state)
{
	(void)state;
	buffer b = {0};
	for (int i = 0; i < 20000; i++)
		buffer_string(&b, "0123456789");
	buffer_clear(&b);
	assert_int_equal(b.used, 0);
	assert_int_equal(b.capacity, 0);
	buffer_string(&b, "small");
	buffer_clear(&b);
	assert_true(b.capacity > 0);
	buffer_fini(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_buffer_holds_what_was_appended),
	    cmocka_unit_test(nothing_appended_is_nothing_allocated),
	    cmocka_unit_test(an_impossible_size_fails_and_stays_failed),
	    cmocka_unit_test(a_cleared_buffer_gives_large_memory_back),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
