/* test_choice.c - refusal of a word that is not in a list. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "engine/base/choice.h"

static const char *const words[] = {"linear", "cosine", "constant", NULL};

static void a_refusal_names_the_value_the_allowed_words_and_the_nearest_word(void **state)
{
	static const struct {
		const char *given, *message;
	} cases[] = {
	    {"cosin", "must be \"linear\", \"cosine\" or \"constant\", not \"cosin\" (did you mean \"cosine\"?)"},
	    {"quadratic", "must be \"linear\", \"cosine\" or \"constant\", not \"quadratic\""},
	    {"", "must be \"linear\", \"cosine\" or \"constant\", not \"\""},
	    {NULL, "must be \"linear\", \"cosine\" or \"constant\""},
	};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		error err = ERROR_INIT;
		assert_int_equal(choice_refuse(&err, "schedule", cases[i].given, words), STATUS_INVALID);
		assert_string_equal(err.param, "schedule");
		assert_string_equal(err.message, cases[i].message);
	}
}

static void a_long_value_is_cut_between_characters(void **state)
{
	error err = ERROR_INIT;
	(void)state;
	choice_refuse(&err, "x", "a234567890123456789012345678901234567890\xc3\xa4", words);
	assert_string_equal(err.message, "must be \"linear\", \"cosine\" or \"constant\", not "
	                                 "\"a234567890123456789012345678901234567890\"");
	err = (error)ERROR_INIT;
	choice_refuse(&err, "x", "a23456789012345678901234567890123456789\xc3\xa4z", words);
	assert_string_equal(err.message, "must be \"linear\", \"cosine\" or \"constant\", not "
	                                 "\"a23456789012345678901234567890123456789\"");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_refusal_names_the_value_the_allowed_words_and_the_nearest_word),
	    cmocka_unit_test(a_long_value_is_cut_between_characters),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
