#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/json_read.h"
#include "engine/base/manifest.h"
#include "engine/base/reserve.h"
#include "tests/unit/support/allocations.h"
#include "tests/unit/support/folder.h"

/* jansson allocates as in the daemon, but with an exhausted reserve. */
static int without_reserve(void **state)
{
	(void)state;
	json_set_alloc_funcs(reserve_malloc, reserve_free);
	allocations_limit(0);
	for (size_t bytes = RESERVE_MAX_BLOCK; bytes >= 16; bytes /= 2)
		while (reserve_malloc(bytes))
			; /* these blocks are in the reserve and need no release */
	allocations_limit(-1);
	reserve_forget();
	return 0;
}

/* Run `attempt` with each allocation failing in turn: it returns STATUS_NOMEM, or succeeds if jansson can do without.
 */
static void fail_each(status (*attempt)(void *context), void *context)
{
	int failures = 0;
	for (int64_t n = 0;; n++) {
		allocations_fail(n, false);
		status s = attempt(context);
		const bool refused = allocations_refused();
		allocations_limit(-1);
		assert_false(reserve_failed());
		if (!refused) {
			assert_int_equal(s, STATUS_OK);
			assert_true(failures > 0);
			return;
		}
		failures += s == STATUS_NOMEM;
		if (s != STATUS_OK)
			assert_int_equal(s, STATUS_NOMEM);
	}
}

static status parse(void *text)
{
	json_t *json;
	json_error_t where;
	status s = json_read(&json, text, strlen(text), JSON_REJECT_DUPLICATES, &where);
	if (s == STATUS_NOMEM)
		assert_string_equal(where.text, "out of memory");
	assert_true((json != NULL) == (s == STATUS_OK));
	json_decref(json);
	return s;
}

static void a_failed_allocation_is_not_reported_as_invalid_text(void **state)
{
	(void)state;
	fail_each(parse, "{\"a\": [1, 2.5, \"text\", {\"b\": null}], \"c\": \"d\"}");
}

static void an_invalid_text_is_reported_with_its_place(void **state)
{
	json_t *json;
	json_error_t where;
	(void)state;
	assert_int_equal(json_read(&json, "{\n]", 3, 0, &where), STATUS_INVALID);
	assert_int_equal(where.line, 2);
	assert_null(json);
	assert_int_equal(json_read(&json, "", 0, 0, NULL), STATUS_INVALID);
}

static void an_earlier_failed_allocation_is_remembered_and_not_blamed_on_the_text(void **state)
{
	json_t *json;
	(void)state;
	reserve_remember();
	assert_int_equal(json_read(&json, "[", 1, 0, NULL), STATUS_INVALID);
	assert_int_equal(json_read(&json, "[]", 2, 0, NULL), STATUS_OK);
	json_decref(json);
	assert_true(reserve_failed());
	reserve_forget();
}

static status members(void *json)
{
	int number;
	const char *text;
	return json_read_members(json, "{s:i, s:s}", "number", &number, "text", &text);
}

static status more_members(void *json)
{
	int number;
	const char *text;
	return json_read_members(json, "{s:i, s:s, s:i}", "number", &number, "text", &text, "missing", &number);
}

static void a_failed_allocation_is_not_reported_as_a_missing_member(void **state)
{
	(void)state;
	json_t *json = json_pack("{s:i, s:s}", "number", 1, "text", "x");
	fail_each(members, json);
	assert_int_equal(more_members(json), STATUS_INVALID);
	json_decref(json);
}

typedef struct sealed {
	char *text;
	size_t bytes;
} sealed;

static status parse_manifest(void *context)
{
	const sealed *m = context;
	manifest *out;
	status s = manifest_parse(&out, m->text, m->bytes, "x", NULL);
	manifest_free(out);
	return s;
}

static void a_failed_allocation_is_not_reported_as_a_damaged_manifest(void **state)
{
	char folder[64], path[128];
	sealed m;
	(void)state;
	folder_new(folder);
	json_t *about = json_pack("{s:s}", "name", "x");
	assert_int_equal(manifest_write(folder, "model", "m-1", about, NULL), STATUS_OK);
	json_decref(about);
	snprintf(path, sizeof path, "%s/" MANIFEST_NAME, folder);
	assert_int_equal(file_read(path, 1 << 20, &m.text, &m.bytes, NULL), STATUS_OK);
	fail_each(parse_manifest, &m);
	free(m.text);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

static void an_integer_that_is_missing_or_no_integer_is_the_fallback(void **state)
{
	json_t *object = json_pack("{s:I, s:s, s:f, s:n}", "n", (json_int_t)-5, "text", "5", "real", 5.0, "null");
	(void)state;
	assert_int_equal(json_read_integer(object, "n", 7), -5);
	assert_int_equal(json_read_integer(object, "text", 7), 7);
	assert_int_equal(json_read_integer(object, "real", 7), 7);
	assert_int_equal(json_read_integer(object, "null", 7), 7);
	assert_int_equal(json_read_integer(object, "missing", 7), 7);
	assert_int_equal(json_read_integer(NULL, "n", 7), 7);
	json_decref(object);
}

static void a_real_that_is_missing_or_no_number_is_the_fallback(void **state)
{
	json_t *object = json_pack("{s:f, s:i, s:s}", "x", -0.5, "n", 3, "text", "5");
	(void)state;
	assert_true(json_read_real(object, "x", 7) == -0.5);
	assert_true(json_read_real(object, "n", 7) == 3);
	assert_true(json_read_real(object, "text", 7) == 7);
	assert_true(json_read_real(object, "missing", 7) == 7);
	json_decref(object);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_failed_allocation_is_not_reported_as_invalid_text),
	    cmocka_unit_test(an_invalid_text_is_reported_with_its_place),
	    cmocka_unit_test(an_earlier_failed_allocation_is_remembered_and_not_blamed_on_the_text),
	    cmocka_unit_test(a_failed_allocation_is_not_reported_as_a_missing_member),
	    cmocka_unit_test(a_failed_allocation_is_not_reported_as_a_damaged_manifest),
	    cmocka_unit_test(an_integer_that_is_missing_or_no_integer_is_the_fallback),
	    cmocka_unit_test(a_real_that_is_missing_or_no_number_is_the_fallback),
	};
	return cmocka_run_group_tests(tests, without_reserve, NULL);
}
