#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "engine/base/memory.h"

/* Without this an address sanitizer ends the program where calloc should return NULL. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
	return "allocator_may_return_null=1";
}

static void products_of_sizes_are_checked(void **state)
{
	(void)state;
	int64_t out;
	assert_true(memory_product(3, 5, &out) && out == 15);
	assert_true(memory_product(0, INT64_MAX, &out) && out == 0);
	assert_false(memory_product(INT64_MAX, 2, &out));
	assert_false(memory_product(-1, 2, &out));
}

static void sizes_that_overflow_are_not_allocated(void **state)
{
	(void)state;
	volatile size_t many = SIZE_MAX / 2; /* volatile, so that the compiler cannot see the overflow */
	void *volatile none = memory_new(many, 4);
	assert_null(none);
}

static void memory_is_zeroed_and_zero_bytes_are_not_null(void **state)
{
	(void)state;
	unsigned char *data = memory_new(3, 5);
	for (int i = 0; i < 15; i++)
		assert_int_equal(data[i], 0);
	free(data);
	void *nothing = memory_new(0, 0);
	assert_non_null(nothing);
	free(nothing);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(products_of_sizes_are_checked),
	    cmocka_unit_test(sizes_that_overflow_are_not_allocated),
	    cmocka_unit_test(memory_is_zeroed_and_zero_bytes_are_not_null),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
