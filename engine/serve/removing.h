/* removing.h - what a model says of its target when sets of tokens are removed from a sequence, as a chain of steps of
 * readings (reading.h).
 *
 * The tokens of a source stand before those of the sequence, in sets as in what comes out.
 *
 * The sequence is read whole first; the target is chosen there. A causal model then keeps the state of the tokens
 * before the first that a set removes in one slot, and reads what comes from there on in another; the sets are read in
 * the order of their first tokens, so the first slot only moves on. Any other model reads all of the sequence for each
 * set. Sets that are equal are read once. Where the backend has threads for it, each of them reads a set: loops over
 * all threads would meet at a barrier many times in a short reading.
 *
 * Executor thread only. */
#ifndef ENGINE_SERVE_REMOVING_H
#define ENGINE_SERVE_REMOVING_H

#include "engine/serve/reading.h"

typedef struct removing removing;

/* The sequence, its parts, r and `slot`, whose state is overwritten, stay with the caller. removing_free(*out) is due
 * also after an error. STATUS_BUSY: no second slot; STATUS_NOMEM. */
status removing_new(removing **out, served_model *m, explain_removals *r, const scoring_sequence *q, int32_t slot,
                    error *err);
/* The next step, or for each set that is being read those of about slice_ns. *done: the numbers are there.
 * STATUS_NOMEM, STATUS_DEVICE. */
status removing_step(removing *x, uint64_t slice_ns, bool *done, error *err);
void removing_free(removing *x); /* NULL is legal */

#endif
