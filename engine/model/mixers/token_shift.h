/* token_shift.h - mixtures of each row with the row before it (Peng et al. 2023, RWKV), shared by mixers:
 *   y_t = n_t + μ ⊙ (n_{t-1} - n_t),  n_{-1} = 0
 * μ is a row of the parameter PREFIX.mu [mixtures, D]. The state is the last row that was read. */
#ifndef ENGINE_MODEL_MIXERS_TOKEN_SHIFT_H
#define ENGINE_MODEL_MIXERS_TOKEN_SHIFT_H

#include "engine/model/builder.h"

/* Name of the state of a layer with one shift. */
#define TOKEN_SHIFT_STATE "before"

void token_shift_parameters(parameter_list *list, int64_t mixtures, int64_t d, const char *prefix);
/* Add the state "layers.L.NAME". */
void token_shift_states(state_list *list, int layer, const char *name, int64_t d);
/* Append the row before each row of n [B, N, D]; `name` is that of the state. */
value token_shift_before(builder *b, int layer, const char *name, value n);
/* Add the parameter PREFIX NAME of one mixture as RWKV-4 stores it, [1, 1, D]: its 1 - μ, from a curve. */
void token_shift_curve(parameter_list *list, int64_t d, parameter_curve curve, const char *prefix, const char *name);
/* Append the mixture of x and the rows before with such a parameter. */
value token_shift_towards(const builder *b, value before, value x, const char *prefix, const char *name);
/* Append the mixtures of n [B, N, D] with the rows before; out [mixtures]. */
void token_shift(builder *b, int layer, const char *prefix, value n, int mixtures, value *out);

#endif
