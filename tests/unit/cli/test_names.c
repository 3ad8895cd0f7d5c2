/* test_names.c - lists of the service that complete an argument or an option. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "clients/cli/names.h"

static const command *of(const char *name, const char *arguments)
{
	static command k;

	k = (command){.name = name, .arguments = arguments};
	return &k;
}

static void has_argument(const char *arguments, int n, const char *expected)
{
	char word[NAMES_WORD_BYTES];

	assert_int_equal(names_argument(of("x", arguments), n, word), expected != NULL);
	if (expected)
		assert_string_equal(word, expected);
}

static void words_for_arguments_are_read_from_the_usage(void **state)
{
	(void)state;
	has_argument("", 0, NULL);
	has_argument("ID [CHECKPOINT]", 0, "ID");
	has_argument("ID [CHECKPOINT]", 1, "CHECKPOINT");
	has_argument("ID [CHECKPOINT]", 2, NULL);
	has_argument("FILE...", 7, "FILE");
	has_argument("--model ID [TEXT...]", 0, "TEXT");
	has_argument("--model ID [TEXT...]", 3, "TEXT");
	has_argument("TO --data DIR", 0, "TO");
	has_argument("TO --data DIR", 1, NULL);
	has_argument("bash|zsh|fish", 0, "bash|zsh|fish");
}

static void an_id_is_one_of_the_group_of_its_command(void **state)
{
	(void)state;
	assert_string_equal(names_of_argument(of("jobs show", "ID"), 0), "/v1/fine_tuning/jobs?limit=1000");
	assert_string_equal(names_of_argument(of("explain-evaluations show", "ID"), 0),
	                    "/v1/explain/evaluations?limit=1000");
	assert_string_equal(names_of_argument(of("evaluate", "MODEL FILE"), 0), "/v1/models");
	assert_null(names_of_argument(of("evaluate", "MODEL FILE"), 1));
	assert_null(names_of_argument(of("jobs list", ""), 0));
}

static void some_options_take_names_of_the_service(void **state)
{
	(void)state;
	const option_row session = {"session", OPTION_TEXT, "ID", "", NULL},
	                 top = {"top", OPTION_INTEGER, "K", "", NULL};

	assert_string_equal(names_of_option(&session), "/v1/sessions?limit=1000");
	assert_null(names_of_option(&top));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(words_for_arguments_are_read_from_the_usage),
	    cmocka_unit_test(an_id_is_one_of_the_group_of_its_command),
	    cmocka_unit_test(some_options_take_names_of_the_service),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
