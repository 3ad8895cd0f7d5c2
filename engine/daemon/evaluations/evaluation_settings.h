/* evaluation_settings.h - the settings of an evaluation of a model (EvaluationRequest) and the windows that follow from
 * them.
 *
 * Every kind of context is windows over a sequence, which is the whole text or one of its documents. A window reads its
 * tokens except the last. It scores tokens from its second on that the previous window has not scored.
 *
 *   blocks    adjacent windows of `length` tokens: overlap 0
 *   sliding   each starts `stride` tokens after the one before: overlap length - stride
 *   carried   each continues from the state after the one before, with its last token: overlap 1 */
#ifndef ENGINE_DAEMON_EVALUATIONS_EVALUATION_SETTINGS_H
#define ENGINE_DAEMON_EVALUATIONS_EVALUATION_SETTINGS_H

#include "engine/daemon/catalog/catalog.h"
#include "gen/limits.h"

/* Approximate tokens between two borders at which a run can resume. */
enum { EVALUATION_UNIT = 4096 };

typedef enum evaluation_context { EVALUATION_CARRIED, EVALUATION_SLIDING, EVALUATION_BLOCKS } evaluation_context;

typedef struct evaluation_settings {
	evaluation_context context;
	int64_t length, stride; /* requested or default; 0 if the context has none */
	int64_t window, overlap;
	bool reset_at_document;
	int64_t top; /* number of rows kept */
	dtype weights;
} evaluation_settings;

/* Read checked params, for a model that generates. STATUS_INVALID names the field. */
status evaluation_settings_read(evaluation_settings *out, const json_t *params, const model_entry *m, error *err);
/* Return the settings with every default. New reference; NULL: out of memory. */
json_t *evaluation_settings_write(const evaluation_settings *s);
/* Read what evaluation_settings_write has written. STATUS_CORRUPT. */
status evaluation_settings_restore(evaluation_settings *out, const json_t *written, error *err);

#endif
