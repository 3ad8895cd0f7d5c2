/* cli.h - the definition of a command, and the state that every command gets.
 *
 * A command is a row: its words, its arguments, its options and a function. Every command file exports its rows, and
 * commands.c lists the files. Parsing, --help, completion and the manual pages are generated from the rows alone.
 *
 * Results go to stdout, everything else to stderr. With --json, stdout holds the service's own JSON, one value per
 * line, and stderr holds {"error": {…}} for errors, in the form of the API's errors. Exit status: 0; 1 when the service
 * or this machine refused; 2 for wrong usage. If the reader of stdout goes away, the program ends as by SIGPIPE. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "clients/cli/http.h"
#include "clients/cli/meter.h"
#include "proto/options.h"
#include "clients/cli/show.h"
#include "clients/cli/terminal.h"

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_INTERRUPTED = 130 };

typedef struct cli {
	http *http;
	const struct command *command;
	options options;
	bool json;
	terminal out, err;
	meter meter;
} cli;

typedef struct command {
	const char *name;          /* "jobs show"; of "jobs" alone, the first row beginning with it is meant */
	const char *arguments;     /* "ID"; its words define the arguments (names.h, complete.c) */
	int least, most;           /* number of arguments */
	const char *summary;       /* one line */
	const char *details;       /* further lines of the help, or NULL */
	const option_row *options; /* or NULL */
	int (*run)(cli *c);        /* the exit status */
} command;

/* Each ends with a NULL name. */
extern const command serve_commands[], train_commands[], jobs_commands[], models_commands[], adapters_commands[],
    files_commands[], generate_commands[], explain_commands[], evaluate_commands[], evaluations_commands[],
    faithfulness_commands[], batches_commands[], responses_commands[], faithfulness_jobs_commands[],
    classify_commands[], sessions_commands[], tokenize_commands[], version_commands[], keys_commands[],
    maintenance_commands[], storage_commands[], ps_commands[], load_commands[], completion_commands[], pages_commands[];

/* From now on errors are JSON. Set once, before the first can happen: the form of stderr is the process's. */
void cli_errors_as_json(void);
/* "additive: …" on stderr; returns the status. */
int cli_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
int cli_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Report why the last request failed, and which name may have been meant. CLI_FAILED. */
int cli_complain(const cli *c);
/* A line for people on stderr, none with --json. */
void cli_note(const cli *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Show on stderr how far transfers are that take longer than METER_QUIET_MS. */
void cli_show_transfers(cli *c);
/* All output is written, or the reader of stdout has gone (then the program ends as if SIGPIPE had not been ignored);
 * else a complaint and CLI_FAILED. */
int cli_flush(int status);

/* Make a folder of the user's alone, with those above it. False: errno says why. */
bool cli_make_folder(const char *path);

/* The n-th argument, or NULL. */
const char *cli_argument(const cli *c, int n);
/* The n-th argument, or else all of stdin unless that is a terminal. malloc'ed; NULL when there is neither. */
char *cli_argument_or_stdin(const cli *c, int n);

/* Write a piece of text to stdout; on a terminal control characters are made visible. */
void cli_print_text(const cli *c, const char *string, size_t n);
/* One line of JSON. */
void cli_print_json(const json_t *json);
/* The answer of a request (stolen; NULL: it failed), shown as an object. Returns the exit status. */
int cli_answer(const cli *c, json_t *answer);
/* Show an answer as the table of its member `list`. */
int cli_table(const cli *c, json_t *answer, const char *list, const show_column *columns);
/* Send a request without a body to "/…/%s", with the first argument as id, and show the answer. */
int cli_on_id(const cli *c, const char *method, const char *format);
/* Define a command that only does that. */
#define CLI_ON_ID(function, method, format)                                                                            \
	static int function(cli *c)                                                                                    \
	{                                                                                                              \
		return cli_on_id(c, method, format);                                                                   \
	}

#endif
