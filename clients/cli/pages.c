/* pages.c - the pages of the manual (`manual`): one of the program, and one for the commands of each first word. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "clients/cli/commands.h"
#include "proto/manual.h"

static const char prefix[] = "additive-";

/* --- one page ------------------------------------------------------------------------------ */

/* The summary as a sentence, and the details. */
static void write_description(FILE *file, const command *k)
{
	text paragraphs = {0};

	text_format(&paragraphs, "%c%s.", toupper((unsigned char)k->summary[0]), k->summary + 1);
	if (k->details)
		text_format(&paragraphs, "\n\n%s", k->details);
	manual_text(file, text_get(&paragraphs));
	text_free(&paragraphs);
}

static void write_command(FILE *file, const command *k, bool grouped)
{
	text title = {0};

	text_format(&title, "%s %s", k->name, k->arguments);
	if (grouped)
		manual_subheading(file, text_get(&title));
	write_description(file, k);
	if (k->options && !grouped)
		manual_heading(file, "Options");
	if (k->options)
		manual_options(file, k->options);
	text_free(&title);
}

/* Write the page of the n-th command and those after it with the same first word. */
static void write_page(FILE *file, int n)
{
	const command *first = commands_at(n), *k;
	const bool grouped = commands_is_grouped(first);
	char word[COMMANDS_WORD_BYTES], other[COMMANDS_WORD_BYTES], summary[COMMANDS_SUMMARY_BYTES];
	text name = {0}, usage = {0};

	text_format(&name, "%s%s", prefix, commands_word(first, word));
	manual_begin(file, text_get(&name), 1, commands_summary(first, summary));
	manual_heading(file, "Synopsis");
	for (int i = n; (k = commands_at(i)) && strcmp(commands_word(k, other), word) == 0; i++)
		text_format(&usage, "%sadditive %s %s%s[OPTIONS]", usage.used ? "\n" : "", k->name, k->arguments,
		            *k->arguments ? " " : "");
	manual_usage(file, text_get(&usage));
	manual_heading(file, grouped ? "Commands" : "Description");
	for (int i = n; (k = commands_at(i)) && strcmp(commands_word(k, other), word) == 0; i++)
		write_command(file, k, grouped);
	manual_heading(file, "Options of every command");
	manual_options(file, commands_common);
	manual_heading(file, "See also");
	manual_text(file, strcmp(word, "train") == 0   ? "additive(1), additive-jobs(1), additive-train(8)"
	                  : strcmp(word, "serve") == 0 ? "additive(1), additived(8), additive-httpd(8)"
	                                               : "additive(1)");
	text_free(&name);
	text_free(&usage);
}

static void write_overview(FILE *file)
{
	char before[COMMANDS_WORD_BYTES] = "", word[COMMANDS_WORD_BYTES], summary[COMMANDS_SUMMARY_BYTES];
	const command *k;

	manual_begin(file, "additive", 1, "train, serve and explain additive-attention language models");
	manual_heading(file, "Synopsis");
	manual_usage(file, "additive COMMAND [OPTIONS]\nadditive help [COMMAND]");
	manual_heading(file, "Description");
	manual_text(file,
	            "Results go to stdout, everything else to stderr. With --json stdout holds the service's own "
	            "JSON, one value per line, and stderr a line {\"error\": {\"message\", \"code\", …}} for each "
	            "error.");
	manual_heading(file, "Commands");
	for (int i = 0; (k = commands_at(i)); i++) {
		if (strcmp(commands_word(k, word), before) == 0)
			continue;
		strcpy(before, word);
		manual_entry(file, word, commands_summary(k, summary));
	}
	manual_heading(file, "Options of every command");
	manual_options(file, commands_common);
	manual_heading(file, "Exit status");
	manual_entry(file, "0", "The command did what it says.");
	manual_entry(file, "1", "The service or this machine refused.");
	manual_entry(file, "2", "Wrong usage.");
	manual_heading(file, "Environment");
	manual_entry(file, "ADDITIVE_URL, ADDITIVE_API_KEY", "The service and its key, unless options say them.");
	manual_entry(file, "SSL_CERT_FILE", "Certificates that may sign the service's, unless --ca names others.");
	manual_entry(file, "NO_COLOR, CLICOLOR_FORCE", "Colours never, or without a terminal too.");
	manual_heading(file, "See also");
	manual_text(file, "Each command has a page additive-COMMAND(1); additived(8), additive-httpd(8), "
	                  "additive-train(8)");
}

/* --- the command ------------------------------------------------------------------------------ */

static FILE *open_page(const char *folder, const char *name)
{
	text path = {0};

	text_format(&path, "%s/%s.1", folder, name);
	FILE *file = fopen(text_get(&path), "w");
	if (!file)
		cli_fail("cannot write %s: %s", text_get(&path), strerror(errno));
	text_free(&path);
	return file;
}

static int close_page(FILE *file)
{
	bool failed = ferror(file) != 0;

	return fclose(file) != 0 || failed ? cli_fail("cannot write a page: %s", strerror(errno)) : CLI_OK;
}

static int pages_run(cli *c)
{
	const char *folder = cli_argument(c, 0);
	char before[COMMANDS_WORD_BYTES] = "", word[COMMANDS_WORD_BYTES], name[sizeof(prefix) + COMMANDS_WORD_BYTES];
	const command *k;
	int status = CLI_FAILED;

	if (mkdir(folder, 0777) != 0 && errno != EEXIST)
		return cli_fail("cannot create the folder %s: %s", folder, strerror(errno));
	FILE *file = open_page(folder, "additive");
	if (file) {
		write_overview(file);
		status = close_page(file);
	}
	for (int i = 0; status == CLI_OK && (k = commands_at(i)); i++) {
		if (strcmp(commands_word(k, word), before) == 0)
			continue;
		strcpy(before, word);
		snprintf(name, sizeof(name), "%s%s", prefix, word);
		if (!(file = open_page(folder, name)))
			return CLI_FAILED;
		write_page(file, i);
		status = close_page(file);
	}
	return status;
}

const command pages_commands[] = {{"manual", "DIR", 1, 1,
                                   "write the pages of the manual (man) into a folder, which is created",
                                   "additive.1, and additive-COMMAND.1 for each command or group of commands. "
                                   "`make install` installs them.",
                                   NULL, pages_run},
                                  {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL}};
