/* outputs.h - from the outputs of a plan to a log.
 *
 * A plan made with forward_spec.explain leaves, per layer and part (model/explainer.h), a tensor [B, N, W], or [B N, ·, ·, ·] whose
 * W numbers of a token have more dimensions. A log wants
 * them by token. */
#ifndef ENGINE_EXPLAIN_OUTPUTS_H
#define ENGINE_EXPLAIN_OUTPUTS_H

#include "engine/model/model.h"

typedef struct outputs outputs;

/* Find the outputs of p, a plan of m (both borrowed) with spec.explain. At most `length` tokens are read at a time.
 * STATUS_NOMEM. */
status outputs_new(outputs **out, const model *m, const plan *p, int64_t length);
void outputs_free(outputs *o);

/* `count` tokens of the plan from token `first` on into log[count][explain_token_floats]. */
status outputs_read(outputs *o, int64_t first, int64_t count, float *log);

#endif
