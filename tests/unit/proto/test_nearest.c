/* test_nearest.c - "did you mean": typing errors find their word; unrelated words find none. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "proto/nearest.h"

static const char *const known[] = {"generate", "train", "explain", "jobs", "files", "ftjob-0123456789abcdef01234567",
                                    ""};

static void finds(const char *word, const char *best)
{
	nearest n = nearest_of(word);

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		nearest_offer(&n, known[i]);
	if (best)
		assert_string_equal(nearest_found(&n), best);
	else
		assert_null(nearest_found(&n));
}

static void a_typing_error_finds_its_word(void **state)
{
	(void)state;
	finds("generat", "generate");
	finds("egnerate", "generate");
	finds("genrrate", "generate");
	finds("trian", "train");
	finds("explains", "explain");
	finds("job", "jobs");
}

static void the_beginning_of_a_word_finds_it(void **state)
{
	(void)state;
	finds("gen", "generate");
	finds("ftjob-0123", "ftjob-0123456789abcdef01234567");
}

static void an_unrelated_word_finds_none(void **state)
{
	(void)state;
	finds("version", NULL);
	finds("x", NULL);
	finds("", NULL);
	finds("ftjob-765432100123456789abcdef", NULL);
}

static void words_of_any_length_are_safe(void **state)
{
	(void)state;
	char endless[4 * NEAREST_BYTES];

	for (size_t i = 0; i < sizeof(endless); i++)
		endless[i] = 'x';
	endless[sizeof(endless) - 1] = '\0';
	finds(endless, NULL);
	nearest n = nearest_of("xxx");
	nearest_offer(&n, endless);
	assert_null(nearest_found(&n));
	endless[NEAREST_BYTES - 1] = '\0';
	nearest_offer(&n, endless);
	assert_string_equal(nearest_found(&n), endless);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_typing_error_finds_its_word),
	    cmocka_unit_test(the_beginning_of_a_word_finds_it),
	    cmocka_unit_test(an_unrelated_word_finds_none),
	    cmocka_unit_test(words_of_any_length_are_safe),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
