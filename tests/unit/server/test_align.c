#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "server/align.h"
#include "tests/unit/support/allocations.h"

enum { MOST = 2048 };

/* A token for each letter; '?' is a token of several bytes, with an id only. */
static json_t *tokens_of(const char *letters)
{
	json_t *tokens = json_array();
	for (; *letters; letters++)
		json_array_append_new(tokens, json_pack("{s:i, s:s#}", "id", *letters == '?' ? 7 : *letters, "text",
		                                        letters, *letters == '?' ? 0 : 1));
	return tokens;
}

/* Number of tokens with a partner. Checks that partners have the same text and go from left to right. */
static size_t partners(const char *first, const char *second, size_t *partner)
{
	json_t *a = tokens_of(first), *b = tokens_of(second);
	size_t n = 0, next = 0;
	partner[strlen(first)] = 77;
	assert_true(align_tokens(a, b, partner));
	assert_int_equal(partner[strlen(first)], 77);
	for (size_t i = 0; first[i]; i++) {
		if (partner[i] == SIZE_MAX)
			continue;
		assert_true(partner[i] >= next && partner[i] < strlen(second));
		assert_int_equal(first[i], second[partner[i]]);
		next = partner[i] + 1;
		n++;
	}
	json_decref(a);
	json_decref(b);
	return n;
}

/* Length of a longest common subsequence, by its definition. */
static size_t longest(const char *a, const char *b)
{
	size_t before[MOST + 1] = {0}, now[MOST + 1] = {0};
	for (; *a; a++) {
		for (size_t j = 0; b[j]; j++)
			now[j + 1] = *a == b[j] ? before[j] + 1 : now[j] > before[j + 1] ? now[j] : before[j + 1];
		memcpy(before, now, sizeof now);
	}
	return before[strlen(b)];
}

static void as_many_tokens_as_possible_have_a_partner(void **state)
{
	(void)state;
	static const char *const pairs[][2] = {{"", ""},
	                                       {"a", ""},
	                                       {"", "a"},
	                                       {"a", "a"},
	                                       {"a", "b"},
	                                       {"abc", "abc"},
	                                       {"abcabba", "cbabac"},
	                                       {"king", "thing"},
	                                       {"aXbXc", "abc"},
	                                       {"abc", "aXbXc"},
	                                       {"??a", "?a?"},
	                                       {"aaaa", "aa"},
	                                       {"ab", "ba"},
	                                       {"xaby", "xbay"}};
	size_t partner[MOST + 1];
	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
		assert_int_equal(partners(pairs[i][0], pairs[i][1], partner), longest(pairs[i][0], pairs[i][1]));
	uint32_t seed = 1;
	for (int round = 0; round < 300; round++) {
		char a[64], b[64];
		char *const texts[] = {a, b};
		for (int t = 0; t < 2; t++) {
			size_t n = (seed = seed * 1664525 + 1013904223) >> 26;
			for (size_t i = 0; i < n; i++)
				texts[t][i] = (char)('a' + ((seed = seed * 1664525 + 1013904223) >> 30));
			texts[t][n] = '\0';
		}
		assert_int_equal(partners(a, b, partner), longest(a, b));
	}
}

/* 600 tokens in place of 600 others, between equal ends. */
static void texts_that_differ_too_much_share_only_their_ends(void **state)
{
	(void)state;
	static char a[MOST], b[MOST];
	size_t partner[MOST + 1];
	memset(a, 'x', 602);
	memset(b, 'y', 602);
	a[0] = b[0] = '(';
	a[601] = b[601] = ')';
	a[300] = b[200] = '!';
	assert_int_equal(partners(a, b, partner), 2);
	assert_int_equal(partner[0], 0);
	assert_int_equal(partner[601], 601);
	memset(b, 'x', 602); /* one more difference, outside the middle */
	b[0] = '(';
	b[601] = ')';
	b[200] = '!';
	assert_int_equal(partners(a, b, partner), longest(a, b));
}

static void without_memory_it_fails_cleanly(void **state)
{
	(void)state;
	json_t *a = tokens_of("abcx"), *b = tokens_of("axcb");
	size_t partner[4];
	bool whole = false;
	int64_t allowed = 0;
	for (; !whole && allowed < 10; allowed++) {
		allocations_limit(allowed);
		whole = align_tokens(a, b, partner);
		allocations_limit(-1);
	}
	assert_true(allowed > 2 && whole);
	json_decref(a);
	json_decref(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(as_many_tokens_as_possible_have_a_partner),
	    cmocka_unit_test(texts_that_differ_too_much_share_only_their_ends),
	    cmocka_unit_test(without_memory_it_fails_cleanly),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
