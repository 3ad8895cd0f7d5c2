#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "server/uri.h"

static void a_path_is_split_and_then_decoded(void **state)
{
	(void)state;
	uri u;
	assert_true(uri_parse(&u, "/v1/models/a%2Fb%20c/x"));
	assert_int_equal(u.n_segments, 4);
	assert_string_equal(u.segments[2], "a/b c");
	assert_string_equal(u.segments[3], "x");
	assert_int_equal(u.n_query, 0);
	uri_fini(&u);
}

static void the_root_has_no_segments(void **state)
{
	(void)state;
	uri u;
	assert_true(uri_parse(&u, "/"));
	assert_int_equal(u.n_segments, 0);
	uri_fini(&u);
	assert_true(uri_parse(&u, "/?a=1"));
	assert_int_equal(u.n_segments, 0);
	assert_string_equal(uri_query(&u, "a"), "1");
	uri_fini(&u);
}

static void empty_segments_are_kept(void **state)
{
	(void)state;
	uri u;
	assert_true(uri_parse(&u, "/v1//models/"));
	assert_int_equal(u.n_segments, 4);
	assert_string_equal(u.segments[1], "");
	assert_string_equal(u.segments[3], "");
	uri_fini(&u);
}

static void a_query_is_split_and_then_decoded(void **state)
{
	(void)state;
	uri u;
	assert_true(uri_parse(&u, "/x?a=1&b=c%26d+e&&flag&z=%E2%98%83"));
	assert_int_equal(u.n_query, 4);
	assert_string_equal(uri_query(&u, "b"), "c&d e");
	assert_string_equal(uri_query(&u, "flag"), "");
	assert_string_equal(uri_query(&u, "z"), "\xe2\x98\x83");
	assert_null(uri_query(&u, "y"));
	uri_fini(&u);
}

static void an_absolute_target_is_reduced_to_its_path(void **state)
{
	(void)state;
	uri u;
	assert_true(uri_parse(&u, "http://host:80/v1?x=y"));
	assert_int_equal(u.n_segments, 1);
	assert_string_equal(u.segments[0], "v1");
	uri_fini(&u);
}

static void malformed_targets_are_refused(void **state)
{
	(void)state;
	static const char *const bad[] = {"",
	                                  "*",
	                                  "v1",
	                                  "host:80",
	                                  "http://host",
	                                  "/%",
	                                  "/%4",
	                                  "/%zz",
	                                  "/%00",
	                                  "/a%00b",
	                                  "/%ff",
	                                  "/a b",
	                                  "/\x01",
	                                  "/x?a=%0",
	                                  "/x?%00=1",
	                                  "/x?a=%ff",
	                                  "/\x7f",
	                                  "/%C0%AE",
	                                  "/x?a=\n",
	                                  "/1/2/3/4/5/6/7/8/9",
	                                  "/x?a&b&c&d&e&f&g&h&i&j&k&l&m&n&o&p&q"};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		uri u;
		if (uri_parse(&u, bad[i]))
			fail_msg("accepted: %s", bad[i]);
		assert_null(u.memory);
		uri_fini(&u);
	}
}

static void an_id_is_short_and_has_plain_characters(void **state)
{
	(void)state;
	char longest[65];
	memset(longest, 'a', sizeof longest);
	longest[63] = '\0';
	assert_true(uri_id_valid("a"));
	assert_true(uri_id_valid("ft:additive:my_model-1.2"));
	assert_true(uri_id_valid("..a"));
	assert_true(uri_id_valid(longest));
	longest[63] = 'a';
	longest[64] = '\0';
	assert_false(uri_id_valid(longest));
	static const char *const bad[] = {"", ".", "..", "...", "a/b", "a b", "a\\b", "\xc3\xa9", "a\n", "%2e", "~"};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_false(uri_id_valid(bad[i]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_path_is_split_and_then_decoded),
	    cmocka_unit_test(the_root_has_no_segments),
	    cmocka_unit_test(empty_segments_are_kept),
	    cmocka_unit_test(a_query_is_split_and_then_decoded),
	    cmocka_unit_test(an_absolute_target_is_reduced_to_its_path),
	    cmocka_unit_test(malformed_targets_are_refused),
	    cmocka_unit_test(an_id_is_short_and_has_plain_characters),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
