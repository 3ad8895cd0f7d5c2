/* jansson's results when memory runs out: complete or none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/json_memory.h"
#include "tests/unit/support/allocations.h"

/* Members of every type; the lengths of tokens are around every size of the lexer's buffer. */
static char *a_text(size_t longest)
{
	char *text = malloc(40 * longest + 4096), *at = text;
	at += sprintf(at, "{\"number\":12345678901234567,\"real\":0.12345678901234567,\"true\":true,\"null\":null");
	for (size_t n = 1; n <= longest; n = n < 40 ? n + 1 : n * 2 - 1) {
		at += sprintf(at, ",\"k%zu\":\"", n);
		for (size_t i = 0; i < n; i++)
			*at++ = (char)('a' + i % 26);
		at += sprintf(at, "\\n\xc3\xa4\",\"a%zu\":[1,[2,{}],{\"x\":[]}]", n);
	}
	strcpy(at, "}");
	return text;
}

static bool comes_back(const char *text, json_t **out)
{
	json_error_t error;
	*out = json_memory_parse(text, strlen(text), JSON_REJECT_DUPLICATES, &error);
	if (!*out)
		assert_true(json_memory_failed());
	return *out != NULL;
}

static void each_failing_allocation_of_a_parse(void (*refuse)(int64_t calls))
{
	char *text = a_text(20000);
	json_t *whole = json_loads(text, 0, NULL), *json = NULL;
	assert_non_null(whole);
	bool parsed = false;
	/* The steps grow, so that the longest tokens are reached too. */
	for (int64_t n = 0; !parsed; n++) {
		refuse(n);
		parsed = comes_back(text, &json);
		allocations_limit(-1);
		if (parsed)
			assert_true(json_equal(json, whole));
		json_decref(json);
	}
	json_decref(whole);
	free(text);
}

static void fail_one(int64_t after)
{
	allocations_fail(after, false);
}

static void a_parse_without_memory_fails_and_breaks_nothing(void **state)
{
	(void)state;
	each_failing_allocation_of_a_parse(fail_one);
	each_failing_allocation_of_a_parse(allocations_limit);
}

static void an_invalid_text_is_not_blamed_on_memory(void **state)
{
	(void)state;
	static const char *const wrong[] = {
	    "", "{", "{\"a\":}", "[1,2", "{\"a\":1,\"a\":2}", "\"\\", "{\"a\":\"\xff\"}", "nul", "{\"a\":\"b}"};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		json_error_t error;
		assert_null(json_memory_parse(wrong[i], strlen(wrong[i]), JSON_REJECT_DUPLICATES, &error));
		assert_false(json_memory_failed());
		assert_true(error.text[0] != '\0');
	}
	assert_null(json_memory_parse("{\"a\":\"x\0y\"}", 11, 0, NULL));
	json_t *json = json_memory_parse("{\"a\":\"x\\u0000y\"}", 16, JSON_ALLOW_NUL, NULL);
	assert_int_equal(json_string_length(json_object_get(json, "a")), 3);
	json_decref(json);
}

/* Built as answers are: without checking the results of the setters. */
static char *an_answer(void)
{
	json_memory_forget();
	json_t *list = json_array();
	for (int i = 0; i < 20; i++)
		json_array_append_new(
		    list, json_pack("{s:i, s:s, s:[f, b, n]}", "index", i, "text", "some text", "more", i / 7.0, 1));
	json_t *answer = json_pack("{s:s, s:o}", "object", "list", "data", list);
	json_object_set_new(answer, "a member that comes later", json_integer(7));
	char *text = json_memory_print(answer, JSON_COMPACT);
	json_decref(answer);
	return text;
}

static void an_answer_without_memory_is_null(void **state)
{
	(void)state;
	void (*const fails[])(int64_t) = {fail_one, allocations_limit};
	char *whole = an_answer();
	assert_non_null(whole);
	for (size_t f = 0; f < 2; f++) {
		char *text = NULL;
		for (int64_t n = 0; !text; n++) {
			fails[f](n);
			text = an_answer();
			allocations_limit(-1);
			assert_true(text ? !json_memory_failed() : json_memory_failed());
		}
		assert_string_equal(text, whole);
		free(text);
	}
	free(whole);
}

static void a_failure_is_remembered_until_the_next_answer(void **state)
{
	(void)state;
	json_memory_forget();
	allocations_fail(0, false);
	assert_null(json_object());
	json_t *json = json_object();
	assert_non_null(json);
	assert_null(json_memory_print(json, 0));
	assert_null(json_memory_print(json, 0));
	json_memory_forget();
	char *text = json_memory_print(json, 0);
	assert_string_equal(text, "{}");
	free(text);
	json_decref(json);
	assert_null(json_memory_print(NULL, 0));
}

int main(void)
{
	json_memory_install(malloc, free);
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_parse_without_memory_fails_and_breaks_nothing),
	    cmocka_unit_test(an_invalid_text_is_not_blamed_on_memory),
	    cmocka_unit_test(an_answer_without_memory_is_null),
	    cmocka_unit_test(a_failure_is_remembered_until_the_next_answer),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
