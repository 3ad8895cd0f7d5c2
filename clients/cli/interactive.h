/* interactive.h - `generate` and `chat` at a terminal without a text.
 *
 * A chat is a conversation: the typed line is the user's message, and the model answers according to its chat template.
 *
 * `generate` is one text, written in turns by the user and the model. Base models continue a text, so a typed line
 * continues it too, on a new line after the first time, and the model continues from there. The text so far is a
 * session of the service. An empty line lets the model continue. Ctrl-C stops an answer and keeps its beginning; Ctrl-D
 * leaves. */
#ifndef CLI_INTERACTIVE_H
#define CLI_INTERACTIVE_H

#include "clients/cli/generate.h"

/* `what` is a session to continue, or else a model, for which a session is opened with the first text; it is deleted at
 * the end unless --new-session is given. what->text is ignored. Returns the exit status. */
int interactive_run(cli *c, const generate_what *what);

#endif
