/* attend.h - attentions without their projections, for mixers that share them. Equations and parameters: mixer.h. */
#ifndef ENGINE_MODEL_MIXERS_ATTEND_H
#define ENGINE_MODEL_MIXERS_ATTEND_H

#include "engine/model/mixers/mixer.h"

/* The two rounds of mixer_additive over its n, q, k and v [B, N, D] -> y. Parameters: attn_proj, query_attn,
 * key_attn, and mid_norm, which the caller adds. */
void additive_rounds_parameters(const additive_options *o, const char *prefix, parameter_list *list);
void additive_rounds_states(const additive_options *o, int layer, state_list *list);
value additive_rounds(builder *b, const additive_options *o, int layer, const char *prefix, value n, value q, value k,
                      value v);

/* A of mixer_linear over q, k and v [B, N, D]. */
void linear_states(const linear_options *o, int layer, state_list *list);
value linear_attend(builder *b, const linear_options *o, int layer, value q, value k, value v);

#endif
