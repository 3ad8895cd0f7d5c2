#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "proto/json_memory.h"
#include "server/explain_view.h"
#include "tests/unit/support/allocations.h"

/* The picture as a C string. */
static char *picture_of(const char *json, buffer *out)
{
	json_t *explanation = json_loads(json, JSON_ALLOW_NUL, NULL);
	assert_non_null(explanation);
	explain_svg_write(explanation, out);
	buffer_append(out, "", 1);
	assert_false(out->failed);
	json_decref(explanation);
	return out->data;
}

static void texts_are_no_markup(void **state)
{
	(void)state;
	buffer out = {0};
	const char *picture = picture_of("{\"position\":0,\"tokens\":[{\"id\":1,\"text\":\"</svg><b>\\u0000\"}],"
	                                 "\"weights\":[{\"layer\":0,\"head\":0,\"round\":\"<q>\",\"window\":[0,0],\"alpha\":[1]}]}",
	                                 &out);
	assert_int_equal(strlen(picture) + 1, out.used);
	assert_null(strstr(picture, "<b>"));
	assert_null(strstr(picture, "<q>"));
	assert_non_null(strstr(picture, "&lt;/svg&gt;&lt;b&gt;␀</text>"));
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
		const char *picture = picture_of(odd[i], &out);
		assert_null(strstr(picture, "nan"));
		assert_null(strstr(picture, "inf"));
		buffer_fini(&out);
	}
}

static void without_memory_nothing_is_drawn_by_halves(void **state)
{
	(void)state;
	json_t *explanation = json_loads(
	    "{\"tokens\":[{\"text\":\"a\"},{\"text\":\"b\"}],\"aggregate\":{\"method\":\"mean\",\"alpha\":[0.5,0.5]}}",
	    0, NULL);
	bool failed = true;
	int64_t allowed = 0;
	for (; failed && allowed < 1000; allowed++) {
		buffer out = {0};
		json_memory_forget();
		allocations_limit(allowed);
		explain_svg_write(explanation, &out);
		allocations_limit(-1);
		failed = out.failed;
		buffer_fini(&out);
	}
	assert_true(allowed > 3 && allowed < 1000);
	json_decref(explanation);
}

/* The reader's part is not among the top tokens and does not make the others paler. */
static void the_readers_part_is_shown_separately(void **state)
{
	(void)state;
	buffer out = {0};
	const char *picture = picture_of("{\"position\":2,\"tokens\":[{\"text\":\"a\"},{\"text\":\"b\"},{\"text\":\"c\"}],"
	                                 "\"contributions\":{\"tokens\":[-0.5,0.25,8],\"score\":7.75,"
	                                 "\"target\":{\"kind\":\"difference\",\"token\":{\"id\":1,\"text\":\"<x>\"},"
	                                 "\"other\":{\"id\":2,\"label\":\"y\"}},"
	                                 "\"sums\":{\"tokens\":-0.25,\"reader\":8}}}",
	                                 &out);
	assert_non_null(strstr(picture, "why “&lt;x&gt;” and not “y”"));
	assert_non_null(strstr(picture, "score +7.75 = tokens -0.25, reader +8,"));
	/* The legend ends at the largest number but the reader's, and half of it is half as dark. */
	assert_non_null(strstr(picture, "+0.5</text>"));
	assert_non_null(strstr(picture, "fill-opacity=\"0.38\""));
	assert_non_null(strstr(picture, "token 2: +8</title>c</text>"));
	buffer_fini(&out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(texts_are_no_markup),
	    cmocka_unit_test(values_that_are_no_weights_are_left_out),
	    cmocka_unit_test(without_memory_nothing_is_drawn_by_halves),
	    cmocka_unit_test(the_readers_part_is_shown_separately),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
