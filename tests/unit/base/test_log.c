#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/log.h"

/* Capture the bytes that log_request(level, request_id, "%s", words) writes to standard error. */
static size_t capture_request(log_level level, const char *request_id, const char *words, char *out, size_t size)
{
	int ends[2], saved = dup(STDERR_FILENO);
	assert_int_equal(pipe(ends), 0);
	fflush(stderr);
	dup2(ends[1], STDERR_FILENO);
	if (request_id)
		log_request(level, request_id, "%s", words);
	else
		log_line(level, "%s", words);
	dup2(saved, STDERR_FILENO);
	close(saved);
	close(ends[1]);
	ssize_t n = read(ends[0], out, size - 1);
	close(ends[0]);
	assert_true(n >= 0);
	out[n] = 0;
	return (size_t)n;
}

static size_t capture(log_level level, const char *words, char *out, size_t size)
{
	return capture_request(level, NULL, words, out, size);
}

static void a_line_has_time_level_program_and_message(void **state)
{
	(void)state;
	char line[2048];
	int year, month, day, hour, minute, second, used = 0;
	log_init("tester", LOG_INFO);
	capture(LOG_WARN, "water is wet", line, sizeof line);
	assert_int_equal(
	    sscanf(line, "%4d-%2d-%2dT%2d:%2d:%2dZ%n", &year, &month, &day, &hour, &minute, &second, &used), 6);
	assert_string_equal(line + used, " warn tester: water is wet\n");
}

static void a_line_below_the_threshold_is_not_written(void **state)
{
	(void)state;
	char line[2048];
	log_init("tester", LOG_WARN);
	assert_int_equal(capture(LOG_INFO, "quiet", line, sizeof line), 0);
	assert_true(capture(LOG_ERROR, "loud", line, sizeof line) > 0);
}

static void a_long_line_is_cut_and_ends_with_a_line_feed(void **state)
{
	(void)state;
	char words[5000], line[8192];
	memset(words, 'x', sizeof words - 1);
	words[sizeof words - 1] = 0;
	log_init("tester", LOG_INFO);
	size_t n = capture(LOG_INFO, words, line, sizeof line);
	assert_in_range(n, 1024, 1100);
	assert_int_equal(line[n - 1], '\n');
	assert_int_equal(line[n - 2], 'x');
}

static void a_line_about_a_request_names_it(void **state)
{
	(void)state;
	char line[2048];
	log_init("tester", LOG_INFO);
	capture_request(LOG_WARN, "req_1", "no room", line, sizeof line);
	assert_non_null(strstr(line, " warn tester: request req_1: no room\n"));
	capture_request(LOG_WARN, "", "no room", line, sizeof line);
	assert_non_null(strstr(line, " warn tester: no room\n"));
}

static void a_line_can_be_an_object_and_keeps_the_threshold(void **state)
{
	(void)state;
	char line[2048];
	log_init("tester", LOG_WARN);
	log_use_json(true);
	capture_request(LOG_ERROR, "req_1", "no room", line, sizeof line);
	assert_non_null(strstr(
	    line, ",\"level\":\"error\",\"program\":\"tester\",\"request_id\":\"req_1\",\"message\":\"no room\"}\n"));
	capture(LOG_WARN, "no request", line, sizeof line);
	assert_non_null(strstr(line, ",\"program\":\"tester\",\"message\":\"no request\"}\n"));
	assert_int_equal(capture(LOG_INFO, "quiet", line, sizeof line), 0);
	log_use_json(false);
	capture(LOG_WARN, "again", line, sizeof line);
	assert_non_null(strstr(line, " warn tester: again\n"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_line_has_time_level_program_and_message),
	    cmocka_unit_test(a_line_below_the_threshold_is_not_written),
	    cmocka_unit_test(a_long_line_is_cut_and_ends_with_a_line_feed),
	    cmocka_unit_test(a_line_about_a_request_names_it),
	    cmocka_unit_test(a_line_can_be_an_object_and_keeps_the_threshold),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
