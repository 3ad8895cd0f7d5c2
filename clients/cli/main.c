/* additive - the command line of the service. Finds the command, parses its options, runs it. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "clients/cli/cli.h"
#include "clients/cli/commands.h"

static const char default_url[] = "http://127.0.0.1:8080";

/* --- help -------------------------------------------------------------------------------- */

/* group "": all */
static void print_commands(FILE *file, const char *group)
{
	enum { COLUMN = 35 };
	size_t n = strlen(group);
	const command *k;

	for (int i = 0; (k = commands_at(i)); i++) {
		char words[64];

		if (n && (strncmp(k->name, group, n) != 0 || k->name[n] != ' '))
			continue;
		snprintf(words, sizeof(words), "%s %s", k->name, k->arguments);
		int used = fprintf(file, "  %s", words);
		if (used + 2 > COLUMN)
			used = fprintf(file, "\n") - 1;
		fprintf(file, "%*s", COLUMN - used, "");
		options_wrap(file, k->summary, COLUMN);
	}
}

static void print_help(FILE *file)
{
	fputs("additive: train, serve and explain additive-attention language models\n\nusage: additive COMMAND "
	      "[OPTIONS]\n\n",
	      file);
	print_commands(file, "");
	fputs("\nEvery command takes --help, and:\n", file);
	options_help(file, commands_common);
}

static void print_command_help(FILE *file, const command *k)
{
	char title[256];

	snprintf(title, sizeof(title), "additive %s: %s", k->name, k->summary);
	options_wrap(file, title, 0);
	fprintf(file, "\nusage: additive %s %s%s[OPTIONS]\n", k->name, k->arguments, *k->arguments ? " " : "");
	if (k->details) {
		fputc('\n', file);
		options_wrap(file, k->details, 0);
	}
	fputc('\n', file);
	if (k->options)
		options_help(file, k->options);
	options_help(file, commands_common);
}

static int unknown(int argc, char **argv)
{
	bool grouped = argc >= 2 && commands_is_group(argv[0]);
	const char *group = grouped ? argv[0] : "", *space = grouped ? " " : "";
	nearest near;
	const char *meant = commands_nearest(argc, argv, &near);

	if (meant)
		return cli_usage("unknown command: %s%s%s (did you mean %s%s%s?)", group, space, argv[grouped], group,
		                 space, meant);
	return cli_usage("unknown command: %s%s%s. additive %s%s--help lists them", group, space, argv[grouped], group,
	                 space);
}

/* --- running ---------------------------------------------------------------------------------- */

static int print_version(void)
{
	puts("additive " ADDITIVE_VERSION);
	return cli_flush(CLI_OK);
}

static int main_command(const command *k, cli *c)
{
	const char *url = options_text(&c->options, "url"), *key = options_text(&c->options, "api-key");

	if (options_flag(&c->options, "help")) {
		print_command_help(stdout, k);
		return cli_flush(CLI_OK);
	}
	if (options_flag(&c->options, "version"))
		return print_version();
	if (c->options.n_arguments < k->least || c->options.n_arguments > k->most)
		return cli_usage("usage: additive %s %s%s[OPTIONS]", k->name, k->arguments, *k->arguments ? " " : "");
	if (!url)
		url = getenv("ADDITIVE_URL");
	if (!key)
		key = getenv("ADDITIVE_API_KEY");
	c->command = k;
	c->json = options_flag(&c->options, "json");
	c->out = terminal_of(stdout);
	c->err = terminal_of(stderr);
	c->http = http_new(url && *url ? url : default_url, key);
	if (!c->http)
		return cli_fail("out of memory");
	http_trust_issuers(c->http, options_text(&c->options, "ca"));
	if (!c->json)
		cli_show_transfers(c);
	int status = k->run(c);
	http_free(c->http);
	return cli_flush(status);
}

/* Options before the command are rotated after it. */
static void move_command_first(int argc, char **argv)
{
	int before = 0;

	while (before < argc && argv[before][0] == '-') {
		bool takes_value = strcmp(argv[before], "--url") == 0 || strcmp(argv[before], "--api-key") == 0 ||
		                   strcmp(argv[before], "--ca") == 0;
		before += takes_value ? 2 : 1;
	}
	if (before >= argc)
		return;
	for (int words = argc - before, w = 0; w < words; w++) {
		char *word = argv[before + w];

		memmove(&argv[w + 1], &argv[w], (size_t)before * sizeof(*argv));
		argv[w] = word;
	}
}

static bool main_is_word(const char *argument, const char *word, const char *letter)
{
	return strcmp(argument, word) == 0 || strcmp(argument, letter) == 0;
}

/* Handle options of the program itself, or return -1: help [COMMAND], --help, --version. */
static int run_own(int argc, char **argv)
{
	int words;

	if (argc == 0) {
		print_help(stderr);
		return CLI_USAGE;
	}
	if (main_is_word(argv[0], "--version", "-v"))
		return print_version();
	bool help = strcmp(argv[0], "help") == 0;
	if (main_is_word(argv[0], "--help", "-h") || (help && argc == 1)) {
		print_help(stdout);
	} else if ((argc == 2 && commands_is_group(argv[0]) && main_is_word(argv[1], "--help", "-h")) ||
	           (help && argc == 2 && commands_is_group(argv[1]))) {
		print_commands(stdout, argv[help]);
	} else if (help) {
		const command *k = commands_find(argc - 1, argv + 1, &words);

		if (!k)
			return unknown(argc - 1, argv + 1);
		print_command_help(stdout, k);
	} else {
		return -1;
	}
	return cli_flush(CLI_OK);
}

int main(int argc, char **argv)
{
	cli c = {0};
	int words = 0, status;

	signal(SIGPIPE, SIG_IGN);
	terminal_begin();
	argc--;
	argv++;
	for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
		if (strcmp(argv[i], "--json") == 0)
			cli_errors_as_json();
	move_command_first(argc, argv);
	if ((status = run_own(argc, argv)) >= 0)
		return status;
	const command *k = commands_find(argc, argv, &words);
	if (!k)
		return unknown(argc, argv);
	if (options_parse(&c.options, argc - words, argv + words, commands_common, k->options))
		status = main_command(k, &c);
	else if (c.options.out_of_memory)
		status = cli_fail("out of memory");
	else
		status = cli_usage("%s. additive %s --help lists the options", c.options.problem, k->name);
	options_free(&c.options);
	return status;
}
