/* test_terminal.c - output of the service cannot control the terminal; tables are aligned. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "clients/cli/http.h"
#include "clients/cli/show.h"
#include "clients/cli/terminal.h"

#include <stdlib.h>
#include <string.h>

static void escapes(const char *in, size_t n, bool lines, const char *want)
{
	text out = {0};

	assert_true(terminal_escape(&out, in, n, lines));
	assert_string_equal(text_get(&out), want);
	text_free(&out);
}

static void plain_text_of_any_language_is_untouched(void **state)
{
	(void)state;
	static const char in[] = "naïve ☃ 漢字 🙂 e\xcc\x81";

	escapes(in, strlen(in), false, in);
	escapes("", 0, true, "");
}

static void colours_can_be_forced_and_forbidden(void **state)
{
	(void)state;
	FILE *file = tmpfile();

	assert_non_null(file);
	unsetenv("NO_COLOR");
	unsetenv("CLICOLOR_FORCE");
	assert_false(terminal_of(file).colour);
	setenv("CLICOLOR_FORCE", "0", 1);
	assert_false(terminal_of(file).colour);
	setenv("CLICOLOR_FORCE", "1", 1);
	assert_true(terminal_of(file).colour);
	setenv("NO_COLOR", "1", 1);
	assert_false(terminal_of(file).colour);
	unsetenv("NO_COLOR");
	unsetenv("CLICOLOR_FORCE");
	fclose(file);
}

static void control_characters_are_made_visible(void **state)
{
	(void)state;
	escapes("\x1b[31m\a\x7f\r", 8, true, "\\x1b[31m\\x07\\x7f\\x0d");
	escapes("a\0b", 3, true, "a\\x00b");
	escapes("\xc2\x9b"
	        "2J",
	        4, true, "\\u009b2J");
	escapes("\xe2\x80\xae\xe2\x81\xa6", 6, true, "\\u202e\\u2066");
}

static void line_ends_are_kept_on_request(void **state)
{
	(void)state;
	escapes("a\nb\tc", 5, true, "a\nb\tc");
	escapes("a\nb\tc", 5, false, "a⏎b\\x09c");
}

static void broken_utf8_is_shown_byte_by_byte(void **state)
{
	(void)state;
	escapes("\xff\xc3", 2, true, "\\xff\\xc3");
	escapes("\xc0\x80", 2, true, "\\xc0\\x80");
	escapes("\xed\xa0\x80", 3, true, "\\xed\\xa0\\x80");
	escapes("\xf4\x90\x80\x80", 4, true, "\\xf4\\x90\\x80\\x80");
	escapes("\xe2\x98", 2, true, "\\xe2\\x98");
	escapes("\xe0\x9f\xbf"
	        "a",
	        4, true, "\\xe0\\x9f\\xbfa");
}

static void random_bytes_never_pass_a_control_character(void **state)
{
	(void)state;
	uint64_t x = 88172645463325252u;

	for (int round = 0; round < 5000; round++) {
		char bytes[32];
		text out = {0};

		for (size_t i = 0; i < sizeof(bytes); i++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			bytes[i] = (char)x;
		}
		assert_true(terminal_escape(&out, bytes, sizeof(bytes), false));
		for (size_t i = 0; i < out.used; i++)
			assert_true((unsigned char)out.data[i] >= 0x20 && out.data[i] != 0x7f);
		json_t *valid = json_stringn(text_get(&out), out.used);
		assert_non_null(valid);
		json_decref(valid);
		text_free(&out);
	}
}

static void columns_are_counted_as_a_terminal_does(void **state)
{
	(void)state;
	assert_int_equal(terminal_columns("abc", 3), 3);
	assert_int_equal(terminal_columns("ä☃", strlen("ä☃")), 2);
	assert_int_equal(terminal_columns("漢字", strlen("漢字")), 4);
	assert_int_equal(terminal_columns("e\xcc\x81", 3), 1);
	assert_int_equal(terminal_columns("🙂🚀✅", strlen("🙂🚀✅")), 6);
}

static void cuts(const char *in, int columns, const char *want)
{
	text out = {0};

	terminal_cut(&out, in, strlen(in), columns);
	assert_string_equal(text_get(&out), want);
	assert_true(terminal_columns(text_get(&out), out.used) <= columns);
	text_free(&out);
}

static void text_without_room_ends_with_an_ellipsis(void **state)
{
	(void)state;
	cuts("abcdef", 6, "abcdef");
	cuts("abcdef", 5, "abcd…");
	cuts("abcdef", 1, "…");
	cuts("abcdef", 0, "");
	cuts("漢字漢字", 8, "漢字漢字");
	cuts("漢字漢字", 7, "漢字漢…");
	cuts("漢字漢字", 6, "漢字…");
	cuts("e\xcc\x81"
	     "e\xcc\x81"
	     "xyz",
	     3,
	     "e\xcc\x81"
	     "e\xcc\x81…");
}

static char *table(const char *json, int width, const show_column *columns)
{
	char *out = NULL;
	size_t bytes = 0;
	FILE *file = open_memstream(&out, &bytes);
	json_t *list = json_loads(json, 0, NULL);

	assert_non_null(list);
	show_table(file, width, list, columns);
	fclose(file);
	json_decref(list);
	return out;
}

static void a_table_is_aligned_and_marks_missing_values(void **state)
{
	(void)state;
	static const show_column columns[] = {{"ID", "id", SHOW_PLAIN},
	                                      {"SIZE", "more.bytes", SHOW_BYTES},
	                                      {"N", "n", SHOW_PLAIN},
	                                      {NULL, NULL, SHOW_PLAIN}};
	char *out = table("[{\"id\":\"漢\",\"more\":{\"bytes\":1500},\"n\":1.5},{\"id\":\"long\\u001b\",\"n\":null}]",
	                  0, columns);

	assert_string_equal(out, "ID        SIZE    N\n"
	                         "漢        1.5 kB  1.5\n"
	                         "long\\x1b  -       -\n");
	free(out);
}

static void a_table_is_never_wider_than_the_terminal(void **state)
{
	(void)state;
	static const show_column columns[] = {{"ID", "id", SHOW_PLAIN},
	                                      {"WHY", "why", SHOW_PLAIN},
	                                      {"N", "n", SHOW_PLAIN},
	                                      {"NAME", "name", SHOW_PLAIN},
	                                      {NULL, NULL, SHOW_PLAIN}};
	static const char rows[] = "[{\"id\":\"file-0123456789\",\"n\":123456,\"name\":\"漢字漢字漢字漢字\"}]";

	for (int width = 1; width < 60; width++) {
		char *out = table(rows, width, columns);

		for (char *line = strtok(out, "\n"); line; line = strtok(NULL, "\n"))
			assert_true(terminal_columns(line, strlen(line)) <= width);
		free(out);
	}
	char *whole = table(rows, 46, columns), *cut = table(rows, 36, columns), *few = table(rows, 24, columns);
	assert_string_equal(whole, "ID               WHY  N       NAME\n"
	                           "file-0123456789  -    123456  漢字漢字漢字漢字\n");
	assert_string_equal(cut, "ID               N       NAME\n"
	                         "file-0123456789  123456  漢字漢字漢…\n");
	assert_string_equal(few, "ID               N\n"
	                         "file-0123456789  123456\n");
	free(whole);
	free(cut);
	free(few);
}

static void a_path_reaches_into_objects(void **state)
{
	(void)state;
	json_t *json = json_pack("{s:{s:{s:i}}}", "a", "b", "c", 5);

	assert_int_equal(json_integer_value(show_get(json, "a.b.c")), 5);
	assert_null(show_get(json, "a.x.c"));
	assert_null(show_get(NULL, "a"));
	json_decref(json);
}

static void ids_are_encoded_in_paths(void **state)
{
	(void)state;
	http *h = http_new("http://127.0.0.1:1///", NULL);

	assert_non_null(h);
	assert_string_equal(http_url(h), "http://127.0.0.1:1");
	assert_string_equal(http_path(h, "/v1/models/%s/files/%s?x=1", "a/b ?", "ä"),
	                    "/v1/models/a%2Fb%20%3F/files/%C3%A4?x=1");
	assert_string_equal(http_path(h, "/v1/models"), "/v1/models");
	http_free(h);
}

static void a_refused_connection_says_how_to_start_the_service(void **state)
{
	(void)state;
	http *h = http_new("http://127.0.0.1:1", "key");

	assert_non_null(h);
	assert_null(http_json(h, "GET", "/version", NULL));
	assert_int_equal(http_get_problem(h)->status, 0);
	assert_non_null(strstr(http_get_problem(h)->message, "additive serve"));
	assert_non_null(strstr(http_get_problem(h)->message, "http://127.0.0.1:1"));
	http_free(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(plain_text_of_any_language_is_untouched),
	    cmocka_unit_test(control_characters_are_made_visible),
	    cmocka_unit_test(colours_can_be_forced_and_forbidden),
	    cmocka_unit_test(line_ends_are_kept_on_request),
	    cmocka_unit_test(broken_utf8_is_shown_byte_by_byte),
	    cmocka_unit_test(random_bytes_never_pass_a_control_character),
	    cmocka_unit_test(columns_are_counted_as_a_terminal_does),
	    cmocka_unit_test(a_table_is_aligned_and_marks_missing_values),
	    cmocka_unit_test(text_without_room_ends_with_an_ellipsis),
	    cmocka_unit_test(a_table_is_never_wider_than_the_terminal),
	    cmocka_unit_test(a_path_reaches_into_objects),
	    cmocka_unit_test(ids_are_encoded_in_paths),
	    cmocka_unit_test(a_refused_connection_says_how_to_start_the_service),
	};

	terminal_begin();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
