#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "server/problem.h"
#include "tests/unit/support/allocations.h"

static problem make(int status, const char *code, const char *param, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	problem p = problem_make(status, code, param, format, arguments);
	va_end(arguments);
	return p;
}

static json_t *error_of(const problem *p)
{
	buffer out = {0};
	problem_write(p, &out);
	assert_false(out.failed);
	json_t *json = json_loadb(out.data, out.used, 0, NULL);
	buffer_fini(&out);
	assert_non_null(json);
	json_t *error = json_incref(json_object_get(json, "error"));
	json_decref(json);
	assert_int_equal(json_object_size(error), 4);
	return error;
}

static const char *text(const json_t *error, const char *key)
{
	return json_string_value(json_object_get(error, key));
}

static void the_type_follows_from_the_status(void **state)
{
	(void)state;
	static const struct {
		int status;
		const char *type;
	} cases[] = {{400, "invalid_request_error"}, {401, "authentication_error"}, {404, "invalid_request_error"},
	             {413, "invalid_request_error"}, {429, "rate_limit_error"},     {500, "server_error"},
	             {503, "server_error"}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		problem p = make(cases[i].status, "code", NULL, "because %d", 7);
		json_t *error = error_of(&p);
		assert_string_equal(text(error, "type"), cases[i].type);
		assert_string_equal(text(error, "message"), "because 7");
		assert_true(json_is_null(json_object_get(error, "param")));
		assert_int_equal(p.retry_after, cases[i].status == 429 || cases[i].status == 503);
		json_decref(error);
	}
}

static void text_that_is_cut_or_not_utf8_is_still_json(void **state)
{
	(void)state;
	char words[700];
	for (size_t i = 0; i + 1 < sizeof words; i += 3)
		memcpy(words + i, "\xe2\x98\x83", 3);
	words[sizeof words - 1] = '\0';
	problem p = make(400, "code", words, "%s", words);
	json_decref(error_of(&p));
	p = make(400, "code", "a\xff", "\xff\xfe <\"> \x01");
	json_t *error = error_of(&p);
	assert_string_equal(text(error, "param"), "a?");
	assert_string_equal(text(error, "message"), "?? <\"> \x01");
	json_decref(error);
}

static problem from(const char *json)
{
	frame f = {.type = FRAME_ERROR, .json = json, .json_bytes = strlen(json)};
	return problem_from_frame(&f);
}

static void an_error_frame_is_passed_on_unchanged(void **state)
{
	(void)state;
	problem p = from("{\"status\":409,\"code\":\"session_busy\",\"message\":\"m\",\"param\":\"id\"}");
	assert_int_equal(p.status, 409);
	assert_string_equal(p.code, "session_busy");
	assert_string_equal(p.param, "id");
	assert_int_equal(p.retry_after, 0);
	assert_int_equal(from("{\"status\":429,\"retry_after\":2.1}").retry_after, 3);
	assert_int_equal(from("{\"status\":503}").retry_after, 1);
	assert_int_equal(from("{\"status\":429}").retry_after, 1);
	assert_int_equal(from("{\"status\":429,\"param\":\"max_jobs\"}").retry_after, 0);
}

static void an_error_frame_may_have_any_content(void **state)
{
	(void)state;
	static const char *const odd[] = {"",
	                                  "{",
	                                  "[]",
	                                  "7",
	                                  "{\"status\":\"x\"}",
	                                  "{\"status\":200}",
	                                  "{\"status\":1e9}",
	                                  "{\"code\":{},\"message\":[],\"param\":7}",
	                                  "{\"retry_after\":-1}",
	                                  "{\"retry_after\":1e300}"};
	for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
		problem p = from(odd[i]);
		assert_int_equal(p.status, 500);
		assert_int_equal(p.retry_after, 0);
		assert_true(p.code[0] && p.message[0]);
	}
}

static void without_memory_no_incomplete_error_is_written(void **state)
{
	(void)state;
	problem p = make(400, "code", "p", "\xff");
	bool failed = true;
	int64_t allowed = 0;
	for (; failed && allowed < 1000; allowed++) {
		buffer out = {0};
		allocations_limit(allowed);
		problem_write(&p, &out);
		allocations_limit(-1);
		failed = out.failed;
		assert_true(failed || out.data[out.used - 1] == '}');
		buffer_fini(&out);
	}
	assert_true(allowed > 3 && allowed < 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_type_follows_from_the_status),
	    cmocka_unit_test(text_that_is_cut_or_not_utf8_is_still_json),
	    cmocka_unit_test(an_error_frame_is_passed_on_unchanged),
	    cmocka_unit_test(an_error_frame_may_have_any_content),
	    cmocka_unit_test(without_memory_no_incomplete_error_is_written),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
