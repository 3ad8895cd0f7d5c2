/* The input file of a batch: its lines, its limits, and lines that are wrong. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/digest.h"
#include "engine/base/file.h"
#include "engine/base/reserve.h"
#include "engine/daemon/batches/batch_document.h"
#include "engine/daemon/batches/batch_input.h"
#include "proto/json_memory.h"
#include "tests/unit/support/folder.h"

static char folder[FOLDER_BYTES];

static int setup(void **state)
{
	(void)state;
	folder_new(folder);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	return file_remove_tree(folder, NULL) != STATUS_OK;
}

static status read_file(batch_index *out, const char *text, size_t bytes, const char *digest)
{
	char path[96];
	error err = ERROR_INIT;
	snprintf(path, sizeof path, "%s/file", folder);
	FILE *f = fopen(path, "wb");
	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, bytes, f), bytes);
	assert_int_equal(fclose(f), 0);
	*out = (batch_index){0};
	return batch_index_read(out, path, digest, &err);
}

#define LINE(id) "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"/v1/tokenize\",\"body\":{}}"

static void lines_are_found_with_their_numbers_and_duplicates(void **state)
{
	static const char text[] =
	    "\xef\xbb\xbf" LINE("a") "\n\n \t\r\n" LINE("b") "\r\nwrong\n" LINE("a") "\n" LINE("a");
	char digest[DIGEST_TEXT_BYTES];
	batch_index x;
	(void)state;
	digest_write(digest_bytes(text, sizeof text - 1), digest);
	assert_int_equal(read_file(&x, text, sizeof text - 1, digest), STATUS_OK);
	assert_null(x.problems);
	assert_int_equal(x.n, 5);
	const int numbers[] = {1, 4, 5, 6, 7};
	const bool duplicates[] = {false, false, false, true, true};
	for (int i = 0; i < 5; i++) {
		assert_int_equal(x.lines[i].number, numbers[i]);
		assert_int_equal(x.lines[i].duplicate, duplicates[i]);
	}
	assert_int_equal(x.lines[0].offset, 3);
	assert_memory_equal(text + x.lines[4].offset, LINE("a"), (size_t)x.lines[4].bytes);
	assert_int_equal(x.lines[4].bytes, strlen(LINE("a")));
	batch_index_fini(&x);
	digest[0] = digest[0] == '0' ? '1' : '0';
	assert_int_equal(read_file(&x, text, sizeof text - 1, digest), STATUS_STORAGE);
	batch_index_fini(&x);
}

static const char *first_code(const batch_index *x)
{
	return json_string_value(json_object_get(json_array_get(x->problems, 0), "code"));
}

static void a_file_without_requests_is_no_batch(void **state)
{
	batch_index x;
	(void)state;
	assert_int_equal(read_file(&x, "\n\n", 2, ""), STATUS_OK);
	assert_string_equal(first_code(&x), "empty_file");
	batch_index_fini(&x);
	assert_int_equal(read_file(&x, "[1]\n\"x\"\nplain", 13, ""), STATUS_OK);
	assert_string_equal(first_code(&x), "invalid_json_line");
	assert_int_equal(json_array_size(x.problems), 3);
	assert_int_equal(json_integer_value(json_object_get(json_array_get(x.problems, 2), "line")), 3);
	batch_index_fini(&x);
}

static void the_number_of_lines_is_limited(void **state)
{
	enum { BYTES = 3 };
	char *text = malloc((BATCH_MAX_LINES + 1) * BYTES);
	batch_index x;
	(void)state;
	for (int i = 0; i <= BATCH_MAX_LINES; i++)
		memcpy(text + (size_t)i * BYTES, "{}\n", BYTES);
	assert_int_equal(read_file(&x, text, BATCH_MAX_LINES * BYTES, ""), STATUS_OK);
	assert_null(x.problems);
	assert_int_equal(x.n, BATCH_MAX_LINES);
	batch_index_fini(&x);
	assert_int_equal(read_file(&x, text, (BATCH_MAX_LINES + 1) * BYTES, ""), STATUS_OK);
	assert_string_equal(first_code(&x), "too_many_requests");
	batch_index_fini(&x);
	free(text);
}

static void check_line(const char *text, const char *code)
{
	batch_request x;
	char *copy = strdup(text);
	const batch_place line = {.bytes = (int32_t)strlen(text), .number = 3};
	assert_int_equal(batch_request_read(&x, batch_endpoint_find("/v1/completions"), &line, copy), STATUS_OK);
	if (code) {
		assert_null(x.body);
		assert_string_equal(x.code, code);
		assert_non_null(strstr(x.message, "line 3"));
	} else {
		assert_non_null(x.body);
		assert_null(x.code);
	}
	batch_request_fini(&x);
	free(copy);
}

#define REQUEST(members) "{\"custom_id\":\"a\"," members "}"
#define POST "\"method\":\"POST\",\"url\":\"/v1/completions\","

static void integers_have_every_notation_but_functions_are_as_written(void **state)
{
	(void)state;
	batch_request x;
	char text[] = REQUEST(POST "\"body\":{\"n\":1.0,\"tools\":[{\"minimum\":1.0}]}");
	const batch_place line = {.bytes = (int32_t)strlen(text), .number = 1};
	assert_int_equal(batch_request_read(&x, batch_endpoint_find("/v1/completions"), &line, text), STATUS_OK);
	assert_true(json_is_integer(json_object_get(x.body, "n")));
	assert_true(json_is_real(json_object_get(json_array_get(json_object_get(x.body, "tools"), 0), "minimum")));
	batch_request_fini(&x);
}

static void a_wrong_line_has_a_code(void **state)
{
	(void)state;
	check_line(REQUEST(POST "\"body\":{}"), NULL);
	check_line(REQUEST(POST "\"body\":{\"stream\":false,\"stream_options\":null}"), NULL);
	check_line("nonsense", "invalid_json");
	check_line("[]", "invalid_json");
	check_line(REQUEST(POST "\"body\":{},\"body\":{}"), "invalid_json");
	check_line("{" POST "\"body\":{}}", "missing_custom_id");
	check_line("{\"custom_id\":1," POST "\"body\":{}}", "invalid_custom_id");
	check_line("{\"custom_id\":\"a\\u0000\"," POST "\"body\":{}}", "invalid_custom_id");
	check_line(REQUEST("\"method\":\"post\",\"url\":\"/v1/completions\",\"body\":{}"), "invalid_method");
	check_line(REQUEST("\"method\":\"POST\",\"url\":\"/v1/embeddings\",\"body\":{}"), "invalid_url");
	check_line(REQUEST(POST "\"body\":[]"), "invalid_body");
	check_line(REQUEST("\"method\":\"POST\",\"url\":\"/v1/completions\""), "invalid_body");
	check_line(REQUEST(POST "\"body\":{},\"more\":1"), "unknown_parameter");
	check_line(REQUEST(POST "\"body\":{\"stream\":true}"), "invalid_value");
	check_line(REQUEST(POST "\"body\":{\"stream_options\":{}}"), "invalid_value");
	check_line(REQUEST(POST "\"body\":{\"response\":{\"key\":\"key-other\"}}"), "unknown_parameter");
	check_line(REQUEST(POST "\"body\":{\"response\":null}"), NULL);
}

static void a_line_cannot_stream_or_be_kept(void **state)
{
	static const char *const bodies[] = {"\"stream\":1", "\"stream\":null", "\"background\":true",
	                                     "\"return_state\":true", "\"state\":\"x\"", "\"store\":true"};
	(void)state;
	for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
		char text[128];
		batch_request x;
		snprintf(text, sizeof text, REQUEST("\"method\":\"POST\",\"url\":\"/v1/responses\",\"body\":{%s}"),
		         bodies[i]);
		const batch_place line = {.bytes = (int32_t)strlen(text), .number = 1};
		assert_int_equal(batch_request_read(&x, batch_endpoint_find("/v1/responses"), &line, text), STATUS_OK);
		assert_null(x.body);
		assert_string_equal(x.code, "invalid_value");
		batch_request_fini(&x);
	}
	check_line(REQUEST(POST "\"body\":{\"background\":false,\"return_state\":false}"), NULL);
	check_line(REQUEST(POST "\"body\":{\"background\":true}"), "invalid_value");
}

static void integers_are_read_as_over_http(void **state)
{
	batch_request x;
	char text[] = REQUEST(POST "\"body\":{\"n\":2.0,\"seed\":99999999999999999999}");
	const batch_place line = {.bytes = sizeof text - 1, .number = 1};
	(void)state;
	assert_int_equal(batch_request_read(&x, batch_endpoint_find("/v1/completions"), &line, text), STATUS_OK);
	assert_true(json_is_integer(json_object_get(x.body, "n")));
	assert_true(json_is_real(json_object_get(x.body, "seed"))); /* for its field's own check */
	batch_request_fini(&x);
}

static void windows_have_a_unit_and_a_limit(void **state)
{
	(void)state;
	assert_int_equal(batch_window_seconds("24h"), 86400);
	assert_int_equal(batch_window_seconds("90s"), 90);
	assert_int_equal(batch_window_seconds("5m"), 300);
	assert_int_equal(batch_window_seconds("30d"), 30 * 86400);
	static const char *const wrong[] = {"", "h", "24", "0h", "31d", "9999999d", "12345678s", "24hh", "1.5h", "-1h"};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		assert_int_equal(batch_window_seconds(wrong[i]), 0);
}

int main(void)
{
	json_memory_install(reserve_malloc, reserve_free);
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(lines_are_found_with_their_numbers_and_duplicates),
	    cmocka_unit_test(a_file_without_requests_is_no_batch),
	    cmocka_unit_test(the_number_of_lines_is_limited),
	    cmocka_unit_test(integers_have_every_notation_but_functions_are_as_written),
	    cmocka_unit_test(a_wrong_line_has_a_code),
	    cmocka_unit_test(a_line_cannot_stream_or_be_kept),
	    cmocka_unit_test(integers_are_read_as_over_http),
	    cmocka_unit_test(windows_have_a_unit_and_a_limit),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
