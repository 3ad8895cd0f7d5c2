/* manual.h - a program's help and its manual page in roff (man(7)), from one description.
 *
 * The roff is ASCII. Characters with a meaning in roff are escaped. */
#ifndef PROTO_MANUAL_H
#define PROTO_MANUAL_H

#include <stdio.h>

#include "proto/options.h"

typedef struct manual_page {
	const char *name; /* "additived" */
	int section;
	const char *summary; /* one line without a full stop */
	const char *usage;   /* one form of the command per line */
	const char *text;    /* as for manual_text, or NULL */
	const option_row *rows;
	const char *see; /* "additive(1), …" */
} manual_page;

/* Write the whole page. */
void manual_write(FILE *file, const manual_page *page);
/* Write the page as --help shows it. */
void manual_help(FILE *file, const manual_page *page);

/* Parts of a page, for pages that combine several. Begin a page; write a heading, or a heading one level below. */
void manual_begin(FILE *file, const char *name, int section, const char *summary);
void manual_heading(FILE *file, const char *title);
void manual_subheading(FILE *file, const char *title);
/* Write forms of a command, one per line, with "--option" and NAMES of values highlighted. */
void manual_usage(FILE *file, const char *lines);
/* Write paragraphs, separated by empty lines. Lines are filled unless they begin with two spaces. */
void manual_text(FILE *file, const char *text);
/* Write one entry of a list. */
void manual_entry(FILE *file, const char *title, const char *text);
/* Write options as a list; a heading row becomes a heading one level below. */
void manual_options(FILE *file, const option_row *rows);

#endif
