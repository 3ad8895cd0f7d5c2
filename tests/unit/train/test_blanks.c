/* Selection of the words of a sentence that become blanks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/train/blanks.h"

enum { MOST = 13, BLANK = -1 };

/* Write the words' indices in order, BLANK for words that became blanks. Returns the number of entries. */
static int64_t apply(const blanks *b, int64_t words, int32_t *out)
{
	int64_t count = 0;
	for (int64_t word = 0; word < words; word++)
		count = blanks_append(out, count, (int32_t)word, blanks_hide(b, word), BLANK);
	return count;
}

static int64_t draw(uint64_t seed, int64_t epoch, int64_t place, int64_t words, int32_t *out)
{
	const blanks b = blanks_draw(seed, epoch, place, words);
	return apply(&b, words, out);
}

/* The result of the original implementation for the same draws. */
static void drawn_words_are_blanks_and_adjacent_blanks_are_one(void **state)
{
	(void)state;
	static const char *const sentence[MOST] = {"He",   "evidently", "found", "it",  "hard", "to", "decide",
	                                           "what", "to",        "say",   "and", "to",   "do"};
	static const struct {
		int64_t words;
		double x;
		blanks drawn;
		const char *text;
	} cases[] = {
	    {1, 0, {{0}, 1}, "[MASK]"},
	    {2, 0, {{0}, 1}, "[MASK] evidently"},
	    {5, -0.4168, {{2}, 1}, "He evidently [MASK] it hard"},
	    {13, 7.1545, {{8, 8, 0}, 3}, "[MASK] evidently found it hard to decide what [MASK] say and to do"},
	    {13, 0.2022, {{1}, 1}, "He [MASK] found it hard to decide what to say and to do"},
	    {9, 1.3237, {{6}, 1}, "He evidently found it hard to [MASK] what to"},
	    {13, -1.2471, {{10}, 1}, "He evidently found it hard to decide what to say [MASK] to do"},
	    {13, 6.7621, {{9, 7, 8}, 3}, "He evidently found it hard to decide [MASK] and to do"},
	    {13, -2.9999, {{3, 0}, 2}, "[MASK] evidently found [MASK] hard to decide what to say and to do"},
	    {13, INFINITY, {{0, 1, 2}, 3}, "[MASK] it hard to decide what to say and to do"},
	};
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		int32_t out[MOST];
		char text[256] = "";
		assert_int_equal(blanks_count(cases[c].x), cases[c].drawn.n);
		int64_t count = apply(&cases[c].drawn, cases[c].words, out);
		for (int64_t i = 0; i < count; i++) {
			strcat(text, i ? " " : "");
			strcat(text, out[i] == BLANK ? "[MASK]" : sentence[out[i]]);
		}
		assert_string_equal(text, cases[c].text);
	}
}

/* Check a count against the expected share of the trials, ± 5 standard deviations. */
static void assert_share(int64_t count, double share, int64_t trials)
{
	double expected = share * (double)trials, deviation = sqrt(expected * (1 - share));
	if (!(fabs((double)count - expected) <= 5 * deviation))
		fail_msg("%lld of %lld for a share of %g", (long long)count, (long long)trials, share);
}

static void draws_have_the_shares_of_the_definition_and_follow_from_their_arguments(void **state)
{
	(void)state;
	enum { TRIALS = 20000 };
	/* P(|x| ≥ k) with deviation ⌊13 / 3⌋ = 4: for one draw, two, three, and for a word being among them. */
	const double two = erfc(2 / (4 * sqrt(2))), three = erfc(3 / (4 * sqrt(2)));
	const double share[3] = {1 - two, two - three, three};
	double among = 0;
	int64_t blanked[MOST] = {0}, changed = 0;
	for (int n = 1; n <= 3; n++)
		among += share[n - 1] * (1 - pow(11.0 / 12, n));
	for (int64_t q = 0; q < TRIALS; q++) {
		int32_t out[MOST], again[MOST], other[MOST];
		int64_t seen = 0, count = draw(7, q % 50, q / 50, MOST, out);
		assert_int_equal(draw(7, q % 50, q / 50, MOST, again), count);
		assert_memory_equal(out, again, (size_t)count * sizeof *out);
		int64_t others = draw(8, q % 50, q / 50, MOST, other);
		changed += others != count || memcmp(out, other, (size_t)count * sizeof *out) != 0;
		for (int64_t i = 0; i < count; i++) {
			if (out[i] == BLANK)
				assert_true(i == 0 || out[i - 1] != BLANK);
			int64_t next = out[i] == BLANK ? (i + 1 < count ? out[i + 1] : MOST) : out[i] + 1;
			for (int64_t word = seen; out[i] == BLANK && word < next; word++)
				blanked[word]++;
			seen = next;
		}
	}
	assert_int_equal(blanked[MOST - 1], 0);
	for (int word = 0; word < MOST - 1; word++)
		assert_share(blanked[word], among, TRIALS);
	assert_true(changed > TRIALS / 2);
	for (int64_t words = 1; words < 3; words++) {
		int32_t out[MOST];
		assert_int_equal(draw(7, 0, 0, words, out), words);
		assert_int_equal(out[0], BLANK);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(drawn_words_are_blanks_and_adjacent_blanks_are_one),
	    cmocka_unit_test(draws_have_the_shares_of_the_definition_and_follow_from_their_arguments),
	};
	return cmocka_run_group_tests_name("blanks", tests, NULL, NULL);
}
