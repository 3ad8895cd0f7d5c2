/* outputs.h - from the score outputs of a plan to the layout of explain_scores.
 *
 * A plan made with forward_spec.explain leaves, per layer and round, a [B, N, H] tensor of scores
 * and one of log-normalisers. The explanation wants them by token:
 * float[tokens][layers][rounds][2][heads]. */
#ifndef ENGINE_EXPLAIN_OUTPUTS_H
#define ENGINE_EXPLAIN_OUTPUTS_H

#include "engine/model/model.h"

typedef struct outputs outputs;

/* Find the outputs of p, a plan of m (both borrowed) with spec.explain. At most `length` tokens are read at a time.
 * STATUS_NOMEM. */
status outputs_new(outputs **out, const model *m, const plan *p, int64_t length);
void outputs_free(outputs *o);

/* Floats per token: layers × rounds × 2 × heads. */
int64_t outputs_token_floats(const model *m);
/* `count` tokens of the plan from token `first` on into scores[count][token_floats]. */
status outputs_read(outputs *o, int64_t first, int64_t count, float *scores);

#endif
