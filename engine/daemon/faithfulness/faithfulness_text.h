/* faithfulness_text.h - the evaluation of one text: readings on the executor, computations on the pool.
 *
 *   executor: the text without each single token, which determines the targets     (serve/ablation.h)
 *   executor: the log of the importance weights; contributions, gradients, integrated gradients
 *   pool:     orders of the tokens, and the sets to remove                         (explain/faithfulness.h)
 *   executor: the text without these sets
 *   pool:     the metrics
 *
 * Each reading is a score task and runs in slices between the steps of generations. Loop thread, except where stated.
 */
#ifndef ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_TEXT_H
#define ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_TEXT_H

#include "engine/daemon/faithfulness/faithfulness_settings.h"
#include "engine/daemon/queue/job_queue.h"

/* The numbers of one position. They are floats, so JSON holds them exactly. */
typedef struct faithfulness_row {
	int64_t text, position;
	int32_t token;
	double log_probability;
	faithfulness_values values; /* arrays in `memory` */
	double *memory;
} faithfulness_row;

/* Allocate the numbers of a row. STATUS_NOMEM. Any thread. */
status faithfulness_row_init(faithfulness_row *r, const faithfulness_settings *s);
void faithfulness_row_fini(faithfulness_row *r);
/* Return the count of numbers in `memory`. */
int64_t faithfulness_row_numbers(const faithfulness_settings *s);

typedef struct faithfulness_cost {
	double seconds;
	int64_t readings, tokens;
} faithfulness_cost;

typedef struct faithfulness_text faithfulness_text;

/* Result of an evaluation. The receiver may take `rows` over by setting *n to 0; the rest is freed after the
 * callback. */
typedef struct faithfulness_outcome {
	status result;
	error error;
	faithfulness_row *rows;
	int64_t n;
	faithfulness_cost cost;
} faithfulness_outcome;

/* Evaluate a text. The model and the settings are borrowed until `finished`, which is called exactly once, possibly
 * before this function returns; the text is then freed. `tokens` is copied. Cancelling stream s ends the evaluation; s
 * may be NULL. STATUS_NOMEM: `finished` is not called. */
status faithfulness_text_begin(faithfulness_text **out, const job_parts *parts, stream *s, model_entry *m,
                               const faithfulness_settings *settings, const faithfulness_tokens *tokens, int64_t number,
                               void (*finished)(void *context, faithfulness_outcome *x), void *context);
/* Cancel; `finished` is called soon with STATUS_CANCELLED. */
void faithfulness_text_cancel(faithfulness_text *t);

#endif
