/* feed.h - writing the inputs of a forward: the only code that depends on the contents of a port.
 *
 * A port that a forward lacks is left out: no caller asks which ports there are. */
#ifndef ENGINE_MODEL_FEED_H
#define ENGINE_MODEL_FEED_H

#include "engine/model/model.h"

/* Which row of the position table a token has that stands beyond the table's end. */
typedef enum position_policy {
	POSITION_ERROR, /* there is none: callers refuse such a sequence */
	POSITION_CLAMP, /* the last row */
	POSITION_WRAP   /* begin again */
} position_policy;

static inline int32_t position_row(const model_dims *d, position_policy policy, int64_t position)
{
	if (d->period)
		position %= d->period;
	if (position >= d->positions)
		position = policy == POSITION_WRAP ? position % d->positions : d->positions - 1;
	return (int32_t)(d->first_row + position);
}

/* data: as the port's type and shape want it. */
status feed_write(plan *p, port_role role, const void *data);
/* The positions of B sequences whose tokens are all first, first + 1, …, and of their sources, which begin at 0.
 * STATUS_NOMEM. */
status feed_positions(plan *p, const model_dims *d, position_policy policy, int64_t first);
/* Where the head of a model reads a sequence of `count` tokens: the last one, or with POOL_END the last that is d->end;
 * -1: there is none. */
int64_t feed_row(const model_dims *d, const int32_t *ids, int64_t count);
/* These rows, or the last, of the sequences, which end with the last token that is not masked; ids and mask [B, N],
 * mask NULL: none is. STATUS_NOMEM. */
status feed_last(plan *p, const model_dims *d, const int32_t *ids, const int32_t *mask);
/* spec.carried: row b has read position[b] tokens before; where rows have slots, row b has slot b. Without a port of
 * them nothing happens. STATUS_NOMEM. */
status feed_carried(plan *p, const int32_t *position);
/* PHASE_STEP: sequence b, which has read `first` tokens, reads `count` more into slot b, and its last one is the last
 * (LOGITS_LAST). STATUS_NOMEM. */
status feed_step(plan *p, int64_t first, int64_t count);

#endif
