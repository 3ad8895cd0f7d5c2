/* options.h - command line options and their help from one table, for all three programs.
 *
 *    --name VALUE, --name=VALUE, --flag, -h (--help), -v (--version), -o (--output); "--" ends them, so that an
 *    argument may begin with a dash. Options may come before, between and after arguments.
 *
 * A row with a `field` is part of a request. options_fill writes the given value into a JSON object at that path
 * ("additive.config.n_heads"), with the type in the row. A command that only sends a request is therefore a table and a
 * URL path.
 *
 * engine_options.def and front_options.def hold the rows of the daemons. A daemon includes its own, `additive serve`
 * includes both. A new option is one row there, and its use in its program. */
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
	OPTION_MEMBERS,   /* "KEY=VALUE", given several times; VALUE is JSON, or else a string */
	OPTION_SELECTION, /* OPTION_INTEGERS, or the word "all" */
	OPTION_DURATION,  /* whole seconds, or with a unit: "3600", "90m", "1h", "7d" */
	OPTION_COUNT,     /* an integer; the row's `field` is its range, "1 to 64" */
	OPTION_SECONDS    /* a number with a range, in the same way */
} option_type;

typedef struct option_row {
	const char *name; /* "max-tokens"; NULL ends the table; "": the help is a heading */
	option_type type;
	const char *value; /* the value's name in the help: "N"; "a|b" or "NAME:a|b": allowed words; NULL for a flag */
	const char *help;
	const char *field; /* path in a request, range, or NULL */
} option_row;

typedef struct option_given {
	const option_row *row;
	const char *value; /* points into argv, or is owned */
	bool owned;        /* malloc'ed: it comes from a configuration file */
} option_given;

typedef struct options {
	option_given *given; /* in the order given */
	int n_given;
	const char **arguments;
	int n_arguments;
	char problem[400];  /* the error, when parsing failed */
	bool out_of_memory; /* `problem` is a failed allocation */
} options;

/* Parse argv[0 … argc) against two tables (either may be NULL). On false, o->problem is the error. argv must outlive o.
 * Values of numeric options are checked here. */
bool options_parse(options *o, int argc, char **argv, const option_row *common, const option_row *own);
void options_free(options *o);

/* Check the value of an option that takes one. On false, `problem` is the error, which begins with `label`. */
bool options_check(const option_row *row, const char *label, const char *value, char *problem, size_t bytes);
/* True if the values given for this option differ between a and b. */
bool options_differ(const options *a, const options *b, const char *name);

/* The value given last, or NULL; flags: "". */
const char *options_text(const options *o, const char *name);
bool options_flag(const options *o, const char *name);
/* The number given last, or `fallback`. */
double options_number(const options *o, const char *name, double fallback);
int64_t options_integer(const options *o, const char *name, int64_t fallback);
/* The OPTION_DURATION given last, in seconds, or `fallback`. */
int64_t options_duration(const options *o, const char *name, int64_t fallback);

/* Write an option in the form that a program parses, "--name=VALUE". malloc'ed; NULL: out of memory. */
char *options_write(const option_given *given);

/* Write all given options that have a field into `request`. False when out of memory. */
bool options_fill(const options *o, json_t *request);

/* The row for "--name", "--name=VALUE" or a short option, or NULL. */
const option_row *options_row(const char *word, const option_row *common, const option_row *own);
bool options_takes_value(const option_row *row);
/* The row with this name, or NULL. */
const option_row *options_find(const option_row *rows, const char *name);

/* The allowed words of a row, "a|b", or NULL. */
const char *options_words(const option_row *row);
/* Length of the value's name in the help, at the start of row->value. */
int options_value_bytes(const option_row *row);
/* A row's help text, followed by the allowed words unless they are already the value's name. malloc'ed; NULL: out of
 * memory. */
char *options_describe(const option_row *row);
/* Print one line per row. */
void options_help(FILE *file, const option_row *rows);
/* Print text wrapped to the terminal's width, or to 80 columns without one, and end the last line. The cursor is at
 * column `indent`, where every further line begins too. Two line feeds end a paragraph; a single one is a space. A line
 * that begins with a space is printed as it is. */
void options_wrap(FILE *file, const char *text, int indent);

#endif
