/* sample_plan.h - the op `sample` on logits where they lie.
 *
 * One call serves a whole batch. The rows that adjust logits are as many as the sequences have said, so there is a plan
 * for each power of two of them, made when it is first needed and kept; addresses never change, so each can be
 * recorded. Executor thread only. */
#ifndef ENGINE_SERVE_SAMPLE_PLAN_H
#define ENGINE_SERVE_SAMPLE_PLAN_H

#include "engine/serve/sampler.h"
#include "engine/tensor/plan.h"

typedef struct sample_plan sample_plan;

/* Whose turn it is to be drawn for. */
typedef struct sample_row {
	const sampling *how; /* NULL: no token is wanted */
	const tally *tally;
	uint64_t position; /* of the token to come */
} sample_row;

/* For [rows, vocab] logits at a device address, which outlive this; b is borrowed. */
status sample_plan_new(sample_plan **out, backend *b, int64_t rows, int64_t vocab, float *logits, error *err);
void sample_plan_free(sample_plan *p);

/* Make the plan for so many rows of adjust in all, unless it is there. STATUS_NOMEM. */
status sample_plan_prepare(sample_plan *p, int64_t adjusts, error *err);
/* token[i] for each of the first n rows; -1 where none is wanted or no logit is finite. What the rows adjust
 * has been prepared for. STATUS_DEVICE. */
status sample_plan_run(sample_plan *p, const sample_row *rows, int n, int32_t *token);

#endif
