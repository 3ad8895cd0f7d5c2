/* attributing.h - the parts of a score of one sequence, by any method (explain/attribution.h), as a chain of steps of
 * passes (pass.h).
 *
 *   contributions, gradients   one pass of the whole sequence
 *   integrated gradients       one for each step of the path, and a forward pass at both ends
 *   weights                    one, which gives the log
 *   leave one out, removals    the whole sequence, then again without each token or set of tokens (ablation.h)
 *
 * Executor thread only. */
#ifndef ENGINE_SERVE_ATTRIBUTING_H
#define ENGINE_SERVE_ATTRIBUTING_H

#include "engine/serve/pass.h"

typedef struct attributing attributing;

/* Start. The sequence and its parts are borrowed, and so is `slot`, whose state is overwritten. Call
 * attributing_free(*out) also after an error. STATUS_BUSY: no second slot. STATUS_NOMEM. */
status attributing_new(attributing **out, served_model *m, const explain_options *o, const scoring_sequence *q,
                       int32_t slot, error *err);
/* Run the next step, or about slice_ns of steps for each of several passes. *done: the parts are complete.
 * STATUS_NOMEM, STATUS_DEVICE. */
status attributing_step(attributing *a, uint64_t slice_ns, bool *done, error *err);
void attributing_free(attributing *a); /* NULL is legal */

#endif
