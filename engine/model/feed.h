/* feed.h - writes the inputs of a forward; the only code that depends on the contents of ports.
 *
 * Ports that a forward lacks are skipped, so callers need not know which exist. */
#ifndef ENGINE_MODEL_FEED_H
#define ENGINE_MODEL_FEED_H

#include "engine/model/model.h"

/* Row of the position table for tokens past its end. */
typedef enum position_policy {
	POSITION_ERROR, /* none: callers refuse such a sequence */
	POSITION_CLAMP, /* the last row */
	POSITION_WRAP   /* start again at the first row */
} position_policy;

static inline int32_t position_row(const model_dims *d, position_policy policy, int64_t position)
{
	if (d->period)
		position %= d->period;
	if (position >= d->positions)
		position = policy == POSITION_WRAP ? position % d->positions : d->positions - 1;
	return (int32_t)(d->first_row + position);
}

/* Write a port; data has the port's type and shape. */
status feed_write(plan *p, port_role role, const void *data);
/* Write the positions first, first + 1, … of B sequences without padding, and those of their sources, which begin at 0.
 * STATUS_NOMEM. */
status feed_positions(plan *p, const model_dims *d, position_policy policy, int64_t first);
/* Write `rows`, or the last row of each sequence, which ends with its last unmasked token; ids and mask [B, N]; mask
 * NULL: none is masked. STATUS_NOMEM. */
status feed_last(plan *p, const model_dims *d, const int32_t *ids, const int32_t *mask);
/* Write PORT_BASELINE; NULL: zeros. No effect without such a port. STATUS_NOMEM. */
status feed_baseline(plan *p, const float *baseline);
/* With spec.train.carried: row b has read position[b] tokens before; if rows have slots, row b has slot b. No effect
 * without such ports. STATUS_NOMEM. */
status feed_carried(plan *p, const int32_t *position);
/* PHASE_STEP: sequence b, which has read `first` tokens, reads `count` more into slot b; LOGITS_LAST refers to the
 * last of them. With spec.initial_states the slot holds a state before the first token, too. STATUS_NOMEM. */
status feed_step(plan *p, int64_t first, int64_t count);

#endif
