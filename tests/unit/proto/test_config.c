/* test_config.c - options from TOML files, and files from options. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "proto/config/config.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/support/allocations.h"

static const option_row engine_rows[] = {{"data", OPTION_TEXT, "DIR", "data folder", NULL},
                                         {"backend", OPTION_TEXT, "NAME:auto|cpu|cuda", "device (auto)", NULL},
                                         {"max-models", OPTION_COUNT, "N", "models (4)", "1 to 64"},
                                         {"", OPTION_FLAG, NULL, "Only on the command line:", NULL},
                                         {"config", OPTION_TEXT, "FILE", "this", NULL},
                                         {NULL, OPTION_FLAG, NULL, NULL, NULL}};
static const option_row server_rows[] = {{"ping", OPTION_SECONDS, "S", "silence (15)", "0.1 to 86400"},
                                         {"allow-host", OPTION_TEXTS, "NAME", "names", NULL},
                                         {"access-log", OPTION_FLAG, NULL, "a line for each request", NULL},
                                         {NULL, OPTION_FLAG, NULL, NULL, NULL}};
static const config_section both[] = {{"engine", engine_rows}, {"server", server_rows}, {NULL, NULL}};
static const config_section second[] = {{"engine", NULL}, {"server", server_rows}, {NULL, NULL}};

static char path[] = "/tmp/test_config_XXXXXX";

static int make_file(void **state)
{
	(void)state;
	const int fd = mkstemp(path);

	return fd < 0 || close(fd) != 0;
}

static int remove_file(void **state)
{
	(void)state;
	return unlink(path);
}

static void write_file(const char *text)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

/* Parse arguments of both sections. */
static void parse(options *o, int argc, char **argv)
{
	assert_true(options_parse(o, argc, argv, engine_rows, server_rows));
}

static bool read_text(options *o, const char *text, const config_section *sections)
{
	parse(o, 0, NULL);
	write_file(text);
	return config_read(o, path, sections);
}

static void values_of_every_type_are_read(void **state)
{
	(void)state;
	options o;

	assert_true(read_text(&o,
	                      "# a comment\n[engine]\ndata = \"/var/a \\\"b\\\"\"\nbackend = 'cpu'\nmax-models = 1_6\n"
	                      "[server]\nping = 2.5\naccess-log = true\nallow-host = [\"a\", \"b:1\"]\n",
	                      both));
	assert_string_equal(options_text(&o, "data"), "/var/a \"b\"");
	assert_string_equal(options_text(&o, "backend"), "cpu");
	assert_int_equal(options_integer(&o, "max-models", 0), 16);
	assert_true(options_number(&o, "ping", 0) == 2.5);
	assert_true(options_flag(&o, "access-log"));
	assert_string_equal(options_text(&o, "allow-host"), "b:1");
	assert_int_equal(o.n_given, 7);
	options_free(&o);
	assert_true(read_text(&o, "[server]\nping = 3\naccess-log = false\nallow-host = \"a\"\n", both));
	assert_true(options_number(&o, "ping", 0) == 3);
	assert_false(options_flag(&o, "access-log"));
	assert_string_equal(options_text(&o, "allow-host"), "a");
	options_free(&o);
}

static void the_command_line_takes_precedence(void **state)
{
	(void)state;
	options o;
	char *argv[] = {"--ping", "7", "--allow-host", "c"};

	parse(&o, 4, argv);
	write_file("[server]\nping = 2\nallow-host = [\"a\", \"b\"]\n[engine]\nmax-models = 2\n");
	assert_true(config_read(&o, path, both));
	assert_true(options_number(&o, "ping", 0) == 7);
	assert_int_equal(o.n_given, 3);
	assert_string_equal(options_text(&o, "allow-host"), "c");
	assert_int_equal(options_integer(&o, "max-models", 0), 2);
	options_free(&o);
}

static void a_program_leaves_the_sections_of_others(void **state)
{
	(void)state;
	options o;

	assert_true(read_text(&o, "[engine]\nanything = [1]\n[server]\nping = 1\n", second));
	assert_int_equal(o.n_given, 1);
	options_free(&o);
}

static void errors_name_file_line_and_key(void **state)
{
	(void)state;
	static const struct {
		const char *text, *problem; /* without the file */
	} wrong[] = {
	    {"[server]\n\nvolume = 1\n", ":3: server.volume: unknown key"},
	    {"[server]\npin = 1\n", ":2: server.pin: unknown key (did you mean ping?)"},
	    {"[server]\nmax-models = 1\n", ":2: server.max-models: this key belongs to [engine]"},
	    {"[engine]\nconfig = \"x\"\n", ":2: engine.config: unknown key"},
	    {"ping = 1\n", ":1: ping: this key is in no table"},
	    {"[servers]\n", ":1: [servers]: unknown table"},
	    {"\n[server.more]\nping = 1\n", ":2: server.more: unknown key"},
	    {"[[server]]\nping = 1\n", ":1: server: this key is in no table"},
	    {"[server]\nping = \"1\"\n", ":2: server.ping: expected a number"},
	    {"[server]\nping = 2026-01-01\n", ":2: server.ping: expected a number"},
	    {"[server]\nping = nan\n", ":2: server.ping nan: expected a number from 0.1 to 86400"},
	    {"[server]\nping = 0.01\n", ":2: server.ping 0.01: expected a number from 0.1 to 86400"},
	    {"[engine]\nmax-models = 2.0\n", ":2: engine.max-models: expected an integer"},
	    {"[engine]\nmax-models = 65\n", ":2: engine.max-models 65: expected an integer from 1 to 64"},
	    {"[engine]\nmax-models = []\n", ":2: engine.max-models: expected an integer"},
	    {"[engine]\ndata = true\n", ":2: engine.data: expected a string"},
	    {"[engine]\ndata = \"a\\u0000b\"\n", ":2: engine.data: expected a string"},
	    {"[engine]\nbackend = \"cpi\"\n",
	     ":2: engine.backend must be auto, cpu or cuda, not \"cpi\" (did you mean cpu?)"},
	    {"[server]\naccess-log = 1\n", ":2: server.access-log: expected true or false"},
	    {"[server]\nallow-host = [\"a\", 1]\n", ":2: server.allow-host: expected a string or an array of strings"}};
	options o;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_false(read_text(&o, wrong[i].text, both));
		assert_int_equal(strncmp(o.problem, path, strlen(path)), 0);
		assert_string_equal(o.problem + strlen(path), wrong[i].problem);
		options_free(&o);
	}
}

static void a_file_that_is_not_toml_is_refused_with_the_line(void **state)
{
	(void)state;
	static const char *const wrong[] = {"[server]\nping 1\n", "[server]\nping = 1\nping = 2\n", "[server\n",
	                                    "[server]\nping = \"", "[server]\nallow-host = \"\xff\"\n"};
	options o;
	char line[64];

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_false(read_text(&o, wrong[i], both));
		snprintf(line, sizeof(line), "%s:", path);
		assert_int_equal(strncmp(o.problem, line, strlen(line)), 0);
		assert_in_range(o.problem[strlen(line)], '1', '9');
		options_free(&o);
	}
	parse(&o, 0, NULL);
	assert_false(config_read(&o, "/tmp/nowhere/additive.toml", both));
	assert_string_equal(o.problem, "/tmp/nowhere/additive.toml: No such file or directory");
	options_free(&o);
	parse(&o, 0, NULL);
	assert_false(config_read(&o, "/tmp", both));
	assert_string_equal(o.problem, "/tmp: Is a directory");
	options_free(&o);
}

static void reading_again_keeps_the_command_line_and_replaces_the_file(void **state)
{
	(void)state;
	options o, next;
	char *argv[] = {"--max-models", "9"};

	parse(&o, 2, argv);
	write_file("[server]\nping = 2\naccess-log = true\n[engine]\nmax-models = 3\n");
	assert_true(config_read(&o, path, both));
	write_file("[server]\nping = 4\nallow-host = [\"a\"]\n[engine]\nmax-models = 5\n");
	assert_true(config_read_again(&next, &o, path, both));
	assert_true(options_number(&next, "ping", 0) == 4);
	assert_false(options_flag(&next, "access-log"));
	assert_int_equal(options_integer(&next, "max-models", 0), 9);
	assert_true(options_differ(&o, &next, "ping"));
	assert_true(options_differ(&o, &next, "access-log"));
	assert_true(options_differ(&o, &next, "allow-host"));
	assert_false(options_differ(&o, &next, "max-models"));
	assert_false(options_differ(&o, &next, "data"));
	options_free(&next);
	write_file("[server]\nping = 0\n");
	assert_false(config_read_again(&next, &o, path, both));
	options_free(&next);
	options_free(&o);
}

static void a_failed_allocation_is_no_fault_of_the_file(void **state)
{
	(void)state;
	options o;
	bool refused = true;

	write_file("[server]\nping = 4\nallow-host = [\"a\", \"b\"]\n");
	for (int i = 0; refused; i++) {
		parse(&o, 0, NULL);
		allocations_fail(i, false);
		const bool ok = config_read(&o, path, both);
		refused = allocations_refused();
		allocations_limit(-1);
		assert_true(ok || refused);
		assert_int_equal(o.out_of_memory, !ok);
		options_free(&o);
	}
}

static char *written(const options *o)
{
	char *text;
	size_t bytes;
	FILE *file = open_memstream(&text, &bytes);

	assert_non_null(file);
	config_write(file, o, both);
	assert_int_equal(fclose(file), 0);
	return text;
}

static void a_written_file_has_the_values_and_comments_for_the_rest(void **state)
{
	(void)state;
	options o, again;
	char *argv[] = {"--data",
	                "a \"b\" \\ \x01\xc3\xa9",
	                "--ping",
	                ".5",
	                "--access-log",
	                "--allow-host",
	                "a",
	                "--allow-host",
	                "b",
	                "--max-models",
	                "+7"};

	parse(&o, 11, argv);
	char *text = written(&o);
	assert_string_equal(text, "[engine]\ndata = \"a \\\"b\\\" \\\\ \\u0001\xc3\xa9\"\n"
	                          "# backend: device: auto, cpu or cuda (auto)\nmax-models = 7\n\n"
	                          "[server]\nping = 0.5\nallow-host = [\"a\", \"b\"]\naccess-log = true\n");
	assert_true(read_text(&again, text, both));
	char *twice = written(&again);
	assert_string_equal(twice, text);
	free(twice);
	free(text);
	options_free(&again);
	options_free(&o);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(values_of_every_type_are_read),
	    cmocka_unit_test(the_command_line_takes_precedence),
	    cmocka_unit_test(a_program_leaves_the_sections_of_others),
	    cmocka_unit_test(errors_name_file_line_and_key),
	    cmocka_unit_test(a_file_that_is_not_toml_is_refused_with_the_line),
	    cmocka_unit_test(reading_again_keeps_the_command_line_and_replaces_the_file),
	    cmocka_unit_test(a_failed_allocation_is_no_fault_of_the_file),
	    cmocka_unit_test(a_written_file_has_the_values_and_comments_for_the_rest),
	};

	return cmocka_run_group_tests(tests, make_file, remove_file);
}
