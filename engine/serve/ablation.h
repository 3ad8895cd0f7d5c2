/* ablation.h - the target's score when sets of tokens are removed from a sequence, as a chain of steps of passes
 * (read_pass.h).
 *
 * In sets and in results the tokens of a source come before those of the sequence.
 *
 * The whole sequence is read first; it determines the target. A causal model then keeps, in one slot, the state before
 * the first token that a set removes, and reads the rest in another slot. Sets are processed in the order of their
 * first tokens, so the first slot only moves forward. Any other model reads the whole sequence for each set. Equal sets
 * are read once. Where the backend has threads, each of them reads one set: loops over all threads would meet at a
 * barrier many times in a short pass.
 *
 * Executor thread only. */
#ifndef ENGINE_SERVE_ABLATION_H
#define ENGINE_SERVE_ABLATION_H

#include "engine/serve/read_pass.h"

typedef struct ablation ablation;

/* Start. The sequence, its parts, r and `slot` are borrowed; the state in `slot` is overwritten. Call
 * ablation_free(*out) also after an error. STATUS_BUSY: no second slot. STATUS_NOMEM. */
status ablation_new(ablation **out, served_model *m, explain_removals *r, const score_sequence *q, int32_t slot,
                    error *err);
/* Run the next step, or about slice_ns of steps for each set being read. *done: the results are complete. STATUS_NOMEM,
 * STATUS_DEVICE. */
status ablation_step(ablation *x, uint64_t slice_ns, bool *done, error *err);
void ablation_free(ablation *x); /* NULL is legal */

#endif
