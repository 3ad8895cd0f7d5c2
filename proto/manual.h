/* manual.h - a program's help and its page of the manual, in roff (man(7)), out of one description.
 *
 * The roff is ASCII. Text is shown as it is written: what means something to roff is escaped. */
#ifndef PROTO_MANUAL_H
#define PROTO_MANUAL_H

#include <stdio.h>

#include "proto/options.h"

typedef struct manual_page {
	const char *name; /* "additived" */
	int section;
	const char *summary; /* one line without a full stop */
	const char *usage;   /* lines, each a form of the command */
	const char *text;    /* as of manual_text, or NULL */
	const option_row *rows;
	const char *see; /* "additive(1), …" */
} manual_page;

/* The whole page. */
void manual_write(FILE *file, const manual_page *page);
/* The same as --help shows it. */
void manual_help(FILE *file, const manual_page *page);

/* Parts of a page, for those that are made of more: its beginning; a heading, and one below it; */
void manual_begin(FILE *file, const char *name, int section, const char *summary);
void manual_heading(FILE *file, const char *title);
void manual_subheading(FILE *file, const char *title);
/* below a heading forms of a command, one a line, in which "--option" and NAMES of values stand out; */
void manual_usage(FILE *file, const char *lines);
/* below a heading paragraphs, with empty lines between them, in which lines are filled unless they begin with two
 * spaces; */
void manual_text(FILE *file, const char *text);
/* an entry of a list; */
void manual_entry(FILE *file, const char *title, const char *text);
/* options as such a list; a row that is a heading is one below a heading. */
void manual_options(FILE *file, const option_row *rows);

#endif
