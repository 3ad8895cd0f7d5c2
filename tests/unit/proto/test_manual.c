/* test_manual.c - convert text to roff: special characters are shown as they are. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "proto/manual.h"

#include <stdlib.h>
#include <string.h>

static char *bytes;
static size_t n_bytes;

static FILE *begin(void)
{
	FILE *file = open_memstream(&bytes, &n_bytes);

	assert_non_null(file);
	return file;
}

static void is(FILE *file, const char *expected)
{
	fclose(file);
	assert_string_equal(bytes, expected);
	free(bytes);
}

static void text_is_escaped(void **state)
{
	(void)state;
	FILE *file = begin();

	manual_text(file, ".TH is a request, \\fB too\n'so is this'\n--json \"é\" ~/^ `x`");
	is(file, "\\&.TH is a request, \\efB too\n\\(aqso is this\\(aq\n\\-\\-json \\(dq\\[u00E9]\\(dq \\(ti/\\(ha "
	         "\\(gax\\(ga\n");
}

static void signs_missing_on_an_ascii_terminal_are_spelled_out(void **state)
{
	(void)state;
	FILE *file = begin();

	manual_text(file, "… and 2 · 3…");
	is(file, "\\&... and 2 * 3\\&...\n");
}

static void paragraphs_are_filled_and_indented_lines_are_not(void **state)
{
	(void)state;
	FILE *file = begin();

	manual_text(file, "one\ntwo\n\nthree\n  a  b\n  c\nfour\n\n  d");
	is(file, "one\ntwo\n.PP\nthree\n.nf\n  a  b\n  c\n.fi\nfour\n.PP\n.nf\n  d\n.fi\n");
}

static void options_are_entries_with_their_arguments_and_headings(void **state)
{
	static const option_row rows[] = {{"", OPTION_FLAG, NULL, "First:", NULL},
	                                  {"do-it", OPTION_FLAG, NULL, "do it", NULL},
	                                  {"how", OPTION_TEXT, "NAME:well|not-well", "how it is done (well)", NULL},
	                                  {NULL, OPTION_FLAG, NULL, NULL, NULL}};

	(void)state;
	FILE *file = begin();

	manual_options(file, rows);
	is(file, ".SS \"First:\"\n"
	         ".TP\n\\fB\\-\\-do\\-it\\fR\ndo it\n"
	         ".TP\n\\fB\\-\\-how\\fR \\fINAME\\fR\nhow it is done: well or not\\-well (well)\n");
}

static void names_of_values_and_options_are_highlighted_in_a_usage(void **state)
{
	(void)state;
	FILE *file = begin();

	manual_usage(file, "train FILE... --out DIR [OPTIONS]\nHelp me");
	is(file, "train \\fIFILE\\fR... \\fB\\-\\-out\\fR \\fIDIR\\fR [\\fIOPTIONS\\fR]\n.br\nHelp me\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(text_is_escaped),
	    cmocka_unit_test(signs_missing_on_an_ascii_terminal_are_spelled_out),
	    cmocka_unit_test(paragraphs_are_filled_and_indented_lines_are_not),
	    cmocka_unit_test(options_are_entries_with_their_arguments_and_headings),
	    cmocka_unit_test(names_of_values_and_options_are_highlighted_in_a_usage),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
