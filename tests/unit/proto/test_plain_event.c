/* test_plain_event.c - the engine's event for a token is JSON, and the front end reads it back. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <jansson.h>
#include <string.h>

#include "proto/plain_event.h"

static const int32_t some_tokens[] = {0, 7, 50256, INT32_MAX, 1, 2, 3, 4};

/* Write the event, read it with jansson and with plain_event_read, and compare all three. */
static void goes_through(const plain_event *e)
{
	char json[PLAIN_EVENT_BYTES];
	char digits[24];
	size_t bytes = plain_event_write(e, json);
	assert_true(bytes <= sizeof json);
	json_t *object = json_loadb(json, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
	assert_non_null(object);
	assert_int_equal(json_object_size(object), 4);
	assert_int_equal(json_integer_value(json_object_get(object, "index")), e->index);
	const json_t *text = json_object_get(object, "text"), *tokens = json_object_get(object, "tokens");
	assert_int_equal(json_string_length(text), e->text_bytes);
	assert_memory_equal(json_string_value(text), e->text, e->text_bytes);
	assert_int_equal(json_array_size(tokens), e->n_tokens);
	for (int i = 0; i < e->n_tokens; i++)
		assert_int_equal(json_integer_value(json_array_get(tokens, (size_t)i)), e->tokens[i]);
	double off = json_real_value(json_object_get(object, "time_ms")) - e->time_ms;
	assert_true(json_is_real(json_object_get(object, "time_ms")) && off < 0.0006 && off > -0.0006);
	json_decref(object);

	plain_event_view view;
	assert_true(plain_event_read(&view, json, bytes));
	snprintf(digits, sizeof digits, "%d", e->index);
	assert_int_equal(view.index_bytes, strlen(digits));
	assert_memory_equal(view.index, digits, view.index_bytes);
	assert_int_equal(view.n_tokens, e->n_tokens);
	char quoted[PLAIN_EVENT_BYTES];
	size_t n = (size_t)snprintf(quoted, sizeof quoted, "\"%.*s\"", (int)view.text_bytes, view.text);
	json_t *unescaped = json_loadb(quoted, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	assert_int_equal(json_string_length(unescaped), e->text_bytes);
	assert_memory_equal(json_string_value(unescaped), e->text, e->text_bytes);
	json_decref(unescaped);
}

static void an_event_is_json_and_is_read_back(void **state)
{
	static const struct {
		const char *text;
		size_t bytes;
	} texts[] = {{"", 0},           {"a", 1},        {"\"", 1},   {"\\", 1},
	             {"\\\"\\", 3},     {"\n\t\x1f", 3}, {"a\0b", 3}, {"\xc3\xa4\xe2\x82\xac", 5},
	             {"\",\"tokens", 9}};
	(void)state;
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		for (int n = 1; n <= PLAIN_EVENT_TOKENS; n++)
			goes_through(
			    &(plain_event){(int)i * 1000, texts[i].text, texts[i].bytes, some_tokens, n, 0.5 * n});
	goes_through(&(plain_event){4095, "x", 1, some_tokens, 1, 0});
	goes_through(&(plain_event){0, "x", 1, some_tokens, 1, 86400000.25});
}

static void the_largest_event_fits(void **state)
{
	char text[PLAIN_EVENT_TEXT];
	int32_t tokens[PLAIN_EVENT_TOKENS];
	(void)state;
	memset(text, 1, sizeof text); /* six bytes each */
	for (int i = 0; i < PLAIN_EVENT_TOKENS; i++)
		tokens[i] = INT32_MAX;
	goes_through(&(plain_event){INT32_MAX, text, sizeof text, tokens, PLAIN_EVENT_TOKENS, 1e12});
}

static void anything_else_is_left_to_the_parser(void **state)
{
	static const char good[] = "{\"index\":3,\"text\":\"a\\\"b\",\"tokens\":[5,6],\"time_ms\":1.250}";
	static const char *const others[] = {
	    "",
	    "{}",
	    "{\"index\":,\"text\":\"a\",\"tokens\":[5],\"time_ms\":1.250}",
	    "{\"index\":-3,\"text\":\"a\",\"tokens\":[5],\"time_ms\":1.250}",
	    "{ \"index\":3,\"text\":\"a\",\"tokens\":[5],\"time_ms\":1.250}",
	    "{\"index\":3,\"text\":\"a\",\"tokens\":[],\"time_ms\":1.250}",
	    "{\"index\":3,\"text\":\"a\",\"tokens\":[5,],\"time_ms\":1.250}",
	    "{\"index\":3,\"text\":\"a\",\"tokens\":[-5],\"time_ms\":1.250}",
	    "{\"index\":3,\"text\":\"a\",\"tokens\":[5],\"time_ms\":1}",
	    "{\"index\":3,\"text\":\"a\",\"tokens\":[5],\"time_ms\":1.}",
	    "{\"index\":3,\"text\":\"a\",\"tokens\":[5],\"time_ms\":1.250,\"model\":\"m\"}",
	    "{\"index\":3,\"text\":\"a\nb\",\"tokens\":[5],\"time_ms\":1.250}",
	    "{\"index\":3,\"tokens\":[5],\"text\":\"a\",\"time_ms\":1.250}",
	    "{\"index\":3,\"text\":\"a\",\"tokens\":[5],\"time_ms\":1.250}}",
	    "{\"index\":3,\"text\":\"a\\"};
	plain_event_view view;
	(void)state;
	assert_true(plain_event_read(&view, good, strlen(good)));
	for (size_t cut = 0; cut < strlen(good); cut++)
		assert_false(plain_event_read(&view, good, cut));
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		assert_false(plain_event_read(&view, others[i], strlen(others[i])));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(an_event_is_json_and_is_read_back),
	    cmocka_unit_test(the_largest_event_fits),
	    cmocka_unit_test(anything_else_is_left_to_the_parser),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
