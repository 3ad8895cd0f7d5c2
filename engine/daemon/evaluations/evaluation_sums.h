/* evaluation_sums.h - the sums over the scores of an evaluation, and its report. Tokens are added in the order of the
 * text, and sums are doubles that JSON holds exactly, so no number depends on where a run was stopped. Any thread, one
 * at a time. */
#ifndef ENGINE_DAEMON_EVALUATIONS_EVALUATION_SUMS_H
#define ENGINE_DAEMON_EVALUATIONS_EVALUATION_SUMS_H

#include "engine/daemon/evaluations/evaluation_unit.h"

enum { EVALUATION_RANGES = 32, EVALUATION_SHOWN = 32 /* tokens shown before a row's */ };

typedef struct evaluation_sum {
	int64_t tokens, right; /* scored tokens; those that were the most likely */
	double nats;
} evaluation_sum;

/* One of the tokens with the highest losses. */
typedef struct evaluation_row {
	int64_t index, offset, position; /* index in the text; bytes before it; tokens before it in its context */
	double nats;
	int32_t best; /* the most likely token there */
} evaluation_row;

typedef struct evaluation_sums {
	evaluation_sum ranges[EVALUATION_RANGES]; /* [r]: positions 2^r … 2^(r + 1) - 1 */
	int64_t bytes, offset;                    /* bytes of scored tokens; of all tokens so far */
	int64_t n_rows;
	evaluation_row rows[EVALUATION_TOP_MAX]; /* the highest losses, in falling order; ties by index */
} evaluation_sums;

/* Add the scores of a unit that has been read. STATUS_INVALID "model": a score is not finite. */
status evaluation_sums_add(evaluation_sums *x, const evaluation_settings *s, const evaluation_unit *u,
                           const tokenizer *t, error *err);
/* Convert to JSON and back. New reference; NULL: out of memory. Reading: STATUS_CORRUPT. */
json_t *evaluation_sums_write(const evaluation_sums *x);
status evaluation_sums_read(evaluation_sums *out, const json_t *written, error *err);
/* Return the mean loss so far; NaN before the first token. */
double evaluation_sums_nats(const evaluation_sums *x);
/* Return the EvaluationReport. New reference. NULL with err: STATUS_STORAGE; NULL without: out of memory. */
json_t *evaluation_sums_report(const evaluation_sums *x, const tokenizer *t, const token_cache *text, error *err);

#endif
