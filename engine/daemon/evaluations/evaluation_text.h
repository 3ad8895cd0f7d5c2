/* evaluation_text.h - the evaluation of one text: readings on the executor, and what is made of them on the pool.
 *
 *   executor: the text without each token alone, with which the targets are chosen   (serve/removing.h)
 *   executor: the log of the importance weights; contributions, gradients, integrated gradients
 *   pool:     orders of the tokens, and the sets that are removed                     (explain/faithfulness.h)
 *   executor: the text without these sets
 *   pool:     the metrics
 *
 * Each reading is a scoring: it runs in slices behind the steps of generations. Loop thread, except where said. */
#ifndef ENGINE_DAEMON_EVALUATIONS_EVALUATION_TEXT_H
#define ENGINE_DAEMON_EVALUATIONS_EVALUATION_TEXT_H

#include "engine/daemon/evaluations/evaluation_settings.h"
#include "engine/daemon/net/stream.h"
#include "engine/daemon/requests/engine.h"

/* Of a position. The numbers are floats, so that JSON holds them exactly. */
typedef struct evaluation_row {
	int64_t text, position;
	int32_t token;
	double log_probability;
	faithfulness_values values; /* in `memory` */
	double *memory;
} evaluation_row;

/* Memory for the numbers of a row. STATUS_NOMEM. Any thread. */
status evaluation_row_init(evaluation_row *r, const evaluation_settings *s);
void evaluation_row_fini(evaluation_row *r);
/* How many numbers `memory` has. */
int64_t evaluation_row_numbers(const evaluation_settings *s);

typedef struct evaluation_cost {
	double seconds;
	int64_t readings, tokens;
} evaluation_cost;

typedef struct evaluation_text evaluation_text;

/* What comes out; evaluation_text_free ends its life. rows are the receiver's when it sets *n to 0. */
typedef struct evaluation_outcome {
	status result;
	error error;
	evaluation_row *rows;
	int64_t n;
	evaluation_cost cost;
} evaluation_outcome;

/* Evaluate the text. The model and the settings stay with the caller until `finished`, which is called exactly once,
 * later or at once; then the text is freed. `tokens` is copied. s: its cancellation ends the evaluation; NULL: there
 * is none. STATUS_NOMEM: `finished` is not called. */
status evaluation_text_begin(evaluation_text **out, engine *e, stream *s, model_entry *m,
                             const evaluation_settings *settings, const evaluation_tokens *tokens, int64_t number,
                             void (*finished)(void *context, evaluation_outcome *x), void *context);
/* End it soon, with STATUS_CANCELLED. */
void evaluation_text_cancel(evaluation_text *t);

#endif
