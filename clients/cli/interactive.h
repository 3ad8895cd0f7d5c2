/* interactive.h - `generate` at a terminal without a PROMPT: one text, written in turns by the user and the model.
 *
 * The models are base models: they continue a text. So what is typed continues it too, on a new line after the first
 * time, and the model goes on from there. The text so far is a session of the service. An empty line lets the model
 * go on. Ctrl-C stops an answer, which stays as far as it has come; Ctrl-D leaves. */
#ifndef CLI_INTERACTIVE_H
#define CLI_INTERACTIVE_H

#include "clients/cli/cli.h"

/* session: the one to continue, or NULL: of --model, opened with the first text; it is deleted in the end unless
 * --new-session is given. Returns the exit status. */
int interactive_run(cli *c, const char *session);

#endif
