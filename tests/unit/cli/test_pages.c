/* test_pages.c - the manual pages have every command and every option of the tables. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "clients/cli/commands.h"
#include "tests/unit/support/folder.h"

#include <stdlib.h>
#include <string.h>

static char folder[FOLDER_BYTES];

static text read_page(const char *name)
{
	char path[256], piece[4096];
	text all = {0};

	snprintf(path, sizeof(path), "%s/%s.1", folder, name);
	FILE *file = fopen(path, "r");
	assert_non_null(file);
	for (size_t n; (n = fread(piece, 1, sizeof(piece), file)) > 0;)
		text_append(&all, piece, n);
	fclose(file);
	return all;
}

/* True if the page has the string, escaped for roff, between `before` and `after`. */
static void has(const text *page, const char *before, const char *string, const char *after)
{
	text roff = {0};

	text_string(&roff, before);
	for (; *string; string++)
		text_format(&roff, *string == '-' ? "\\-" : "%c", *string);
	text_string(&roff, after);
	if (!strstr(text_get(page), text_get(&roff)))
		fail_msg("a page has no %s", text_get(&roff));
	text_free(&roff);
}

static void every_command_and_option_is_in_its_page(void **state)
{
	const command *k;

	(void)state;
	text overview = read_page("additive");
	for (int i = 0; (k = commands_at(i)); i++) {
		char word[COMMANDS_WORD_BYTES], name[80];
		const option_row *const tables[] = {k->options, commands_common};

		snprintf(name, sizeof(name), "additive-%s", commands_word(k, word));
		text page = read_page(name);
		has(&overview, ".TP\n\\fB", word, "\\fR\n");
		has(&page, "additive ", k->name, " ");
		if (commands_is_grouped(k))
			has(&page, ".SS \"", k->name, " ");
		for (int t = 0; t < 2; t++)
			for (const option_row *r = tables[t]; r && r->name; r++)
				if (*r->name)
					has(&page, ".TP\n\\fB\\-\\-", r->name, "\\fR");
		text_free(&page);
	}
	text_free(&overview);
}

static int write_pages(void **state)
{
	const char *arguments[] = {folder};
	cli c = {.options = {.arguments = arguments, .n_arguments = 1}};

	(void)state;
	folder_new(folder);
	assert_int_equal(pages_commands[0].run(&c), CLI_OK);
	return 0;
}

static int remove_pages(void **state)
{
	char line[FOLDER_BYTES + 16];

	(void)state;
	snprintf(line, sizeof(line), "rm -r '%s'", folder);
	return system(line);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(every_command_and_option_is_in_its_page)};

	return cmocka_run_group_tests(tests, write_pages, remove_pages);
}
