#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "engine/base/json_text.h"
#include "tests/unit/support/allocations.h"

/* Names and values of many lengths, so that the buffer grows at every kind of place. */
static json_t *document(int members)
{
	json_t *all = json_object();
	for (int i = 0; i < members; i++) {
		char name[64];
		snprintf(name, sizeof name, "%.*s%d", i % 40, "a name that is longer than a few characters", i);
		json_object_set_new(all, name,
		                    i % 3 ? json_pack("[i, {s:f}, s]", i, "x", 0.1 * i, name) : json_integer(i));
	}
	return all;
}

static void a_text_equals_that_of_jansson(void **state)
{
	(void)state;
	static const size_t flags[] = {0, JSON_COMPACT, JSON_INDENT(2) | JSON_SORT_KEYS, JSON_REAL_PRECISION(17)};
	json_t *all = document(200);
	for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
		char *got = json_text(all, flags[i]), *want = json_dumps(all, flags[i]);
		assert_string_equal(got, want);
		free(got);
		free(want);
	}
	json_decref(all);
	assert_null(json_text(NULL, 0));
}

static void a_text_is_complete_or_missing_when_memory_is_short(void **state)
{
	(void)state;
	json_t *all = document(60);
	char *want = json_text(all, JSON_SORT_KEYS);
	for (int once = 0; once < 2; once++)
		for (int64_t n = 0;; n++) {
			if (once)
				allocations_fail(n, false);
			else
				allocations_limit(n);
			char *got = json_text(all, JSON_SORT_KEYS);
			allocations_limit(-1);
			if (got)
				assert_string_equal(got, want);
			free(got);
			if (!allocations_refused()) {
				assert_non_null(got);
				assert_true(n > 10);
				break;
			}
		}
	free(want);
	json_decref(all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_text_equals_that_of_jansson),
	    cmocka_unit_test(a_text_is_complete_or_missing_when_memory_is_short),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
