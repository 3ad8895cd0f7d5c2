/* faithfulness_text.h - the evaluation of one text: readings on the executor, and what is made of them on the pool.
 *
 *   executor: the text without each token alone, with which the targets are chosen   (serve/removing.h)
 *   executor: the log of the importance weights; contributions, gradients, integrated gradients
 *   pool:     orders of the tokens, and the sets that are removed                     (explain/faithfulness.h)
 *   executor: the text without these sets
 *   pool:     the metrics
 *
 * Each reading is a scoring: it runs in slices behind the steps of generations. Loop thread, except where said. */
#ifndef ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_TEXT_H
#define ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_TEXT_H

#include "engine/daemon/faithfulness/faithfulness_settings.h"
#include "engine/daemon/net/stream.h"
#include "engine/daemon/requests/engine.h"

/* Of a position. The numbers are floats, so that JSON holds them exactly. */
typedef struct faithfulness_row {
	int64_t text, position;
	int32_t token;
	double log_probability;
	faithfulness_values values; /* in `memory` */
	double *memory;
} faithfulness_row;

/* Memory for the numbers of a row. STATUS_NOMEM. Any thread. */
status faithfulness_row_init(faithfulness_row *r, const faithfulness_settings *s);
void faithfulness_row_fini(faithfulness_row *r);
/* How many numbers `memory` has. */
int64_t faithfulness_row_numbers(const faithfulness_settings *s);

typedef struct faithfulness_cost {
	double seconds;
	int64_t readings, tokens;
} faithfulness_cost;

typedef struct faithfulness_text faithfulness_text;

/* What comes out; faithfulness_text_free ends its life. rows are the receiver's when it sets *n to 0. */
typedef struct faithfulness_outcome {
	status result;
	error error;
	faithfulness_row *rows;
	int64_t n;
	faithfulness_cost cost;
} faithfulness_outcome;

/* Evaluate the text. The model and the settings stay with the caller until `finished`, which is called exactly once,
 * later or at once; then the text is freed. `tokens` is copied. s: its cancellation ends the evaluation; NULL: there
 * is none. STATUS_NOMEM: `finished` is not called. */
status faithfulness_text_begin(faithfulness_text **out, engine *e, stream *s, model_entry *m,
                               const faithfulness_settings *settings, const faithfulness_tokens *tokens, int64_t number,
                               void (*finished)(void *context, faithfulness_outcome *x), void *context);
/* End it soon, with STATUS_CANCELLED. */
void faithfulness_text_cancel(faithfulness_text *t);

#endif
