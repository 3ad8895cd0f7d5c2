#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "proto/log_record.h"

static const log_record plain = {.level = "warn", .program = "tester", .message = "water is wet"};

/* Format as JSON and parse it. */
static json_t *parsed(const log_record *r)
{
	char line[LOG_RECORD_BYTES];
	const size_t n = log_record_format(r, true, line);
	assert_in_range(n, 2, LOG_RECORD_BYTES);
	assert_int_equal(line[n - 1], '\n');
	assert_null(memchr(line, '\n', n - 1));
	json_t *object = json_loadb(line, n - 1, JSON_REJECT_DUPLICATES, NULL);
	assert_non_null(object);
	return object;
}

static void assert_member(const json_t *object, const char *name, const char *expected)
{
	assert_string_equal(json_string_value(json_object_get(object, name)), expected);
}

static void a_text_line_has_time_level_program_and_message(void **state)
{
	(void)state;
	char line[LOG_RECORD_BYTES + 1];
	int year, used = 0;
	line[log_record_format(&plain, false, line)] = '\0';
	assert_int_equal(sscanf(line, "%4d-%*2d-%*2dT%*2d:%*2d:%*2dZ%n", &year, &used), 1);
	assert_string_equal(line + used, " warn tester: water is wet\n");
}

static void a_json_line_is_one_object_with_the_given_members(void **state)
{
	(void)state;
	const log_member members[] = {{.name = "route", .text = "/v1/x"}, {.name = "seconds", .number = 0.25}};
	log_record r = plain;
	r.request_id = "req_1";
	r.members = members;
	r.n_members = 2;
	json_t *object = parsed(&r);
	assert_int_equal(json_object_size(object), 7);
	assert_int_equal(strlen(json_string_value(json_object_get(object, "time"))), strlen("2026-01-31T12:00:00Z"));
	assert_member(object, "level", "warn");
	assert_member(object, "program", "tester");
	assert_member(object, "request_id", "req_1");
	assert_member(object, "route", "/v1/x");
	assert_true(json_real_value(json_object_get(object, "seconds")) == 0.25);
	assert_member(object, "message", "water is wet");
	json_decref(object);
	object = parsed(&plain);
	assert_int_equal(json_object_size(object), 4);
	json_decref(object);
}

static void strings_are_escaped_and_bytes_that_are_not_utf8_replaced(void **state)
{
	(void)state;
	static const struct {
		const char *message, *expected;
	} cases[] = {{"\"quoted\" \\ a\nb\x01", "\"quoted\" \\ a\nb\x01"},
	             {"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"},
	             {"\x80 \xff \xc3", "? ? ?"},
	             {"\xc0\xaf", "??"},                 /* longer than needed */
	             {"\xed\xa0\x80", "???"},            /* a surrogate */
	             {"\xf4\x90\x80\x80", "????"},       /* beyond U+10FFFF */
	             {"\xe2\x82", "??"}};                /* cut */
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		log_record r = plain;
		r.message = cases[i].message;
		json_t *object = parsed(&r);
		assert_member(object, "message", cases[i].expected);
		json_decref(object);
	}
}

static void a_long_message_is_cut_and_the_line_stays_whole(void **state)
{
	(void)state;
	static const char *const pieces[] = {"x", "\x01", "\xf0\x9f\x98\x80", "\xff"};
	for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
		char message[8000] = "", line[LOG_RECORD_BYTES];
		for (size_t used = 0; used + 5 < sizeof message; used += strlen(pieces[i]))
			strcpy(message + used, pieces[i]);
		log_member members[LOG_RECORD_MEMBERS];
		for (int k = 0; k < LOG_RECORD_MEMBERS; k++)
			members[k] = (log_member){.name = "sixteen-letters-", .number = -1.23456789e-300};
		members[0].text = message;
		log_record r = {.level = "error", .program = "additive-httpd", .message = message};
		json_decref(parsed(&r));
		r.request_id = message;
		r.members = members;
		r.n_members = 1;
		json_decref(parsed(&r));
		r.n_members = LOG_RECORD_MEMBERS; /* equal names, so only the size is checked */
		assert_in_range(log_record_format(&r, true, line), LOG_RECORD_BYTES / 2, LOG_RECORD_BYTES);
		assert_int_equal(log_record_format(&r, false, line), LOG_RECORD_BYTES);
		assert_int_equal(line[LOG_RECORD_BYTES - 1], '\n');
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_text_line_has_time_level_program_and_message),
	    cmocka_unit_test(a_json_line_is_one_object_with_the_given_members),
	    cmocka_unit_test(strings_are_escaped_and_bytes_that_are_not_utf8_replaced),
	    cmocka_unit_test(a_long_message_is_cut_and_the_line_stays_whole),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
