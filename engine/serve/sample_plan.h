/* sample_plan.h - the op `sample` on logits where they lie.
 *
 * One call serves a whole batch. The rows that adjust logits are as many as the sequences have said, so there is a plan
 * for each power of two of them, made when it is first needed and kept; addresses never change, so each can be
 * recorded. The one for none is special: it may follow another plan, whose logits it reads, with settings that came
 * with that plan's inputs. Executor thread only. */
#ifndef ENGINE_SERVE_SAMPLE_PLAN_H
#define ENGINE_SERVE_SAMPLE_PLAN_H

#include "engine/serve/sampler.h"
#include "engine/tensor/plan.h"

typedef struct sample_plan sample_plan;

/* One batch row's sampling request. */
typedef struct sample_row {
	const sampling *settings; /* NULL: inactive */
	const tally *tally;
	uint64_t position; /* of the token to come */
} sample_row;

/* Device addresses, which outlive the plan. */
typedef struct sample_place {
	float *logits;   /* [rows, vocab] */
	float *maxima;   /* of them, as linear gives them; NULL: there are none */
	void *settings;  /* [rows] of those without adjusting rows */
	int32_t *tokens; /* [rows] */
} sample_place;

/* b is borrowed. */
status sample_plan_new(sample_plan **out, backend *b, int64_t rows, int64_t vocab, const sample_place *place,
                       error *err);
void sample_plan_free(sample_plan *p);

/* Make the plan for so many rows of adjust in all, unless it is there. STATUS_NOMEM. */
status sample_plan_prepare(sample_plan *p, int64_t adjusts, error *err);
/* Have the plan that follows another one sample from the first n rows only. STATUS_UNSUPPORTED as plan_reshape. */
status sample_plan_fit(sample_plan *p, int64_t n);
/* Fill `settings` [rows], on the host, for the plan that follows another one. False: some of the rows adjust logits;
 * that plan then samples no row, and sample_plan_run has to. */
bool sample_plan_settings(const sample_plan *p, const sample_row *rows, int n, sample_setting *settings);
/* The plan that reads those settings at their place. */
plan *sample_plan_follower(const sample_plan *p);

/* tokens[i] for each of the first n rows, on the device; -1 where none is wanted or no logit is finite. What the rows
 * adjust has been prepared for. STATUS_DEVICE. */
status sample_plan_run(sample_plan *p, const sample_row *rows, int n);

#endif
