/* generate.h - a continuation on its way to stdout. */
#ifndef CLI_GENERATE_H
#define CLI_GENERATE_H

#include "clients/cli/cli.h"

/* The text to be continued or answered. */
typedef struct generate_what {
	const char *session; /* NULL: of the model, without one */
	const char *model;   /* NULL: the session's */
	const char *text;    /* the prompt, or in a chat the user's message; NULL: none */
	bool chat;
	const char *system; /* system message of a chat; NULL: none */
} generate_what;

/* A fresh session of a model; its id, malloc'ed, or NULL after a complaint. */
char *generate_open_session(cli *c, const char *model);
/* Print what the model writes, as the options say. ends_line: does the text that came end with a newline (when none
 * came: it stays)? How it ended; nothing is said of a failure yet. */
http_end generate_stream(cli *c, const generate_what *what, bool *ends_line);

#endif
