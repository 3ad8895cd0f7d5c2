#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/base/philox.h"
#include "engine/serve/stop_filter.h"

/* Push text in pieces of `step` bytes; returns the output, NUL-terminated. */
static char *filtered(const char *const *stops, int n, const char *text, size_t step, bool *found, char out[200])
{
	stop_filter f;
	size_t used = 0, length = strlen(text), bytes;
	const char *said;
	assert_int_equal(stop_filter_init(&f, stops, n, NULL), STATUS_OK);
	for (size_t at = 0; at < length; at += step) {
		size_t piece = length - at < step ? length - at : step;
		assert_int_equal(stop_filter_push(&f, text + at, piece, at + piece == length, &said, &bytes),
		                 STATUS_OK);
		memcpy(out + used, said, bytes);
		used += bytes;
	}
	out[used] = '\0';
	*found = f.found;
	stop_filter_fini(&f);
	return out;
}

static void text_ends_before_the_stop_sequence_however_it_is_split(void **state)
{
	(void)state;
	static const struct {
		const char *stops[4];
		int n;
		const char *text, *expected;
		bool found;
	} cases[] = {
	    {{NULL}, 0, "plain text", "plain text", false},
	    {{"\n\n"}, 1, "one\ntwo\n\nthree", "one\ntwo", true},
	    {{"END"}, 1, "ENEEND more", "ENE", true},
	    {{"END"}, 1, "the EN", "the EN", false},
	    {{"aab"}, 1, "aaaab", "aa", true},
	    {{"abcd", "bc"}, 2, "xabcd", "xa", true}, /* "bc" is complete first */
	    {{"c", "abc"}, 2, "xxabcyy", "xx", true}, /* complete at the same byte: the longer one */
	    {{"x"}, 1, "x", "", true},
	    {{"zzz", "yy", "q", "\xC3\xA4"}, 4, "zzyz\xC3\xA4", "zzyz", true},
	};
	char out[200];
	bool found;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (size_t step = 1; step <= 12; step++) {
			assert_string_equal(filtered(cases[i].stops, cases[i].n, cases[i].text, step, &found, out),
			                    cases[i].expected);
			assert_int_equal(found, cases[i].found);
		}
}

/* By definition: the first end of any stop sequence, and of those the longest. */
static size_t first_stop(const char *const *stops, int n, const char *text, size_t length)
{
	for (size_t end = 1; end <= length; end++) {
		size_t longest = 0;
		for (int i = 0; i < n; i++) {
			size_t k = strlen(stops[i]);
			if (k <= end && k > longest && memcmp(text + end - k, stops[i], k) == 0)
				longest = k;
		}
		if (longest > 0)
			return end - longest;
	}
	return length;
}

static void random_texts_agree_with_the_definition(void **state)
{
	(void)state;
	char text[41], stops[3][6], out[200];
	bool found;
	for (uint64_t trial = 0; trial < 3000; trial++) {
		const char *list[3] = {stops[0], stops[1], stops[2]};
		for (uint64_t i = 0; i < 40; i++)
			text[i] = (char)('a' + philox(trial, 1, 0, i).word[0] % 3);
		text[40] = '\0';
		for (uint64_t s = 0; s < 3; s++) {
			uint64_t n = 2 + philox(trial, 2, 0, s).word[0] % 4;
			for (uint64_t i = 0; i < n; i++)
				stops[s][i] = (char)('a' + philox(trial, 3, (uint32_t)s, i).word[0] % 3);
			stops[s][n] = '\0';
		}
		size_t expected = first_stop(list, 3, text, 40);
		filtered(list, 3, text, 1 + trial % 7, &found, out);
		assert_int_equal(strlen(out), expected);
		assert_memory_equal(out, text, expected);
	}
}

static void only_text_that_may_begin_a_stop_sequence_is_held_back(void **state)
{
	(void)state;
	const char *stops[] = {"STOP"}, *said;
	stop_filter f;
	size_t bytes;
	assert_int_equal(stop_filter_init(&f, stops, 1, NULL), STATUS_OK);
	assert_int_equal(stop_filter_push(&f, "abcS", 4, false, &said, &bytes), STATUS_OK);
	assert_int_equal(bytes, 3);
	assert_int_equal(stop_filter_push(&f, "TO", 2, false, &said, &bytes), STATUS_OK);
	assert_int_equal(bytes, 0);
	assert_int_equal(stop_filter_push(&f, "", 0, false, &said, &bytes), STATUS_OK);
	assert_int_equal(bytes, 0);
	assert_int_equal(stop_filter_push(&f, "x", 1, false, &said, &bytes), STATUS_OK);
	assert_int_equal(bytes, 4);
	assert_memory_equal(said, "STOx", 4);
	assert_int_equal(stop_filter_push(&f, "S", 1, false, &said, &bytes), STATUS_OK);
	assert_int_equal(stop_filter_push(&f, "", 0, true, &said, &bytes), STATUS_OK);
	assert_int_equal(bytes, 1);
	assert_memory_equal(said, "S", 1);
	stop_filter_fini(&f);
}

static void nothing_follows_a_stop_sequence(void **state)
{
	(void)state;
	const char *stops[] = {"."}, *said;
	stop_filter f;
	size_t bytes;
	assert_int_equal(stop_filter_init(&f, stops, 1, NULL), STATUS_OK);
	assert_int_equal(stop_filter_push(&f, "a.b", 3, false, &said, &bytes), STATUS_OK);
	assert_int_equal(bytes, 1);
	assert_true(f.found);
	assert_int_equal(stop_filter_push(&f, "more", 4, true, &said, &bytes), STATUS_OK);
	assert_int_equal(bytes, 0);
	stop_filter_fini(&f);
}

static void impossible_stop_sequences_are_refused(void **state)
{
	(void)state;
	char longest[SCHEDULER_MAX_STOP_BYTES + 2];
	memset(longest, 'x', sizeof longest);
	longest[SCHEDULER_MAX_STOP_BYTES + 1] = '\0';
	const char *empty[] = {""}, *too_long[] = {longest}, *many[SCHEDULER_MAX_STOPS + 1];
	stop_filter f;
	error err = ERROR_INIT;
	for (int i = 0; i <= SCHEDULER_MAX_STOPS; i++)
		many[i] = "a";
	assert_int_equal(stop_filter_init(&f, empty, 1, &err), STATUS_INVALID);
	assert_string_equal(err.param, "stop");
	assert_int_equal(stop_filter_init(&f, too_long, 1, NULL), STATUS_INVALID);
	assert_int_equal(stop_filter_init(&f, many, SCHEDULER_MAX_STOPS + 1, NULL), STATUS_INVALID);
	longest[SCHEDULER_MAX_STOP_BYTES] = '\0';
	assert_int_equal(stop_filter_init(&f, too_long, 1, NULL), STATUS_OK);
	stop_filter_fini(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(text_ends_before_the_stop_sequence_however_it_is_split),
	    cmocka_unit_test(random_texts_agree_with_the_definition),
	    cmocka_unit_test(only_text_that_may_begin_a_stop_sequence_is_held_back),
	    cmocka_unit_test(nothing_follows_a_stop_sequence),
	    cmocka_unit_test(impossible_stop_sequences_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
