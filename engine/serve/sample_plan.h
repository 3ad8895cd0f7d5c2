/* sample_plan.h - the op `sample` on logits where they lie.
 *
 * One call samples for a whole batch. The number of rows that adjust logits grows with the tokens of the sequences, so
 * there is a plan for each power of two of them, made on first use and kept; its addresses never change, so it can be
 * recorded. The plan without adjusting rows may follow another plan: it then reads that plan's logits, and settings
 * that are uploaded with that plan's inputs. Executor thread only. */
#ifndef ENGINE_SERVE_SAMPLE_PLAN_H
#define ENGINE_SERVE_SAMPLE_PLAN_H

#include "engine/serve/sampler.h"
#include "engine/tensor/plan.h"

typedef struct sample_plan sample_plan;

/* One batch row's sampling request. */
typedef struct sample_row {
	const sampling *settings; /* NULL: inactive */
	const tally *tally;
	uint64_t position;       /* of the token to sample */
	const uint32_t *allowed; /* [⌈vocab / 32⌉] bits of the tokens that may be drawn; NULL: all */
} sample_row;

/* Device addresses, which outlive the plan. */
typedef struct sample_place {
	float *logits;   /* [rows, vocab] */
	float *maxima;   /* of the logits, as the op `linear` writes them; NULL: there are none */
	void *settings;  /* [rows] for the plan without adjusting rows */
	int32_t *tokens; /* [rows] */
} sample_place;

/* Rows of `adjust` that a row has with a tally of `count` rows. */
static inline int64_t sample_row_adjusts(int64_t count, bool masked, int64_t vocab)
{
	return count + (masked ? sample_mask_rows(vocab) : 0);
}

/* b is borrowed. */
status sample_plan_new(sample_plan **out, backend *b, int64_t rows, int64_t vocab, const sample_place *place,
                       error *err);
void sample_plan_free(sample_plan *p);

/* Make the plan for `adjusts` adjusting rows in all, unless it exists. STATUS_NOMEM. */
status sample_plan_prepare(sample_plan *p, int64_t adjusts, error *err);
/* Limit the plan that follows another one to the first n rows. STATUS_UNSUPPORTED as plan_reshape. */
status sample_plan_fit(sample_plan *p, int64_t n);
/* Fill `settings` [rows], on the host, for the plan that follows another one. False: a row adjusts logits; that plan
 * then samples no row, and the caller runs sample_plan_run. */
bool sample_plan_settings(const sample_plan *p, const sample_row *rows, int n, sample_setting *settings);
/* The plan that reads those settings from sample_place.settings. */
plan *sample_plan_follower(const sample_plan *p);

/* Sample tokens[i] for each of the first n rows, on the device; -1 where the row is inactive or no logit is finite.
 * sample_plan_prepare has been called for their adjusting rows. STATUS_DEVICE. */
status sample_plan_run(sample_plan *p, const sample_row *rows, int n);

#endif
