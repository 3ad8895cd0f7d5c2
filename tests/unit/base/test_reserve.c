#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json_text.h"
#include "engine/base/reserve.h"
#include "tests/unit/support/allocations.h"

/* Let memory fail (after `calls` more calls), or work again. */
static void limit(int64_t calls)
{
	allocations_limit(calls);
}

static json_t *numbers(int n)
{
	json_t *array = json_array();
	for (int i = 0; i < n; i++)
		json_array_append_new(array, json_pack("{s:i, s:s}", "number", i, "text", "bottles of beer"));
	return array;
}

static void a_block_of_the_reserve_holds_its_content(void **state)
{
	(void)state;
	limit(0);
	char *a = reserve_malloc(100), *b = reserve_calloc(10, 10);
	assert_non_null(a);
	assert_non_null(b);
	for (int i = 0; i < 100; i++)
		assert_int_equal(b[i], 0);
	memset(a, 'a', 100);
	a = reserve_realloc(a, 5000);
	assert_non_null(a);
	for (int i = 0; i < 100; i++)
		assert_int_equal(a[i], 'a');
	limit(-1);
	reserve_free(a);
	reserve_free(b);
	assert_false(reserve_failed());
}

static void a_block_of_the_c_library_grows_into_the_reserve(void **state)
{
	(void)state;
	char *a = reserve_malloc(1000);
	memset(a, 'x', 1000);
	limit(0);
	a = reserve_realloc(a, 20000);
	assert_non_null(a);
	limit(-1);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(a[i], 'x');
	reserve_free(a);
}

static void an_exhausted_reserve_fails_is_reported_and_recovers(void **state)
{
	(void)state;
	static void *blocks[RESERVE_BYTES / 1000];
	for (int round = 0; round < 3; round++) {
		int n = 0;
		limit(0);
		while ((blocks[n] = reserve_malloc(10000)))
			n++;
		limit(-1);
		assert_int_equal(n, (RESERVE_BYTES - 16) / 10016);
		assert_true(reserve_failed());
		reserve_forget();
		assert_false(reserve_failed());
		while (n > 0)
			reserve_free(blocks[--n]);
	}
}

static void large_blocks_do_not_exhaust_the_reserve(void **state)
{
	(void)state;
	limit(0);
	assert_null(reserve_malloc(RESERVE_MAX_BLOCK + 1));
	assert_true(reserve_failed());
	reserve_forget();
	limit(-1);
}

/* The text itself is allocated by the C library. */
static void a_document_built_in_a_shortage_is_complete(void **state)
{
	(void)state;
	json_t *calm = numbers(100);
	char *expected = json_text(calm, JSON_COMPACT);
	json_decref(calm);
	assert_non_null(expected);
	limit(0);
	json_t *short_of_memory = numbers(100);
	limit(-1);
	char *text = json_text(short_of_memory, JSON_COMPACT);
	json_decref(short_of_memory);
	assert_non_null(text);
	assert_string_equal(text, expected);
	free(text);
	free(expected);
}

static void an_answer_is_printed_without_memory(void **state)
{
	(void)state;
	limit(0);
	json_t *answer = numbers(200);
	char *text = json_text_reserve(answer, JSON_COMPACT);
	limit(-1);
	char *expected = json_text(answer, JSON_COMPACT);
	json_decref(answer);
	assert_non_null(text);
	assert_string_equal(text, expected);
	reserve_free(text);
	free(expected);
}

static void a_document_with_a_hole_has_no_text(void **state)
{
	(void)state;
	limit(0);
	json_t *holes = numbers(20000);
	limit(-1);
	assert_true(json_array_size(holes) < 20000);
	assert_null(json_text(holes, JSON_COMPACT));
	json_decref(holes);
	json_t *next = numbers(3);
	char *text = json_text(next, JSON_COMPACT);
	assert_non_null(text);
	free(text);
	json_decref(next);
}

static void a_text_is_complete_or_null_whichever_allocation_fails(void **state)
{
	(void)state;
	json_t *document = numbers(500);
	char *expected = json_text(document, JSON_COMPACT), *text = NULL;
	int64_t calls = 0;
	for (; !text && calls < 10000; calls++) {
		limit(calls);
		text = json_text(document, JSON_COMPACT);
		limit(-1);
	}
	assert_non_null(text);
	assert_true(calls > 3);
	assert_string_equal(text, expected);
	free(text);
	free(expected);
	json_decref(document);
	assert_null(json_text(NULL, 0));
}

int main(void)
{
	json_set_alloc_funcs(reserve_malloc, reserve_free);
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_block_of_the_reserve_holds_its_content),
	    cmocka_unit_test(a_block_of_the_c_library_grows_into_the_reserve),
	    cmocka_unit_test(an_exhausted_reserve_fails_is_reported_and_recovers),
	    cmocka_unit_test(large_blocks_do_not_exhaust_the_reserve),
	    cmocka_unit_test(a_document_built_in_a_shortage_is_complete),
	    cmocka_unit_test(an_answer_is_printed_without_memory),
	    cmocka_unit_test(a_document_with_a_hole_has_no_text),
	    cmocka_unit_test(a_text_is_complete_or_null_whichever_allocation_fails),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
