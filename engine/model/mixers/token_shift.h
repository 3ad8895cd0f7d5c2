/* token_shift.h - mixtures of each row with the row before it (Peng et al. 2023, RWKV), shared by mixers:
 *   y_t = n_t + μ ⊙ (n_{t-1} - n_t),  n_{-1} = 0
 * μ is a row of the parameter PREFIX.mu [mixtures, D]. The state is the last row that was read. */
#ifndef ENGINE_MODEL_MIXERS_TOKEN_SHIFT_H
#define ENGINE_MODEL_MIXERS_TOKEN_SHIFT_H

#include "engine/model/builder.h"

void token_shift_parameters(parameter_list *list, int64_t mixtures, int64_t d, const char *prefix);
void token_shift_states(state_list *list, int layer, int64_t d);
/* Append the mixtures of n [B, N, D] with the rows before; out [mixtures]. */
void token_shift(builder *b, int layer, const char *prefix, value n, int mixtures, value *out);

#endif
