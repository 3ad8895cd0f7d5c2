/* test_field_names.c - translate the field names in a service's messages to the command line's options. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "clients/cli/field_names.h"

static const option_row rows[] = {
    {"", OPTION_FLAG, NULL, "Heading", NULL},
    {"model", OPTION_TEXT, "ID", "", "model"},
    {"sequence", OPTION_INTEGER, "N", "", "additive.sequence_length"},
    {"batch", OPTION_INTEGER, "N", "", "additive.batch_size"},
    {"other-batch", OPTION_INTEGER, "N", "", "other.batch_size"},
    {"heads", OPTION_INTEGER, "N", "", "additive.size.heads"},
    {"config", OPTION_MEMBERS, "KEY=VALUE", "", "additive.config"},
    {"stop", OPTION_TEXTS, "TEXT", "", "stop"},
    {"workers", OPTION_COUNT, "N", "", "1 to 64"},
    {NULL, OPTION_FLAG, NULL, NULL, NULL},
};
static const command train = {.name = "train", .arguments = "FILE...", .options = rows};

static void translates(const cli *c, const char *message, const char *expected)
{
	text out = {0};
	field_names_translate(c, message, &out);
	assert_string_equal(text_get(&out), expected);
	text_free(&out);
}

static void fields_in_a_message_become_options(void **state)
{
	const cli c = {.command = &train};
	(void)state;
	translates(&c, "'additive.sequence_length' must be at most 9", "--sequence must be at most 9");
	translates(&c, "additive.sequence_length must be at most 9.", "--sequence must be at most 9.");
	translates(&c, "a lower sequence_length helps", "a lower --sequence helps");
	translates(&c, "'stop[2]' is empty", "--stop is empty");
	translates(&c, "'additive.size.heads': n_heads must divide hidden_size",
	           "--heads: n_heads must divide hidden_size");
	/* keys of a configuration are the architecture's */
	translates(&c, "'additive.config.n_heads': n_heads must divide hidden_size",
	           "--config n_heads: n_heads must divide hidden_size");
	/* an English word, a name of two options, and parts of longer names are unchanged */
	translates(&c, "'additive.config.window_sizes' has 1 of 2 numbers", "--config window_sizes has 1 of 2 numbers");
	translates(&c, "the model has 64 positions", "the model has 64 positions");
	translates(&c, "a smaller batch_size", "a smaller batch_size");
	translates(&c, "additive.sequence_lengths, my_sequence_length",
	           "additive.sequence_lengths, my_sequence_length");
	translates(&c, "1 to 64", "1 to 64");
	translates(&c, "", "");
}

static void a_field_that_the_command_fills_in_is_an_argument(void **state)
{
	const char *files[] = {"a.txt", "b.txt"};
	text out = {0};
	cli c = {.command = &train, .options = {.arguments = files, .n_arguments = 1}};
	(void)state;
	assert_true(field_names_option(&c, "training_file", &out));
	assert_string_equal(text_get(&out), "a.txt");
	text_clear(&out);
	c.options.n_arguments = 2;
	assert_true(field_names_option(&c, "training_file", &out));
	assert_true(field_names_option(&c, "validation_file", &out));
	assert_true(field_names_option(&c, "stop[2]", &out));
	assert_false(field_names_option(&c, "prompt", &out));
	assert_string_equal(text_get(&out), "FILE--validation--stop");
	text_free(&out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(fields_in_a_message_become_options),
	    cmocka_unit_test(a_field_that_the_command_fills_in_is_an_argument),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
