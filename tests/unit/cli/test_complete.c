/* test_complete.c - completion of command lines; every command and option can be completed. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "clients/cli/commands.h"
#include "clients/cli/complete.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 16 };

/* Words are separated by one space; a trailing space begins an empty word. */
static completion of(const char *line)
{
	static char copy[256];
	char *words[MOST], *at = copy;
	int n = 0;
	completion out;

	assert_true(strlen(line) < sizeof(copy));
	strcpy(copy, line);
	while (at)
		words[n++] = strsep(&at, " ");
	complete_line(&out, n, words);
	return out;
}

/* Check the offered words, each followed by a space. */
static void offers(const char *line, const char *expected)
{
	completion out = of(line);
	text words = {0};

	for (const char *at = text_get(&out.words); *at; at = strchr(at, '\n') + 1)
		text_format(&words, "%.*s ", (int)strcspn(at, "\t"), at);
	assert_string_equal(text_get(&words), expected);
	text_free(&words);
	complete_free(&out);
}

static void requests(const char *line, complete_kind kind, const char *list, int kept)
{
	completion out = of(line);

	assert_int_equal(out.kind, kind);
	assert_int_equal(out.kept, kept);
	assert_int_equal(out.list != NULL, list != NULL);
	if (list)
		assert_string_equal(out.list, list);
	assert_int_equal(out.words.used, 0);
	complete_free(&out);
}

static void commands_and_the_second_words_of_groups_are_offered(void **state)
{
	(void)state;
	offers("ev", "evaluate evaluations ");
	offers("he", "help ");
	offers("jobs ", "list show watch cancel pause resume delete checkpoints ");
	offers("jobs c", "cancel checkpoints ");
	offers("tokenizer en", "encode ");
	offers("help tokenizer en", "encode ");
	offers("help jobs show ", "");
	offers("--url http://x --json jobs wa", "watch ");
	offers("no-such-command ", "");
}

static void options_and_their_words_are_offered(void **state)
{
	(void)state;
	offers("jobs watch --no", "--no-curve ");
	offers("jobs watch ID --j", "--json ");
	offers("train --schedule c", "cosine constant cosine_with_restarts ");
	offers("train --schedule=c", "--schedule=cosine --schedule=constant --schedule=cosine_with_restarts ");
	offers("embed --pooling ", "mean last ");
	offers("train --objective fi", "fill_mask ");
	offers("train --optimizer=adamw_", "--optimizer=adamw_hf ");
	offers("explain-evaluate --methods alpha,ro", "alpha,rollout ");
	offers("explain-evaluate --methods=alpha,ro", "--methods=alpha,rollout ");
	offers("completion ", "bash zsh fish ");
	offers("train -- --sch", "");
	offers("train --no-such=", "");
	offers("train --steps ", "");
}

static void files_and_ids_are_left_to_the_shell_and_the_service(void **state)
{
	(void)state;
	requests("train ", COMPLETE_FILES, NULL, 0);
	requests("train a.txt --steps 5 b", COMPLETE_FILES, NULL, 0);
	requests("train --validation=a", COMPLETE_FILES, NULL, 13);
	requests("serve --data ", COMPLETE_FOLDERS, NULL, 0);
	requests("evaluate ", COMPLETE_WORDS, "/v1/models", 0);
	requests("evaluate --top 3 MODEL ", COMPLETE_FILES, NULL, 0);
	requests("evaluate MODEL FILE ", COMPLETE_WORDS, NULL, 0);
	requests("generate --model=ft:", COMPLETE_WORDS, "/v1/models", 8);
	requests("jobs show ", COMPLETE_WORDS, "/v1/fine_tuning/jobs?limit=1000", 0);
	requests("explain -o ", COMPLETE_FILES, NULL, 0);
	requests("generate the text ", COMPLETE_WORDS, NULL, 0);
}

static void the_service_of_a_line_is_the_one_it_names(void **state)
{
	(void)state;
	completion out = of("--api-key=secret models show --url http://there:1 ");

	assert_string_equal(out.url, "http://there:1");
	assert_string_equal(out.key, "secret");
	assert_non_null(out.list);
	complete_free(&out);
}

static void every_command_and_every_option_of_it_is_offered(void **state)
{
	const command *k;

	(void)state;
	for (int i = 0; (k = commands_at(i)); i++) {
		char line[128], word[128];

		for (const char *space = strchr(k->name, ' '); space; space = NULL) {
			snprintf(line, sizeof(line), "%s", k->name);
			snprintf(word, sizeof(word), "%s\t", space + 1);
			completion second = of(line);
			assert_non_null(strstr(text_get(&second.words), word));
			complete_free(&second);
		}
		snprintf(line, sizeof(line), "%s --", k->name);
		completion out = of(line);
		const option_row *const tables[] = {k->options, commands_common};
		for (int t = 0; t < 2; t++)
			for (const option_row *r = tables[t]; r && r->name; r++) {
				snprintf(word, sizeof(word), "--%s\t", r->name);
				assert_true(!*r->name || strstr(text_get(&out.words), word));
			}
		complete_free(&out);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(commands_and_the_second_words_of_groups_are_offered),
	    cmocka_unit_test(options_and_their_words_are_offered),
	    cmocka_unit_test(files_and_ids_are_left_to_the_shell_and_the_service),
	    cmocka_unit_test(the_service_of_a_line_is_the_one_it_names),
	    cmocka_unit_test(every_command_and_every_option_of_it_is_offered),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
