/* attribution_run.h - the parts of a score of one sequence, by any method (explain/attribution.h), as a chain of passes
 * (read_pass.h).
 *
 *   contributions, gradients   one pass of the whole sequence
 *   integrated gradients       one for each step of the path, and a forward pass at both ends
 *   weights                    one, which gives the log
 *   leave one out, removals    the whole sequence, then again without each token or set of tokens (ablation.h)
 *
 * Executor thread only. */
#ifndef ENGINE_SERVE_ATTRIBUTION_RUN_H
#define ENGINE_SERVE_ATTRIBUTION_RUN_H

#include "engine/serve/read_pass.h"

typedef struct attribution_run attribution_run;

/* Start. The sequence and its parts are borrowed, and so is `slot`, whose state is overwritten. Call
 * attribution_run_free(*out) also after an error. STATUS_BUSY: no second slot. STATUS_NOMEM. */
status attribution_run_new(attribution_run **out, served_model *m, const explain_options *o, const score_sequence *q,
                           int32_t slot, error *err);
/* Run the next step, or about slice_ns of steps for each of several passes. *done: the parts are complete.
 * STATUS_NOMEM, STATUS_DEVICE. */
status attribution_run_step(attribution_run *a, uint64_t slice_ns, bool *done, error *err);
void attribution_run_free(attribution_run *a); /* NULL is legal */

#endif
