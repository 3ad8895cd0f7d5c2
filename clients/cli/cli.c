/* cli.c - functions that all commands share. */
#include "clients/cli/cli.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "clients/cli/field_names.h"
#include "clients/cli/names.h"
#include "proto/nearest.h"

/* --- errors ---------------------------------------------------------------------------- */

static bool errors_as_json;

void cli_errors_as_json(void)
{
	errors_as_json = true;
}

/* status 0: no answer of a service. */
static void print_error(const char *message, const char *code, const char *param, int status)
{
	json_t *json;

	if (!errors_as_json) {
		fprintf(stderr, "additive: %s\n", message);
		return;
	}
	json = json_pack("{s:{s:s, s:s, s:s*, s:o*}}", "error", "message", message, "code", code, "param",
	                 *param ? param : NULL, "status", status ? json_integer(status) : NULL);
	json_dumpf(json, stderr, JSON_COMPACT);
	fputc('\n', stderr);
	json_decref(json);
}

/* Text of any origin as one that a terminal, and a JSON string, can bear. */
static void print_local(const char *code, const char *format, va_list arguments)
{
	char message[1024];
	text shown = {0};

	vsnprintf(message, sizeof(message), format, arguments);
	terminal_escape(&shown, message, strlen(message), true);
	print_error(text_get(&shown), code, "", 0);
	text_free(&shown);
}

int cli_fail(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	print_local("failed", format, arguments);
	va_end(arguments);
	return CLI_FAILED;
}

int cli_usage(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	print_local("usage", format, arguments);
	va_end(arguments);
	return CLI_USAGE;
}

void cli_note(const cli *c, const char *format, ...)
{
	va_list arguments;

	if (c->json)
		return;
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
}

static void show_transfer(void *context, const char *name, long long done, long long total)
{
	cli *c = context;
	struct timespec now;
	text line = {0};

	clock_gettime(CLOCK_MONOTONIC, &now);
	if (done < 0)
		meter_end(&c->meter, &line);
	else
		meter_take(&c->meter, name, done, total, now.tv_sec * 1000LL + now.tv_nsec / 1000000, &line);
	fputs(text_get(&line), stderr);
	text_free(&line);
}

void cli_show_transfers(cli *c)
{
	c->meter.tty = c->err.tty;
	http_on_transfer(c->http, show_transfer, c);
}

/* --- names that do not exist --------------------------------------------------------------- */

/* The name given on the command line, and the list that should contain it. param: the field of the error. NULL:
 * unknown. */
static const char *asked_name(const cli *c, const char *param, const char **list)
{
	const char *const first[] = {param, "session", "model"};

	for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++)
		for (int n = c->options.n_given; n-- > 0;)
			if (strcmp(c->options.given[n].row->name, first[i]) == 0) {
				*list = names_of_option(c->options.given[n].row);
				return *list ? c->options.given[n].value : NULL;
			}
	*list = c->command ? names_of_argument(c->command, 0) : NULL;
	return *list ? cli_argument(c, 0) : NULL;
}

/* Append " (did you mean …?)" when a name like the one asked for exists. */
static void suggest(const cli *c, const char *param, text *message)
{
	const char *list, *name = asked_name(c, param, &list);
	size_t i;
	json_t *entry, *all = name ? http_json(c->http, "GET", list, NULL) : NULL;
	nearest near = nearest_of(name ? name : "");

	json_array_foreach(json_object_get(all, "data"), i, entry)
	{
		const char *id = json_string_value(json_object_get(entry, "id"));

		if (id)
			nearest_offer(&near, id);
	}
	if (nearest_found(&near) && near.distance > 0) {
		text_string(message, " (did you mean ");
		terminal_escape(message, near.best, strlen(near.best), false);
		text_string(message, "?)");
	}
	json_decref(all);
}

int cli_complain(const cli *c)
{
	const http_problem p = *http_get_problem(c->http);
	text message = {0}, translated = {0};

	if (ferror(stdout)) /* that is why, and cli_flush says so */
		return CLI_FAILED;
	if (!errors_as_json)
		field_names_translate(c, p.message, &translated);
	const char *shown = errors_as_json ? p.message : text_get(&translated);
	terminal_escape(&message, shown, strlen(shown), true);
	text_free(&translated);
	if (p.param[0] && !strstr(p.message, p.param) && !errors_as_json) {
		text_string(&message, " (");
		if (!field_names_option(c, p.param, &message)) {
			text_string(&message, "field ");
			terminal_escape(&message, p.param, strlen(p.param), false);
		}
		text_string(&message, ")");
	}
	if (p.status == 404 && !strstr(p.message, "did you mean"))
		suggest(c, p.param, &message);
	print_error(text_get(&message), p.code[0] ? p.code : "unreachable", p.param, p.status);
	text_free(&message);
	return CLI_FAILED;
}

/* --- output ---------------------------------------------------------------------------------- */

/* True if the descriptor has no reader left. */
static bool is_unread(int descriptor)
{
	struct pollfd p = {.fd = descriptor};

	return poll(&p, 1, 0) > 0 && (p.revents & POLLERR);
}

int cli_flush(int status)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return status;
	if (is_unread(STDOUT_FILENO)) {
		signal(SIGPIPE, SIG_DFL);
		raise(SIGPIPE);
	}
	return cli_fail("cannot write to stdout");
}

bool cli_make_folder(const char *path)
{
	char part[PATH_MAX];
	size_t n = strlen(path);

	if (n == 0 || n >= sizeof(part))
		return false;
	for (size_t i = 1; i <= n; i++) {
		if (path[i] != '/' && path[i] != '\0')
			continue;
		memcpy(part, path, i);
		part[i] = '\0';
		if (mkdir(part, 0700) != 0 && errno != EEXIST)
			return false;
	}
	return true;
}

/* --- arguments and answers --------------------------------------------------------------------- */

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

void cli_print_text(const cli *c, const char *string, size_t n)
{
	text shown = {0};

	if (c->out.tty)
		terminal_escape(&shown, string, n, true);
	else
		text_append(&shown, string, n);
	fwrite(text_get(&shown), 1, shown.used, stdout);
	fflush(stdout);
	text_free(&shown);
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
	show_table(stdout, c->out.width, json_object_get(answer, list), columns);
	json_decref(answer);
	return CLI_OK;
}

int cli_on_id(const cli *c, const char *method, const char *format)
{
	return cli_answer(c, http_json(c->http, method, http_path(c->http, format, cli_argument(c, 0)), NULL));
}
