/* options.h - command line options out of a table, and the help out of the same table. For all three programs.
 *
 *   --name VALUE, --name=VALUE, --flag, -h (--help), -v (--version), -o (--output); "--" ends them, so that an
 *   argument may begin with a dash. Options may stand before, between and after arguments.
 *
 * A row with a `field` is part of a request: options_fill writes what was given into a JSON object at that
 * path ("additive.config.n_heads"), in the type that the row says, so that a command that only asks is a
 * table and a path.
 *
 * engine_options.def and front_options.def hold the rows of the daemons. A daemon includes its own, `additive serve`
 * includes both: a new option is one row there, and its use in its program. */
#ifndef PROTO_OPTIONS_H
#define PROTO_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

typedef enum option_type {
	OPTION_FLAG,
	OPTION_OFF, /* a flag whose field is true without it */
	OPTION_TEXT,
	OPTION_INTEGER,
	OPTION_NUMBER,
	OPTION_INTEGERS,  /* "4,8,16" */
	OPTION_WORDS,     /* "query,key" */
	OPTION_TEXTS,     /* given several times */
	OPTION_SELECTION, /* OPTION_INTEGERS, or the word "all" */
	OPTION_DURATION,  /* whole seconds, or with a unit: "3600", "90m", "1h", "7d" */
	OPTION_COUNT,     /* an integer; the row's `field` is its range, "1 to 64" */
	OPTION_SECONDS    /* a number; likewise */
} option_type;

typedef struct option_row {
	const char *name; /* "max-tokens"; NULL ends the table; "": the help is a heading */
	option_type type;
	const char
	    *value; /* how the help calls the value: "N"; "a|b" or "NAME:a|b": words to choose from; NULL for a flag */
	const char *help;
	const char *field; /* path in a request, range, or NULL */
} option_row;

typedef struct option_given {
	const option_row *row;
	const char *value; /* points into argv */
} option_given;

typedef struct options {
	option_given *given; /* in the order given */
	int n_given;
	const char **arguments;
	int n_arguments;
	char problem[400];  /* what is wrong, when parsing failed */
	bool out_of_memory; /* that is */
} options;

/* Parse argv[0 … argc) against two tables (either may be NULL). False: o->problem says why. argv must outlive o.
 * Values of numeric options are checked here. */
bool options_parse(options *o, int argc, char **argv, const option_row *common, const option_row *own);
void options_free(options *o);

/* The value given last, or NULL; flags: "". */
const char *options_text(const options *o, const char *name);
bool options_flag(const options *o, const char *name);
/* The number given last, or the fallback. */
double options_number(const options *o, const char *name, double fallback);
int64_t options_integer(const options *o, const char *name, int64_t fallback);
/* The OPTION_DURATION given last in seconds, or the fallback. */
int64_t options_duration(const options *o, const char *name, int64_t fallback);

/* An option as another program reads it, "--name=VALUE", malloc'ed; NULL: out of memory. */
char *options_write(const option_given *given);

/* Write all given options that have a field into `request`. False when out of memory. */
bool options_fill(const options *o, json_t *request);

/* The row that "--name", "--name=VALUE" or a short option means, or NULL. */
const option_row *options_row(const char *word, const option_row *common, const option_row *own);
bool options_takes_value(const option_row *row);
/* The row of that name, or NULL. */
const option_row *options_find(const option_row *rows, const char *name);

/* "a|b": the words to choose a row's value from, or NULL: there are none. */
const char *options_words(const option_row *row);
/* How many bytes of row->value are how the help calls it. */
int options_value_bytes(const option_row *row);
/* A row's help, with the words to choose from unless they are what the help calls the value; malloc'ed, NULL: out of
 * memory. */
char *options_describe(const option_row *row);
/* One line per row. */
void options_help(FILE *file, const option_row *rows);
/* Print text as lines that are no wider than the terminal, or than 80 columns without one, and end the last. The first
 * begins at column `indent`, and so do the others. Two line feeds end a paragraph; a single one is a space. */
void options_wrap(FILE *file, const char *text, int indent);

#endif
