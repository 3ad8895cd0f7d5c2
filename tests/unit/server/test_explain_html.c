#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "proto/json_memory.h"
#include "server/explain_view.h"
#include "server/markup.h"
#include "tests/unit/support/allocations.h"

/* The page as a C string. */
static char *page_of(const char *json, buffer *out)
{
	json_t *explanation = json_loads(json, JSON_ALLOW_NUL, NULL);
	assert_non_null(explanation);
	explain_html_write(explanation, "abc", out);
	buffer_append(out, "", 1);
	assert_false(out->failed);
	json_decref(explanation);
	return out->data;
}

static void markup_is_escaped(void **state)
{
	(void)state;
	buffer out = {0};
	markup_escape(&out, "a<b>&\"'c\xe2\x98\x83", 11);
	buffer_append(&out, "", 1);
	assert_string_equal(out.data, "a&lt;b&gt;&amp;&quot;&#39;c\xe2\x98\x83");
	buffer_fini(&out);
}

static void no_token_can_end_the_data(void **state)
{
	(void)state;
	buffer out = {0};
	const char *page = page_of(
	    "{\"model\":\"</title><b>\",\"position\":0,\"tokens\":[{\"id\":1,\"text\":\"</script><script>evil()\"}],"
	    "\"weights\":[{\"layer\":0,\"head\":0,\"round\":\"<q>\",\"window\":[0,0],\"alpha\":[1]}]}",
	    &out);
	assert_null(strstr(page, "<script>"));
	assert_null(strstr(page, "<b>"));
	assert_null(strstr(page, "<q>"));
	assert_non_null(strstr(page, "\\u003c/script>\\u003cscript>evil()"));
	assert_non_null(strstr(page, "&lt;/script&gt;&lt;script&gt;evil()</span>"));
	int ends = 0;
	for (const char *at = page; (at = strstr(at, "</script>")) != NULL; at++)
		ends++;
	assert_int_equal(ends, 2);
	buffer_fini(&out);
}

static void a_nul_is_shown_and_does_not_end_the_data(void **state)
{
	(void)state;
	buffer out = {0};
	const char *page =
	    page_of("{\"position\":0,\"tokens\":[{\"id\":1,\"text\":\"a\\u0000b\"}],\"weights\":[]}", &out);
	assert_int_equal(strlen(page) + 1, out.used);
	assert_non_null(strstr(page, "a␀b</span>"));
	buffer_fini(&out);
}

static void values_that_are_no_weights_are_left_out(void **state)
{
	(void)state;
	static const char *const odd[] = {
	    "{}",
	    "{\"tokens\":[{},7,null],\"weights\":[{\"alpha\":[1e308,-1,0.5],\"window\":[1,2]}]}",
	    "{\"tokens\":[{},{}],\"weights\":[{\"alpha\":[0.5],\"window\":[-1,0]}]}",
	    "{\"tokens\":[{},{}],\"weights\":[{\"alpha\":[0.5],\"window\":[9223372036854775807,0]}]}",
	    "{\"tokens\":[{},{}],\"position\":\"all\",\"weights\":[{\"score\":[1e308],\"log_normalizer\":[-1e308]}]}",
	    "{\"tokens\":[{},{}],\"position\":\"all\",\"weights\":[{\"window_size\":-7,\"score\":[0],\"log_"
	    "normalizer\":[0]}]}",
	    "{\"tokens\":[],\"position\":\"all\",\"weights\":[{\"window_size\":7,\"score\":[0],\"log_normalizer\":[0]}]"
	    "}",
	    "{\"tokens\":[{},{}],\"contributions\":{}}",
	    "{\"tokens\":[{},{}],\"contributions\":[7],\"weights\":[]}",
	    "{\"tokens\":[{}],\"contributions\":{\"tokens\":[1e308,-1e308,1],\"sums\":{\"reader\":1e308},"
	    "\"target\":{\"kind\":7,\"token\":null,\"log_probability\":1e308}}}",
	    "{\"tokens\":[{},{}],\"position\":99,\"weights\":[{}],\"aggregate\":{\"method\":\"mean\",\"alpha\":{}}}",
	};
	for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
		buffer out = {0};
		const char *page = page_of(odd[i], &out);
		assert_null(strstr(page, "nan"));
		assert_null(strstr(page, "inf"));
		buffer_fini(&out);
	}
}

static void write_page(const json_t *explanation, buffer *out)
{
	explain_html_write(explanation, "abc", out);
}

static void without_memory_nothing_is_drawn_by_halves(void (*write)(const json_t *explanation, buffer *out))
{
	json_t *explanation = json_loads(
	    "{\"tokens\":[{\"text\":\"a\"},{\"text\":\"b\"}],\"aggregate\":{\"method\":\"mean\",\"alpha\":[0.5,0.5]}}",
	    0, NULL);
	bool failed = true;
	int64_t allowed = 0;
	for (; failed && allowed < 1000; allowed++) {
		buffer out = {0};
		json_memory_forget();
		allocations_limit(allowed);
		write(explanation, &out);
		allocations_limit(-1);
		failed = out.failed;
		buffer_fini(&out);
	}
	assert_true(allowed > 3 && allowed < 1000);
	json_decref(explanation);
}

static void without_memory_the_page_and_the_picture_fail_cleanly(void **state)
{
	(void)state;
	without_memory_nothing_is_drawn_by_halves(write_page);
	without_memory_nothing_is_drawn_by_halves(explain_svg_write);
}

/* The reader's part is not among the top tokens and does not make the others paler. */
static void the_readers_part_is_shown_separately(void **state)
{
	(void)state;
	buffer out = {0};
	const char *page = page_of("{\"position\":2,\"tokens\":[{\"text\":\"a\"},{\"text\":\"b\"},{\"text\":\"c\"}],"
	                           "\"contributions\":{\"tokens\":[-0.5,0.25,8],\"score\":7.75,"
	                           "\"target\":{\"kind\":\"difference\",\"token\":{\"id\":1,\"text\":\"<x>\"},"
	                           "\"other\":{\"id\":2,\"label\":\"y\"}},"
	                           "\"sums\":{\"tokens\":-0.25,\"reader\":8}}}",
	                           &out);
	assert_non_null(strstr(page, "why “&lt;x&gt;” and not “y”"));
	assert_non_null(strstr(page, "<span style=\"--w:1\" title=\"token 0: -0.5\" class=\"minus \">a</span>"));
	assert_non_null(strstr(page, "<span style=\"--w:0.5\" title=\"token 1: +0.25\" class=\"plus \">b</span>"));
	assert_non_null(strstr(page, "<span style=\"--w:1\" title=\"token 2: +8\" class=\"plus here\">c</span>"));
	assert_non_null(strstr(page, "reader, token 2 “c”</th><td>+8.000000</td>"));
	const char *rows = strstr(page, "<tbody id=\"rows\">");
	assert_non_null(strstr(
	    rows, "<tr><td>0</td><td>a</td><td>-0.5</td></tr>\n<tr><td>1</td><td>b</td><td>+0.25</td></tr>\n</tbody>"));
	buffer_fini(&out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(markup_is_escaped),
	    cmocka_unit_test(no_token_can_end_the_data),
	    cmocka_unit_test(a_nul_is_shown_and_does_not_end_the_data),
	    cmocka_unit_test(values_that_are_no_weights_are_left_out),
	    cmocka_unit_test(without_memory_the_page_and_the_picture_fail_cleanly),
	    cmocka_unit_test(the_readers_part_is_shown_separately),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
