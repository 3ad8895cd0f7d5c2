#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "server/buffer.h"

static void a_buffer_holds_the_appended_bytes(void **state)
{
	(void)state;
	buffer b = {0};
	char expected[4000];
	for (int i = 0; i < 1000; i++) {
		buffer_append(&b, "ab", 2);
		buffer_format(&b, "%d", i % 10);
		buffer_string(&b, "!");
		memcpy(expected + 4 * i, "ab", 2);
		expected[4 * i + 2] = (char)('0' + i % 10);
		expected[4 * i + 3] = '!';
	}
	assert_int_equal(b.used, sizeof expected);
	assert_memory_equal(b.data, expected, sizeof expected);
	buffer_fini(&b);
	assert_null(b.data);
}

static void an_empty_buffer_allocates_nothing(void **state)
{
	(void)state;
	buffer b = {0};
	buffer_append(&b, NULL, 0);
	assert_null(b.data);
	assert_false(b.failed);
	buffer_fini(&b);
}

static void an_impossible_size_fails_permanently(void **state)
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

static void a_cleared_buffer_frees_large_memory(void **state)
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
	    cmocka_unit_test(a_buffer_holds_the_appended_bytes),
	    cmocka_unit_test(an_empty_buffer_allocates_nothing),
	    cmocka_unit_test(an_impossible_size_fails_permanently),
	    cmocka_unit_test(a_cleared_buffer_frees_large_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
