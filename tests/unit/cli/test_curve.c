/* test_curve.c - losses drawn as lines of text: positions of points, widths, constant memory. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "clients/cli/curve.h"
#include "clients/cli/terminal.h"

#include <math.h>
#include <string.h>

static curve c;

static void draws(int width, int rows, bool utf8, const char *expected)
{
	text out = {0};

	assert_true(curve_draw(&c, width, rows, utf8, &out));
	assert_string_equal(text_get(&out), expected);
	text_free(&out);
}

static void draws_nothing(int width, int rows)
{
	text out = {0};

	assert_false(curve_draw(&c, width, rows, true, &out));
	assert_int_equal(out.used, 0);
	text_free(&out);
}

static void fewer_than_two_steps_are_no_curve(void **state)
{
	(void)state;
	curve_init(&c);
	draws_nothing(80, 8);
	curve_add(&c, 3, 2.5, 2.25);
	curve_add(&c, 3, 2.5, NAN);
	draws_nothing(80, 8);
	curve_add(&c, 4, 2.5, NAN);
	draws_nothing(CURVE_LEAST_WIDTH - 1, 8);
	draws_nothing(80, 1);
}

static void a_falling_loss_is_a_line_from_the_upper_left_to_the_lower_right(void **state)
{
	(void)state;
	curve_init(&c);
	curve_add(&c, 1, 4, NAN);
	curve_add(&c, 37, 1, NAN);
	draws(40, 4, false,
	      "4 |******\n"
	      "  |      ************\n"
	      "  |                  ************\n"
	      "1 |                              *******\n"
	      "   1          training loss           37\n");
	draws(40, 2, true,
	      "4 │⠉⠉⠉⠒⠒⠒⠒⠒⠤⠤⠤⠤⠤⢄⣀⣀⣀⣀⡀\n"
	      "1 │                  ⠈⠉⠉⠉⠉⠑⠒⠒⠒⠒⠒⠤⠤⠤⠤⠤⣀⣀⣀\n"
	      "   1          training loss           37\n");
}

static void validation_losses_have_their_own_marks(void **state)
{
	(void)state;
	curve_init(&c);
	curve_add(&c, 1, 4, NAN);
	curve_add(&c, 2, 3, 2);
	curve_add(&c, 3, 4, 6);
	draws(40, 3, false,
	      "6 |                                    o\n"
	      "  |*********                  **********\n"
	      "2 |         *********o********\n"
	      "   1   training loss, o: validation    3\n");
}

static void a_steep_line_has_no_gaps(void **state)
{
	(void)state;
	curve_init(&c);
	curve_add(&c, 1, 9, NAN);
	curve_add(&c, 2, 9, NAN);
	for (int step = 3; step <= 37; step++)
		curve_add(&c, step, 1, NAN);
	draws(40, 4, false,
	      "9 |**\n"
	      "  |  *\n"
	      "  |  *\n"
	      "1 |  ***********************************\n"
	      "   1          training loss           37\n");
}

static void a_flat_curve_is_in_the_middle(void **state)
{
	(void)state;
	curve_init(&c);
	curve_add(&c, 10, 2, NAN);
	curve_add(&c, 20, 2, NAN);
	draws(40, 3, false,
	      "2 |\n"
	      "  |*************************************\n"
	      "2 |\n"
	      "   10          training loss          20\n");
}

static void losses_that_are_not_finite_are_left_out(void **state)
{
	(void)state;
	curve_init(&c);
	curve_add(&c, 1, NAN, NAN);
	curve_add(&c, 2, 2, INFINITY);
	curve_add(&c, 3, INFINITY, NAN);
	curve_add(&c, 4, -INFINITY, NAN);
	curve_add(&c, 5, 1, NAN);
	curve_add(&c, 6, NAN, NAN);
	curve_add(&c, 0, 100, 100);
	curve_add(&c, -7, 100, 100);
	draws(40, 2, false,
	      "2 |******************\n"
	      "1 |                  *******************\n"
	      "   2           training loss           5\n");
}

static void a_million_steps_are_averaged_in_the_same_memory(void **state)
{
	(void)state;
	const long long steps = 1000000;
	long long n = 0;
	int used = 0;
	double losses = 0;

	curve_init(&c);
	for (long long step = 1; step <= steps; step++)
		curve_add(&c, step, step <= steps / 2 ? 3 + step % 2 : 1, step % (steps / 10) ? NAN : 2);
	for (int i = 0; i < CURVE_BINS; i++) {
		n += c.train[i].n;
		losses += c.train[i].losses;
		used += c.train[i].n > 0;
	}
	assert_true(n == steps && losses == 3.5 * (double)steps / 2 + (double)steps / 2);
	assert_in_range(used, CURVE_BINS / 2, CURVE_BINS);
	draws(46, 4, false,
	      "3.5 |********************\n"
	      "    |                    *\n"
	      "    |    o   o   o   o   o*  o   o   o   o   o\n"
	      "  1 |                     ********************\n"
	      "     1  training loss, o: validation   1000000\n");
}

static void no_line_is_wider_than_requested(void **state)
{
	(void)state;
	curve_init(&c);
	for (int i = 0; i < 3000; i++)
		curve_add(&c, 1 + i * 7LL, 12345.678 / (i + 1), i % 10 ? NAN : -1e-5 * i);
	for (int width = CURVE_LEAST_WIDTH; width < 700; width++)
		for (int rows = 2; rows <= 32; rows += 10)
			for (int utf8 = 0; utf8 < 2; utf8++) {
				text out = {0};
				int lines = 0;

				assert_true(curve_draw(&c, width, rows, utf8, &out));
				for (const char *line = text_get(&out); *line; lines++) {
					size_t n = strcspn(line, "\n");

					assert_in_range(terminal_columns(line, n), 1, width);
					line += n + 1;
				}
				assert_int_equal(lines, rows + 1);
				text_free(&out);
			}
}

static void absurd_losses_and_steps_are_drawn(void **state)
{
	(void)state;
	curve_init(&c);
	curve_add(&c, 1, 1.7e308, NAN);
	curve_add(&c, INT64_MAX, -1.7e308, NAN);
	draws(40, 2, false,
	      " 1.7e+308 |**************\n"
	      "-1.7e+308 |              ***************\n"
	      "           1         9223372036854775807\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(fewer_than_two_steps_are_no_curve),
	    cmocka_unit_test(a_falling_loss_is_a_line_from_the_upper_left_to_the_lower_right),
	    cmocka_unit_test(validation_losses_have_their_own_marks),
	    cmocka_unit_test(a_steep_line_has_no_gaps),
	    cmocka_unit_test(a_flat_curve_is_in_the_middle),
	    cmocka_unit_test(losses_that_are_not_finite_are_left_out),
	    cmocka_unit_test(a_million_steps_are_averaged_in_the_same_memory),
	    cmocka_unit_test(no_line_is_wider_than_requested),
	    cmocka_unit_test(absurd_losses_and_steps_are_drawn),
	};

	terminal_begin();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
