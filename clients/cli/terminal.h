/* terminal.h - properties of the terminal at stdout or stderr, and safe output to it. */
#ifndef CLI_TERMINAL_H
#define CLI_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "clients/cli/text.h"

typedef struct terminal {
	bool tty;
	bool colour; /* a tty that is not TERM=dumb, or CLICOLOR_FORCE; never with NO_COLOR */
	int width;   /* columns; 80 when a tty does not say, 0 without a tty: no limit */
	int height; /* rows; 24 when a tty does not say, 0 without a tty or with TERM=dumb: no row can be drawn again */
	bool utf8;  /* braille can be shown: the environment's locale is UTF-8, and it is not the console of Linux */
} terminal;

/* Call first: the widths of characters are the C library's, which needs a locale for them. */
void terminal_begin(void);
terminal terminal_of(FILE *file);

/* Append text with everything that could steer a terminal or reorder the line as visible escapes:
 * C0 and C1 controls, DEL, bidirectional overrides, broken UTF-8. lines: \n and \t are let through, else \n becomes ⏎.
 */
bool terminal_escape(text *out, const char *bytes, size_t n, bool lines);
/* Columns that valid UTF-8 text takes: one per character, none for combining marks, two for wide ones. */
int terminal_columns(const char *string, size_t n);
/* Append as much of valid UTF-8 text as `columns` hold; what is cut ends with an ellipsis. */
void terminal_cut(text *out, const char *string, size_t n, int columns);

#endif
