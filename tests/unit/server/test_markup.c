#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "proto/json_memory.h"
#include "server/markup.h"
#include "tests/unit/support/allocations.h"

static const char *text_of(buffer *out)
{
	buffer_append(out, "", 1);
	assert_false(out->failed);
	return out->data;
}

static void markup_is_escaped(void **state)
{
	(void)state;
	buffer out = {0};
	markup_escape(&out, "a<b>&\"'c\xe2\x98\x83", 11);
	assert_string_equal(text_of(&out), "a&lt;b&gt;&amp;&quot;&#39;c\xe2\x98\x83");
	buffer_fini(&out);
}

static void what_cannot_be_seen_is_shown_by_a_sign(void **state)
{
	(void)state;
	static const struct {
		const char *json;
		bool breaks;
		const char *shown;
		size_t columns;
	} cases[] = {{"\"\"", false, "·", 1},
	             {"7", false, "·", 1},
	             {"\"a\\u0000b\"", false, "a␀b", 3},
	             {"\"\\n\\n\"", false, "↵↵", 2},
	             {"\"\\n\"", true, "↵\n", 1},
	             {"\"<漢\"", false, "&lt;漢", 3}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		json_t *text = json_loads(cases[i].json, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
		assert_non_null(text);
		buffer out = {0};
		assert_int_equal(markup_visible(&out, text, cases[i].breaks), cases[i].columns);
		assert_string_equal(text_of(&out), cases[i].shown);
		buffer_fini(&out);
		json_decref(text);
	}
}

static const char hostile[] = "{\"a\":\"</script><script>evil()\",\"<!--\":[\"\\u0000<\",\"]]>\",\"\\u2028\"]}";

static void no_text_can_end_the_data(void **state)
{
	(void)state;
	json_t *json = json_loads(hostile, JSON_ALLOW_NUL, NULL);
	buffer out = {0};
	markup_data(&out, json);
	const char *text = text_of(&out);
	assert_null(strchr(text, '<'));
	assert_int_equal(strlen(text) + 1, out.used);
	json_t *again = json_loads(text, JSON_ALLOW_NUL, NULL);
	assert_non_null(again);
	assert_true(json_equal(again, json));
	json_decref(again);
	json_decref(json);
	buffer_fini(&out);
}

static void without_memory_the_data_fails_as_a_whole(void **state)
{
	(void)state;
	json_t *json = json_loads(hostile, JSON_ALLOW_NUL, NULL);
	bool failed = true;
	int64_t allowed = 0;
	for (; failed && allowed < 1000; allowed++) {
		buffer out = {0};
		json_memory_forget();
		allocations_limit(allowed);
		markup_data(&out, json);
		allocations_limit(-1);
		failed = out.failed;
		buffer_fini(&out);
	}
	assert_true(allowed > 1 && allowed < 1000);
	json_decref(json);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(markup_is_escaped),
	    cmocka_unit_test(what_cannot_be_seen_is_shown_by_a_sign),
	    cmocka_unit_test(no_text_can_end_the_data),
	    cmocka_unit_test(without_memory_the_data_fails_as_a_whole),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
