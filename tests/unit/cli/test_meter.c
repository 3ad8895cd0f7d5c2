/* test_meter.c - progress lines of a transfer. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "clients/cli/meter.h"

static void takes(meter *m, long long done, long long ms, const char *expected)
{
	text out = {0};
	assert_int_equal(meter_take(m, "weights", done, 40000000, ms, &out), *expected != 0);
	assert_string_equal(text_get(&out), expected);
	text_free(&out);
}

static void ends(meter *m, const char *expected)
{
	text out = {0};
	meter_end(m, &out);
	assert_string_equal(text_get(&out), expected);
	text_free(&out);
}

static void a_short_transfer_prints_nothing(void **state)
{
	meter m = {.tty = true};
	(void)state;
	takes(&m, 0, 5000, "");
	takes(&m, 20000000, 5999, "");
	ends(&m, "");
}

static void a_long_transfer_has_a_line_for_each_tenth(void **state)
{
	meter m = {0};
	(void)state;
	takes(&m, 0, 5000, "");
	takes(&m, 10000000, 6000, " 25 %  10.0 of 40.0 MB  weights\n");
	takes(&m, 11000000, 9000, "");
	takes(&m, 12000000, 9001, " 30 %  12.0 of 40.0 MB  weights\n");
	ends(&m, "");
	takes(&m, 0, 20000, ""); /* begins the next transfer */
}

static void on_a_terminal_the_line_is_drawn_in_place_and_cleared(void **state)
{
	meter m = {.tty = true};
	(void)state;
	takes(&m, 0, 0, "");
	takes(&m, 400000, 1000, "\r\x1b[K  1 %  0.4 of 40.0 MB  weights");
	takes(&m, 800000, 1199, "");
	takes(&m, 800000, 1200, "\r\x1b[K  2 %  0.8 of 40.0 MB  weights");
	ends(&m, "\r\x1b[K");
	ends(&m, "");
}

static void a_transfer_of_unknown_size_prints_nothing(void **state)
{
	meter m = {0};
	text out = {0};
	(void)state;
	assert_false(meter_take(&m, "x", 5, 0, 0, &out));
	assert_false(meter_take(&m, "x", 50, 0, 9000, &out));
	assert_string_equal(text_get(&out), "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_short_transfer_prints_nothing),
	    cmocka_unit_test(a_long_transfer_has_a_line_for_each_tenth),
	    cmocka_unit_test(on_a_terminal_the_line_is_drawn_in_place_and_cleared),
	    cmocka_unit_test(a_transfer_of_unknown_size_prints_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
