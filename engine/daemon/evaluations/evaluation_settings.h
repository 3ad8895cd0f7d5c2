/* evaluation_settings.h - what an evaluation of a model is asked for (EvaluationRequest), and the windows that follow.
 *
 * Every kind of context is windows over a sequence, the whole text or a document of it: a window reads its tokens but
 * the last, and scores those that the window before has not, from its second token on.
 *
 *   blocks    windows of `length` tokens, side by side: overlap 0
 *   sliding   each begins `stride` tokens behind the one before: overlap length - stride
 *   carried   each goes on from the state behind the one before, with the last token of that: overlap 1 */
#ifndef ENGINE_DAEMON_EVALUATIONS_EVALUATION_SETTINGS_H
#define ENGINE_DAEMON_EVALUATIONS_EVALUATION_SETTINGS_H

#include "engine/daemon/catalog/catalog.h"
#include "gen/limits.h"

/* Tokens that are read between two borders at which a run can go on, about. */
enum { EVALUATION_UNIT = 4096 };

typedef enum evaluation_context { EVALUATION_CARRIED, EVALUATION_SLIDING, EVALUATION_BLOCKS } evaluation_context;

typedef struct evaluation_settings {
	evaluation_context context;
	int64_t length, stride; /* as asked for, or their defaults; 0 where the context has none */
	int64_t window, overlap;
	bool reset_at_document;
	int64_t top; /* rows kept */
	dtype weights;
} evaluation_settings;

/* Of checked params, for a model that generates. STATUS_INVALID names the field. */
status evaluation_settings_read(evaluation_settings *out, const json_t *params, const model_entry *m, error *err);
/* With every default. New reference; NULL: out of memory. */
json_t *evaluation_settings_write(const evaluation_settings *s);
/* Settings that evaluation_settings_write has written. STATUS_CORRUPT. */
status evaluation_settings_restore(evaluation_settings *out, const json_t *written, error *err);

#endif
