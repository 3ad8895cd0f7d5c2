#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/preferences.h"
#include "tests/unit/support/allocations.h"
#include "tests/unit/support/bytes.h"
#include "tests/unit/support/datasets.h"
#include "tests/unit/support/record.h"

/* Prompt > chosen / prompt > rejected, with | for an end token. */
static void assert_record(const dataset *d, int64_t i, const char *want)
{
	char text[96];
	int n = 0;
	text_record r = record_at(d, 0, 0, i);
	assert_int_equal(r.number, i);
	for (int64_t k = 0; k <= r.count; k++) {
		if (k == r.source)
			text[n++] = '>';
		if (k == r.second)
			text[n++] = '/';
		if (k == r.second + r.source)
			text[n++] = '>';
		if (k < r.count)
			text[n++] = r.ids[k] == BYTES_END ? '|' : (char)(r.ids[k] - BYTES_FIRST);
	}
	text[n] = 0;
	assert_string_equal(text, want);
}

static dataset *read_lines(const tokenizer *t, const char *text, int64_t length)
{
	dataset *d;
	error err = ERROR_INIT;
	status s = preferences_new(&d, NULL, t, text, strlen(text), length, 0, &err);
	assert_string_equal(err.message, "");
	assert_int_equal(s, STATUS_OK);
	return d;
}

static void a_line_becomes_two_sequences_with_the_same_prompt(void **state)
{
	dataset *d = read_lines(*state,
	                        "{\"prompt\": \"ab\", \"chosen\": \"xyz\", \"rejected\": \"u\", \"more\": 1}\n\n"
	                        "{\"rejected\": \"\", \"chosen\": \"v\", \"prompt\": \"c\"}\n",
	                        8);
	assert_int_equal(dataset_kind(d), RECORD_PREFERENCE);
	assert_int_equal(dataset_records(d), 2);
	assert_int_equal(dataset_length(d), 8);
	assert_int_equal(dataset_room(d), 16);
	assert_record(d, 0, "ab>xyz|/ab>u|");
	assert_record(d, 1, "c>v|/c>|");
	dataset_free(d);
}

static void a_long_sequence_loses_its_end(void **state)
{
	dataset *d = read_lines(*state,
	                        "{\"prompt\": \"ab\", \"chosen\": \"xyz\", \"rejected\": \"u\"}\n"
	                        "{\"prompt\": \"abcdef\", \"chosen\": \"xyz\", \"rejected\": \"u\"}\n",
	                        4);
	assert_record(d, 0, "ab>xy/ab>u|");
	assert_record(d, 1, "abcd>/abcd>");
	dataset_free(d);
}

static void sequences_stay_together_when_records_are_shuffled_and_divided(void **state)
{
	enum { RECORDS = 25 };
	char text[RECORDS * 80], seen[RECORDS] = {0};
	size_t bytes = 0;
	dataset *sets[2];
	for (int i = 0; i < RECORDS; i++)
		bytes += (size_t)snprintf(text + bytes, sizeof text - bytes,
		                          "{\"prompt\": \"%c\", \"chosen\": \"%c\", \"rejected\": \"%.*s\"}\n", 'A' + i,
		                          'A' + i, i % 7, "zzzzzzz");
	assert_int_equal(preferences_new(&sets[0], &sets[1], *state, text, bytes, 12, 0.2, NULL), STATUS_OK);
	assert_int_equal(dataset_records(sets[0]), 20);
	assert_int_equal(dataset_records(sets[1]), 5);
	for (int set = 0; set < 2; set++) {
		for (int64_t i = 0; i < dataset_records(sets[set]); i++) {
			text_record r = record_at(sets[set], 5, 0, i), again = record_at(sets[set], 0, 0, r.number);
			const int number = r.ids[0] - BYTES_FIRST - 'A';
			assert_true(r.source == 1 && r.second == 3 && r.count == 3 + 1 + number % 7 + 1);
			assert_true(r.ids[1] == r.ids[0] && r.ids[r.second] == r.ids[0]);
			assert_memory_equal(r.ids, again.ids, (size_t)r.count * sizeof *r.ids);
			seen[number]++;
		}
		dataset_free(sets[set]);
	}
	for (int i = 0; i < RECORDS; i++)
		assert_int_equal(seen[i], 1);
}

static void running_out_of_memory_is_an_error_and_leaks_nothing(void **state)
{
	static const char text[] = "{\"prompt\": \"ab\", \"chosen\": \"xyz\", \"rejected\": \"u\"}\n"
	                           "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"chosen\": "
	                           "[{\"role\": \"assistant\", \"content\": \"b\"}], \"rejected\": "
	                           "[{\"role\": \"assistant\", \"content\": \"c\"}]}\n";
	chat_template *plain;
	assert_int_equal(chat_template_new(&plain, &(chat_template_source){0}, NULL), STATUS_OK);
	const conversation_template chat = {.chat = plain};
	status s = STATUS_NOMEM;
	for (int64_t limit = 0; s != STATUS_OK; limit++) {
		dataset *train = NULL, *valid = NULL;
		byte_source *source;
		record_text x = {0};
		assert_int_equal(byte_source_memory(&source, text, sizeof text - 1, NULL), STATUS_OK);
		allocations_limit(limit);
		s = preferences_build(&x, source, *state, 40, &(corpus_tokens_options){.chat = &chat}, NULL);
		if (s == STATUS_OK)
			s = preferences_make(&train, &valid, *state, &x, 40, 0.5, NULL);
		allocations_limit(-1);
		record_text_close(&x);
		assert_true((s == STATUS_OK) == (train && valid));
		dataset_free(train);
		dataset_free(valid);
		assert_true(limit < 100000);
	}
	chat_template_free(plain);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_line_becomes_two_sequences_with_the_same_prompt),
	    cmocka_unit_test(a_long_sequence_loses_its_end),
	    cmocka_unit_test(sequences_stay_together_when_records_are_shuffled_and_divided),
	    cmocka_unit_test(running_out_of_memory_is_an_error_and_leaks_nothing),
	};
	return cmocka_run_group_tests(tests, make_tokenizer, drop_tokenizer);
}
