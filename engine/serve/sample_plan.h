/* sample_plan.h - the op `sample` applied to logits in place.
 *
 * One call samples for a whole batch. The number of rows that adjust logits grows with the tokens of the sequences.
 * There is one plan for each power of two of them, compiled on first use and kept; its addresses are constant, so it
 * can be recorded. The plan without adjustments may follow another plan: it then reads that plan's logits, and settings
 * uploaded with that plan's inputs. Executor thread only. */
#ifndef ENGINE_SERVE_SAMPLE_PLAN_H
#define ENGINE_SERVE_SAMPLE_PLAN_H

#include "engine/serve/sampler.h"
#include "engine/tensor/plan.h"

typedef struct sample_plan sample_plan;

/* One batch row's sampling request. */
typedef struct sample_row {
	const sampling *settings; /* NULL: inactive */
	const tally *tally;
	uint64_t position;       /* position of the token to sample */
	const uint32_t *allowed; /* [⌈vocab / 32⌉] bits of the allowed tokens; NULL: all */
} sample_row;

/* Device addresses; they outlive the plan. */
typedef struct sample_place {
	float *logits;   /* [rows, vocab] */
	float *maxima;   /* maxima of the logits, as the op `linear` writes them; NULL: none */
	void *settings;  /* [rows] for the plan without adjusting rows */
	int32_t *tokens; /* [rows] */
} sample_place;

/* Return the number of `adjust` rows for a batch row whose tally has `count` rows. */
static inline int64_t sample_row_adjusts(int64_t count, bool masked, int64_t vocab)
{
	return count + (masked ? sample_mask_rows(vocab) : 0);
}

/* Create plans that sample up to `rows` rows. b is borrowed. */
status sample_plan_new(sample_plan **out, backend *b, int64_t rows, int64_t vocab, const sample_place *place,
                       error *err);
void sample_plan_free(sample_plan *p);

/* Compile the plan for `adjusts` adjustments in total, unless it exists. STATUS_NOMEM. */
status sample_plan_prepare(sample_plan *p, int64_t adjusts, error *err);
/* Limit the plan of sample_plan_follower to the first n rows. STATUS_UNSUPPORTED as in plan_reshape. */
status sample_plan_fit(sample_plan *p, int64_t n);
/* Fill the host's `settings` [rows] for the plan of sample_plan_follower. False: a row has adjustments; that plan then
 * samples no row, and the caller runs sample_plan_run. */
bool sample_plan_settings(const sample_plan *p, const sample_row *rows, int n, sample_setting *settings);
/* Return the plan without adjustments, which reads its settings from sample_place.settings. Borrowed. */
plan *sample_plan_follower(const sample_plan *p);

/* Sample tokens[i] for each of the first n rows, on the device; -1 if the row is inactive or no logit is finite.
 * sample_plan_prepare must have been called for their adjustments. STATUS_DEVICE. */
status sample_plan_run(sample_plan *p, const sample_row *rows, int n);

#endif
