#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "engine/base/error.h"
#include "engine/base/utf8.h"

static void the_first_failure_wins(void **state)
{
	(void)state;
	error err = ERROR_INIT;
	assert_int_equal(error_set(&err, STATUS_INVALID, "n_heads", "must divide %d", 128), STATUS_INVALID);
	assert_int_equal(error_set(&err, STATUS_IO, "file", "later"), STATUS_IO);
	assert_int_equal(err.status, STATUS_INVALID);
	assert_string_equal(err.param, "n_heads");
	assert_string_equal(err.message, "must divide 128");
}

static void errors_may_be_ignored(void **state)
{
	(void)state;
	assert_int_equal(error_set(NULL, STATUS_IO, NULL, "unheard"), STATUS_IO);
	error_prefix(NULL, "config");
}

static void a_failure_without_a_message_gets_the_text_of_its_status_and_never_says_success(void **state)
{
	(void)state;
	error err = ERROR_INIT;
	assert_string_not_equal(error_message(&err), status_text(STATUS_OK));
	assert_int_equal(error_settle(&err, STATUS_OK), STATUS_OK);
	assert_int_equal(error_set(&err, STATUS_OK, NULL, "%s", "no failure"), STATUS_OK);
	assert_string_equal(err.message, "");
	assert_int_equal(err.status, STATUS_OK);
	assert_int_equal(error_settle(&err, STATUS_NOMEM), STATUS_NOMEM);
	assert_string_equal(err.message, status_text(STATUS_NOMEM));
	assert_int_equal(error_settle(&err, STATUS_IO), STATUS_IO);
	assert_int_equal(err.status, STATUS_NOMEM); /* the first message is kept */
}

static void a_prefix_turns_the_field_into_a_path(void **state)
{
	(void)state;
	error err = ERROR_INIT;
	error_prefix(&err, "config");
	assert_string_equal(err.param, "");
	error_set(&err, STATUS_INVALID, "n_heads", "wrong");
	error_prefix(&err, "config");
	error_prefix(&err, "additive");
	assert_string_equal(err.param, "additive.config.n_heads");
}

static void an_error_without_a_field_gets_no_prefix(void **state)
{
	(void)state;
	error err = ERROR_INIT;
	error_set(&err, STATUS_IO, NULL, "disk");
	error_prefix(&err, "config");
	assert_string_equal(err.param, "");
}

static void a_long_message_is_cut_to_its_buffer(void **state)
{
	(void)state;
	char words[2000];
	memset(words, 'x', sizeof words - 1);
	words[sizeof words - 1] = 0;
	error err = ERROR_INIT;
	error_set(&err, STATUS_INVALID, words, "%s", words);
	assert_int_equal(strlen(err.param), sizeof err.param - 1);
	assert_int_equal(strlen(err.message), sizeof err.message - 1);
	error_prefix(&err, words); /* the prefix does not fit, so the field is unchanged */
	assert_int_equal(err.param[0], 'x');
}

static void messages_are_cut_between_characters(void **state)
{
	(void)state;
	char words[2000] = "x";
	for (size_t i = 0; i < 800; i++)
		memcpy(words + 1 + 2 * i, "\xC3\xA9", 3);
	for (int shift = 0; shift < 2; shift++) {
		error cut = ERROR_INIT, quoted = ERROR_INIT;
		error_set(&cut, STATUS_INVALID, words + 1 - shift, "%s", words + 1 - shift);
		assert_int_equal(utf8_valid_prefix(cut.param, strlen(cut.param)), strlen(cut.param));
		assert_int_equal(utf8_valid_prefix(cut.message, strlen(cut.message)), strlen(cut.message));
		error_set(&quoted, STATUS_INVALID, NULL, "\"%.4s\"", words + 1 - shift);
		assert_string_equal(quoted.message, shift ? "\"x\xC3\xA9?\"" : "\"\xC3\xA9\xC3\xA9\"");
	}
}

static void a_status_without_a_message_prints_its_own_text(void **state)
{
	(void)state;
	error err = ERROR_INIT;
	error_set(&err, STATUS_NOMEM, NULL, "%s", "");
	assert_string_equal(error_message(&err), status_text(STATUS_NOMEM));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_first_failure_wins),
	    cmocka_unit_test(errors_may_be_ignored),
	    cmocka_unit_test(a_failure_without_a_message_gets_the_text_of_its_status_and_never_says_success),
	    cmocka_unit_test(a_prefix_turns_the_field_into_a_path),
	    cmocka_unit_test(an_error_without_a_field_gets_no_prefix),
	    cmocka_unit_test(a_long_message_is_cut_to_its_buffer),
	    cmocka_unit_test(messages_are_cut_between_characters),
	    cmocka_unit_test(a_status_without_a_message_prints_its_own_text),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
