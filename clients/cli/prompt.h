/* prompt.h - lines from a terminal, with editing and a history (libedit).
 *
 * A line that ends with a backslash continues on the next one; Text between lines of three quotation marks is taken
 * unchanged. Ctrl-C discards the typed text, Ctrl-D on an empty line is the end. The history is kept in
 * $XDG_STATE_HOME/additive/history (~/.local/state), or in the file that ADDITIVE_HISTORY names; "" disables it. */
#ifndef CLI_PROMPT_H
#define CLI_PROMPT_H

#include "clients/cli/text.h"

typedef struct prompt prompt;

typedef enum prompt_end {
	PROMPT_TEXT, /* quoted or not, as it was typed, without the last newline */
	PROMPT_LINE, /* one plain line: it may be a command */
	PROMPT_GIVEN_UP /* Ctrl-C */,
	PROMPT_END
} prompt_end;

/* stdin and stdout are a terminal. NULL after a complaint. */
prompt *prompt_new(void);
/* Saves the history and gives the terminal back. NULL is legal. */
void prompt_free(prompt *p);
/* From here until prompt_read has returned, Ctrl-C is a key and not a signal. */
void prompt_ready(prompt *p);
/* Read the next text into *out, which is emptied first. */
prompt_end prompt_read(prompt *p, text *out);

#endif
