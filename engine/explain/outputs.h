/* outputs.h - copies the outputs of a plan to a log.
 *
 * A plan with forward_spec.explain.log has one output per layer and part (model/explainer.h). It is a tensor [B, N, W],
 * a tensor [B N, ·, ·, ·] with the W numbers of a token in several dimensions, or a matrix [1, heads, ·, ·]. A log is
 * ordered by token. */
#ifndef ENGINE_EXPLAIN_OUTPUTS_H
#define ENGINE_EXPLAIN_OUTPUTS_H

#include "engine/model/model.h"

typedef struct outputs outputs;

/* Find the outputs of p, a plan of m (both borrowed) with spec.explain.log, for the log of a place. keys: the log
 * that the source's tokens have there. At most `length` tokens are read at once. STATUS_NOMEM. */
status outputs_new(outputs **out, const model *m, const plan *p, attention_place place, bool keys, int64_t length);
void outputs_free(outputs *o);
/* Floats that the log keeps for each token. */
int64_t outputs_floats(const outputs *o);

/* Copy `count` tokens of the plan from token `first` on to log[count][floats per token]. */
status outputs_read(outputs *o, int64_t first, int64_t count, float *log);

#endif
