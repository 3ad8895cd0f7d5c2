/* interactive.h - `generate` and `chat` at a terminal without a text.
 *
 * A chat is a conversation: what is typed is the user's message, and the model answers as its chat template has it.
 *
 * `generate` is one text, written in turns by the user and the model.
 * The models are base models: they continue a text. So what is typed continues it too, on a new line after the first
 * time, and the model goes on from there. The text so far is a session of the service. An empty line lets the model
 * go on. Ctrl-C stops an answer, which stays as far as it has come; Ctrl-D leaves. */
#ifndef CLI_INTERACTIVE_H
#define CLI_INTERACTIVE_H

#include "clients/cli/generate.h"

/* what: a session to continue, or else a model, of which one is opened with the first text; it is deleted in the end
 * unless --new-session is given. what->text is ignored. Returns the exit status. */
int interactive_run(cli *c, const generate_what *what);

#endif
