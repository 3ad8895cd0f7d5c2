/* cli.c - what commands have in common. */
#include "clients/cli/cli.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void say(const char *format, va_list arguments)
{
	fputs("additive: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
}

int cli_fail(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	say(format, arguments);
	va_end(arguments);
	return CLI_FAILED;
}

int cli_usage(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	say(format, arguments);
	va_end(arguments);
	return CLI_USAGE;
}

int cli_complain(const cli *c)
{
	http_complain(c->http);
	return CLI_FAILED;
}

const char *cli_argument(const cli *c, int n)
{
	return n < c->options.n_arguments ? c->options.arguments[n] : NULL;
}

char *cli_argument_or_stdin(const cli *c, int n)
{
	const char *argument = cli_argument(c, n);
	text all = {0};
	char piece[4096];
	size_t bytes;

	if (argument)
		return strdup(argument);
	if (isatty(STDIN_FILENO))
		return NULL;
	while ((bytes = fread(piece, 1, sizeof(piece), stdin)) > 0)
		if (!text_append(&all, piece, bytes))
			break;
	if (!all.data)
		text_string(&all, "");
	return all.data;
}

void cli_print_json(const json_t *json)
{
	json_dumpf(json, stdout, JSON_COMPACT | JSON_ENCODE_ANY);
	putchar('\n');
	fflush(stdout);
}

int cli_answer(const cli *c, json_t *answer)
{
	if (!answer)
		return cli_complain(c);
	if (c->json)
		cli_print_json(answer);
	else
		show_object(stdout, answer);
	json_decref(answer);
	return CLI_OK;
}

int cli_table(const cli *c, json_t *answer, const char *list, const show_column *columns)
{
	if (!answer || c->json)
		return cli_answer(c, answer);
	show_table(stdout, json_object_get(answer, list), columns);
	json_decref(answer);
	return CLI_OK;
}

int cli_on_id(const cli *c, const char *method, const char *format)
{
	return cli_answer(c, http_json(c->http, method, http_path(c->http, format, cli_argument(c, 0)), NULL));
}
