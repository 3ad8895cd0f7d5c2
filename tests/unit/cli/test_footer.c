/* test_footer.c - the bytes that redraw lines in place. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "clients/cli/footer.h"
#include "clients/cli/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static footer f;

static FILE *open_screen(char **bytes, size_t *n)
{
	FILE *file = open_memstream(bytes, n);

	assert_non_null(file);
	return file;
}

static void draws(int width, const char *string, const char *expected)
{
	char *bytes;
	size_t n;
	text lines = {0};
	FILE *file = open_screen(&bytes, &n);

	text_string(&lines, string);
	footer_draw(&f, file, width, &lines);
	fclose(file);
	assert_string_equal(bytes, expected);
	text_free(&lines);
	free(bytes);
}

static void erases(int width, const char *expected)
{
	char *bytes;
	size_t n;
	FILE *file = open_screen(&bytes, &n);

	footer_erase(&f, file, width);
	fclose(file);
	assert_string_equal(bytes, expected);
	free(bytes);
}

static int start(void **state)
{
	(void)state;
	f = (footer){0};
	return 0;
}

static void lines_are_drawn_over_the_previous_ones(void **state)
{
	(void)state;
	draws(20, "one", "\r\x1b[Kone");
	draws(20, "one\ntwo\n3", "\r\x1b[Kone\n\rtwo\n\r3");
	draws(20, "ONE\n2", "\r\x1b[2A\x1b[JONE\n\r2");
	erases(20, "\r\x1b[1A\x1b[J");
	erases(20, "");
}

static void wrapped_lines_are_counted_as_the_terminal_shows_them(void **state)
{
	(void)state;
	draws(20, "0123456789ABCDEF\n⠤⠤⠤⠤⠤\n0123456789", "\r\x1b[K0123456789ABCDEF\n\r⠤⠤⠤⠤⠤\n\r0123456789");
	/* 5 columns: 4, 1 and 2 rows; the cursor is in the last row */
	erases(5, "\r\x1b[6A\x1b[J");
}

static void lines_that_stay_or_have_moved_are_not_drawn_over(void **state)
{
	char *bytes;
	size_t n;
	FILE *file = open_screen(&bytes, &n);

	(void)state;
	draws(20, "one\ntwo", "\r\x1b[Kone\n\rtwo");
	footer_leave(&f, file);
	fclose(file);
	assert_string_equal(bytes, "\n");
	free(bytes);
	draws(20, "one\ntwo", "\r\x1b[Kone\n\rtwo");
	footer_forget(&f);
	erases(20, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup(lines_are_drawn_over_the_previous_ones, start),
	    cmocka_unit_test_setup(wrapped_lines_are_counted_as_the_terminal_shows_them, start),
	    cmocka_unit_test_setup(lines_that_stay_or_have_moved_are_not_drawn_over, start),
	};

	terminal_begin();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
