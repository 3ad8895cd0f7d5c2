/* outputs.h - from the outputs of a plan to a log.
 *
 * A plan made with forward_spec.explain leaves, per layer and part (model/explainer.h), a tensor [B, N, W], or [B N, ·,
 * ·, ·] whose W numbers of a token have more dimensions, or a matrix [1, heads, ·, ·]. A log wants them by token. */
#ifndef ENGINE_EXPLAIN_OUTPUTS_H
#define ENGINE_EXPLAIN_OUTPUTS_H

#include "engine/model/model.h"

typedef struct outputs outputs;

/* Find the outputs of p, a plan of m (both borrowed) with spec.explain, for the log of a place; keys: for that of the
 * tokens of a source there. At most `length` tokens are read at a time. STATUS_NOMEM. */
status outputs_new(outputs **out, const model *m, const plan *p, attention_place place, bool keys, int64_t length);
void outputs_free(outputs *o);
/* Of a token in the log. */
int64_t outputs_floats(const outputs *o);

/* `count` tokens of the plan from token `first` on into log[count][floats of a token]. */
status outputs_read(outputs *o, int64_t first, int64_t count, float *log);

#endif
