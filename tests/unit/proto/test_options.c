/* test_options.c - from tables to values, requests and help texts. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "proto/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const option_row common[] = {{"url", OPTION_TEXT, "URL", "where", NULL},
                                    {"json", OPTION_FLAG, NULL, "raw", NULL},
                                    {NULL, OPTION_FLAG, NULL, NULL, NULL}};
static const option_row rows[] = {{"", OPTION_FLAG, NULL, "First:", NULL},
                                  {"model", OPTION_TEXT, "ID", "the model", "model"},
                                  {"steps", OPTION_INTEGER, "N", "steps", "additive.max_steps"},
                                  {"rate", OPTION_NUMBER, "X", "rate", "additive.learning_rate"},
                                  {"windows", OPTION_INTEGERS, "A,B", "windows", "additive.config.window_sizes"},
                                  {"rounds", OPTION_WORDS, "A,B", "rounds", "rounds"},
                                  {"layers", OPTION_SELECTION, "A,B", "layers", "layers"},
                                  {"stop", OPTION_TEXTS, "TEXT", "stop", "stop"},
                                  {"ttl", OPTION_DURATION, "SECONDS", "lifetime", "ttl_seconds"},
                                  {"config", OPTION_MEMBERS, "KEY=VALUE", "a key", "additive.config"},
                                  {"models", OPTION_COUNT, "N", "models", "1 to 64"},
                                  {"ping", OPTION_SECONDS, "S", "silence", "0.1 to 86400"},
                                  {"", OPTION_FLAG, NULL, "Second:", NULL},
                                  {"durable", OPTION_FLAG, NULL, "keep", "durable"},
                                  {"bare", OPTION_OFF, NULL, "do not add", "added"},
                                  {"kind", OPTION_TEXT, "NAME:red|green|blue", "kind", NULL},
                                  {"kinds", OPTION_WORDS, "NAME,...:red|green", "kinds", NULL},
                                  {"a-very-long-name-of-an-option", OPTION_TEXT, "V", "long", NULL},
                                  {NULL, OPTION_FLAG, NULL, NULL, NULL}};

enum { MOST = 16 };

/* Parse words separated by spaces; the line must live as long as the options. */
static bool parse(options *o, char *line)
{
	char *argv[MOST];
	int argc = 0;

	for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) {
		assert_true(argc < MOST);
		argv[argc++] = word;
	}
	return options_parse(o, argc, argv, common, rows);
}

static void refuses(const char *line, const char *problem)
{
	char copy[200];
	options o;

	strcpy(copy, line);
	assert_false(parse(&o, copy));
	assert_string_equal(o.problem, problem);
	options_free(&o);
}

static void fills(const char *line, const char *json)
{
	char copy[200];
	options o;
	json_t *request = json_object();

	strcpy(copy, line);
	assert_true(parse(&o, copy));
	assert_true(options_fill(&o, request));
	char *dump = json_dumps(request, JSON_COMPACT | JSON_SORT_KEYS);
	assert_string_equal(dump, json);
	free(dump);
	json_decref(request);
	options_free(&o);
}

static void options_and_arguments_mix(void **state)
{
	(void)state;
	char line[] = "--json first --model=m second --url http://x - -- --third -4";
	options o;

	assert_true(parse(&o, line));
	assert_int_equal(o.n_arguments, 5);
	assert_string_equal(o.arguments[0], "first");
	assert_string_equal(o.arguments[1], "second");
	assert_string_equal(o.arguments[2], "-");
	assert_string_equal(o.arguments[3], "--third");
	assert_string_equal(o.arguments[4], "-4");
	assert_true(options_flag(&o, "json"));
	assert_false(options_flag(&o, "durable"));
	assert_string_equal(options_text(&o, "model"), "m");
	assert_string_equal(options_text(&o, "url"), "http://x");
	assert_null(options_text(&o, "steps"));
	options_free(&o);
}

static void the_last_of_several_values_counts(void **state)
{
	(void)state;
	char line[] = "--steps 1 --steps=2 --model= --rate -1e-3";
	options o;

	assert_true(parse(&o, line));
	assert_true(options_number(&o, "steps", 0) == 2);
	assert_true(options_number(&o, "rate", 0) == -1e-3);
	assert_true(options_number(&o, "nothing", 7) == 7);
	assert_string_equal(options_text(&o, "model"), "");
	options_free(&o);
}

static void a_value_that_is_not_in_the_list_is_refused(void **state)
{
	(void)state;
	refuses("--kind gren", "--kind must be red, green or blue, not \"gren\" (did you mean green?)");
	refuses("--kind=", "--kind must be red, green or blue, not \"\"");
	refuses("--kind red,green", "--kind must be red, green or blue, not \"red,green\"");
	refuses("--kinds red,blau", "--kinds must be red or green, not \"blau\"");
	refuses("--kinds red,", "--kinds must be red or green, not \"\"");
	fills("--kind green --kinds green,red", "{}");
}

static void a_range_is_not_a_field_of_a_request(void **state)
{
	(void)state;
	char line[] = "--models 64 --ping 0.1";
	options o;
	json_t *request = json_object();

	assert_true(parse(&o, line));
	assert_int_equal(options_integer(&o, "models", 0), 64);
	assert_int_equal(options_integer(&o, "steps", -7), -7);
	assert_true(options_number(&o, "ping", 0) == 0.1);
	assert_true(options_fill(&o, request));
	assert_int_equal(json_object_size(request), 0);
	json_decref(request);
	options_free(&o);
}

static void an_option_can_be_passed_to_another_program(void **state)
{
	(void)state;
	char line[] = "--model a=b --durable";
	options o;

	assert_true(parse(&o, line));
	char *first = options_write(&o.given[0]), *second = options_write(&o.given[1]);
	assert_string_equal(first, "--model=a=b");
	assert_string_equal(second, "--durable");
	free(first);
	free(second);
	options_free(&o);
}

static void no_arguments_are_accepted(void **state)
{
	(void)state;
	options o;

	assert_true(options_parse(&o, 0, NULL, common, NULL));
	assert_int_equal(o.n_arguments, 0);
	options_free(&o);
}

static void a_wrong_argument_is_named(void **state)
{
	(void)state;
	refuses("--modle x", "unknown option --modle (did you mean --model?)");
	refuses("--durabel", "unknown option --durabel (did you mean --durable?)");
	refuses("--nothing-like-it", "unknown option --nothing-like-it");
	refuses("--=x", "unknown option --");
	refuses("-m x", "unknown option -m");
	refuses("--model", "--model needs a value: ID");
	refuses("--bare=no", "--bare takes no value");
	refuses("--json=1", "--json takes no value");
	refuses("--steps ten", "--steps ten: expected an integer");
	refuses("--steps 1.5", "--steps 1.5: expected an integer");
	refuses("--steps 99999999999999999999", "--steps 99999999999999999999: expected an integer");
	refuses("--rate fast", "--rate fast: expected a number");
	refuses("--rate nan", "--rate nan: expected a number");
	refuses("--rate 1e999", "--rate 1e999: expected a number");
	refuses("--windows 4,,8", "--windows 4,,8: expected integers separated by commas");
	refuses("--windows 4,8,", "--windows 4,8,: expected integers separated by commas");
	refuses("--config window", "--config window: expected KEY=VALUE");
	refuses("--config =4", "--config =4: expected KEY=VALUE");
	refuses("--models 65", "--models 65: expected an integer from 1 to 64");
	refuses("--models 0", "--models 0: expected an integer from 1 to 64");
	refuses("--models 1.5", "--models 1.5: expected an integer from 1 to 64");
	refuses("--ping 0.05", "--ping 0.05: expected a number from 0.1 to 86400");
	refuses("--ping nan", "--ping nan: expected a number from 0.1 to 86400");
	refuses("--layers most", "--layers most: expected \"all\" or integers separated by commas");
}

static void a_request_gets_types_and_paths_from_the_table(void **state)
{
	(void)state;
	fills("--bare", "{\"added\":false}");
	fills("", "{}");
	fills("--json --url u", "{}");
	fills("--model 5 --steps 7", "{\"additive\":{\"max_steps\":7},\"model\":\"5\"}");
	fills("--windows 4,8,-1 --rate 1",
	      "{\"additive\":{\"config\":{\"window_sizes\":[4,8,-1]},\"learning_rate\":1.0}}");
	fills("--config a=[4,8] --config b=learned --config c=1=2 --config a=true",
	      "{\"additive\":{\"config\":{\"a\":true,\"b\":\"learned\",\"c\":\"1=2\"}}}");
	fills("--rounds query,key --durable", "{\"durable\":true,\"rounds\":[\"query\",\"key\"]}");
	fills("--layers all", "{\"layers\":\"all\"}");
	fills("--layers 3", "{\"layers\":[3]}");
	fills("--stop a --stop b", "{\"stop\":[\"a\",\"b\"]}");
	fills("--steps 9223372036854775807", "{\"additive\":{\"max_steps\":9223372036854775807}}");
}

static void a_duration_is_seconds_or_has_a_unit(void **state)
{
	(void)state;
	char line[] = "--ttl 1 --ttl 90m";
	options o;

	assert_true(parse(&o, line));
	assert_int_equal(options_duration(&o, "ttl", -1), 5400);
	assert_int_equal(options_duration(&o, "steps", -1), -1);
	options_free(&o);
	fills("--ttl 3600", "{\"ttl_seconds\":3600}");
	fills("--ttl 36h", "{\"ttl_seconds\":129600}");
	fills("--ttl 7d", "{\"ttl_seconds\":604800}");
	refuses("--ttl 1w", "--ttl 1w: expected seconds, or a number with m, h or d");
	refuses("--ttl h", "--ttl h: expected seconds, or a number with m, h or d");
	refuses("--ttl -1h", "--ttl -1h: expected seconds, or a number with m, h or d");
	refuses("--ttl 1.5h", "--ttl 1.5h: expected seconds, or a number with m, h or d");
	refuses("--ttl 999999999999999999d", "--ttl 999999999999999999d: expected seconds, or a number with m, h or d");
}

static void text_that_is_not_utf8_is_refused(void **state)
{
	(void)state;
	char line[] = "--model \xff";
	options o;
	json_t *request = json_object();

	assert_true(parse(&o, line));
	assert_false(options_fill(&o, request));
	json_decref(request);
	options_free(&o);
}

static void help_has_a_line_for_every_row(void **state)
{
	(void)state;
	char *help = NULL;
	size_t bytes = 0;
	FILE *file = open_memstream(&help, &bytes);

	options_help(file, rows);
	fclose(file);
	assert_ptr_equal(strstr(help, "First:\n  --model ID                the model\n"), help);
	assert_non_null(strstr(help, "\n\nSecond:\n  --durable"));
	assert_non_null(strstr(help, "  --durable                 keep\n"));
	assert_non_null(strstr(help, "  --a-very-long-name-of-an-option V\n                            long\n"));
	free(help);
}

static void the_words_of_a_value_are_listed_before_the_default(void **state)
{
	static const option_row choices[] = {{"way", OPTION_TEXT, "NAME:a|b|c", "which way (b)", NULL},
	                                     {"two", OPTION_TEXT, "NAME:a|b", "note: this (well)", NULL},
	                                     {"own", OPTION_TEXT, "a|b", "which (a)", NULL},
	                                     {"listen", OPTION_TEXT, "HOST:PORT", "where (here)", NULL},
	                                     {NULL, OPTION_FLAG, NULL, NULL, NULL}};
	char *help = NULL, word[] = "--way", *argv[] = {word};
	size_t bytes;
	options o;

	(void)state;
	FILE *file = open_memstream(&help, &bytes);
	assert_non_null(file);
	options_help(file, choices);
	fclose(file);
	assert_string_equal(help, "  --way NAME                which way: a, b or c (b)\n"
	                          "  --two NAME                note: this; a or b (well)\n"
	                          "  --own a|b                 which (a)\n"
	                          "  --listen HOST:PORT        where (here)\n");
	free(help);
	assert_string_equal(options_words(&choices[0]), "a|b|c");
	assert_string_equal(options_words(&choices[2]), "a|b");
	assert_null(options_words(&choices[3]));
	assert_false(options_parse(&o, 1, argv, NULL, choices));
	assert_string_equal(o.problem, "--way needs a value: a|b|c");
	options_free(&o);
}

static void a_row_is_found_by_every_form_of_its_option(void **state)
{
	static const option_row output[] = {{"output", OPTION_TEXT, "FILE", "where", NULL},
	                                    {NULL, OPTION_FLAG, NULL, NULL, NULL}};

	(void)state;
	assert_ptr_equal(options_row("--steps", common, rows), options_find(rows, "steps"));
	assert_ptr_equal(options_row("--url=x=y", common, rows), common);
	assert_ptr_equal(options_row("-o", common, output), output);
	assert_null(options_row("--step", common, rows));
	assert_null(options_row("--", common, rows));
	assert_null(options_row("-", common, NULL));
	assert_true(options_takes_value(common) && !options_takes_value(common + 1));
}

static void a_line_feed_in_a_paragraph_is_a_space(void **state)
{
	(void)state;
	char *out = NULL;
	size_t bytes = 0;
	FILE *file = open_memstream(&out, &bytes);
	assert_non_null(file);
	options_wrap(
	    file,
	    "The first line of this paragraph is as long as a terminal and has to go on below,\nand the second one "
	    "follows it.\n\nAnother paragraph.",
	    2);
	assert_int_equal(fclose(file), 0);
	assert_string_equal(out, "The first line of this paragraph is as long as a terminal and has to go on\n"
	                         "  below, and the second one follows it.\n\n  Another paragraph.\n");
	free(out);
}

static void a_line_that_begins_with_a_space_keeps_its_spaces(void **state)
{
	(void)state;
	char *out = NULL;
	size_t bytes = 0;
	FILE *file = open_memstream(&out, &bytes);
	assert_non_null(file);
	options_wrap(file, "Beside it:\n  one TO    the first\n  two       the second\nand more.\n\nEnd.", 1);
	assert_int_equal(fclose(file), 0);
	assert_string_equal(out, "Beside it:\n   one TO    the first\n   two       the second\n and more.\n\n End.\n");
	free(out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(options_and_arguments_mix),
	    cmocka_unit_test(the_last_of_several_values_counts),
	    cmocka_unit_test(a_value_that_is_not_in_the_list_is_refused),
	    cmocka_unit_test(a_range_is_not_a_field_of_a_request),
	    cmocka_unit_test(an_option_can_be_passed_to_another_program),
	    cmocka_unit_test(no_arguments_are_accepted),
	    cmocka_unit_test(a_wrong_argument_is_named),
	    cmocka_unit_test(a_request_gets_types_and_paths_from_the_table),
	    cmocka_unit_test(a_duration_is_seconds_or_has_a_unit),
	    cmocka_unit_test(text_that_is_not_utf8_is_refused),
	    cmocka_unit_test(help_has_a_line_for_every_row),
	    cmocka_unit_test(the_words_of_a_value_are_listed_before_the_default),
	    cmocka_unit_test(a_row_is_found_by_every_form_of_its_option),
	    cmocka_unit_test(a_line_feed_in_a_paragraph_is_a_space),
	    cmocka_unit_test(a_line_that_begins_with_a_space_keeps_its_spaces),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
