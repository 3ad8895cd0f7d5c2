/* evaluation_unit.h - the windows of a text between two borders. Their places follow from the settings and the text
 * alone, wherever a run was stopped before. Any thread, one at a time. */
#ifndef ENGINE_DAEMON_EVALUATIONS_EVALUATION_UNIT_H
#define ENGINE_DAEMON_EVALUATIONS_EVALUATION_UNIT_H

#include "engine/daemon/evaluations/evaluation_settings.h"
#include "engine/text/token_cache.h"

/* Place of the next window: its sequence begins at token `start` of the text, and tokens before `done` are settled. */
typedef struct evaluation_cursor {
	int64_t start, done;
} evaluation_cursor;

/* Tokens begin … end - 1 of the text; those from `done` on are new. */
typedef struct evaluation_window {
	int64_t start, begin, done, end;
	int64_t at;    /* index of its first token in the unit's arrays */
	bool finishes; /* it is the last of its sequence */
} evaluation_window;

typedef struct evaluation_unit {
	int64_t n_windows, n_sequences, room; /* room: tokens of the arrays */
	evaluation_window *windows;
	score_sequence *sequences; /* for the windows that score a token */
	int32_t *ids, *next;
	unsigned char *flags;
	token_logprob *scores, *best;
} evaluation_unit;

/* Allocate the units of an evaluation. Call evaluation_unit_fini also after an error. STATUS_NOMEM. */
status evaluation_unit_init(evaluation_unit *u, const evaluation_settings *s);
void evaluation_unit_fini(evaluation_unit *u);
/* Lay out the windows after the cursor and move it past them; none at the end of the text. state: for carried windows.
 * STATUS_STORAGE. */
status evaluation_unit_plan(evaluation_unit *u, const evaluation_settings *s, const token_cache *text,
                            evaluation_cursor *at, void *state, error *err);

#endif
