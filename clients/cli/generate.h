/* generate.h - a continuation on its way to stdout. */
#ifndef CLI_GENERATE_H
#define CLI_GENERATE_H

#include "clients/cli/cli.h"

/* A fresh session of --model; its id, malloc'ed, or NULL after a complaint. */
char *generate_open_session(cli *c);
/* Continue a session (NULL: --model without one) with the prompt (NULL: none), as the options say. ends_line: does the
 * text that came end with a newline (when none came: it stays)? How it ended; nothing is said of a failure yet. */
http_end generate_stream(cli *c, const char *session, const char *prompt, bool *ends_line);

#endif
