/* attribution.h - the score of a forward as a sum of signed parts, one for each token.
 *
 * The score is Σ_v c_v z_v over the logits z, with one row for each sequence. The caller chooses the coefficients c
 * once z is known (PORT_COEFFICIENTS). A single 1 gives the logit of a token; 1 and -1 the difference of two; 1 - p and
 * -p, with the probabilities p, the logit above the model's expectation.
 *
 * ATTRIBUTION_FROZEN: the logits are a sum of terms (word vectors, position vectors and biases), each multiplied by
 * matrices, if certain factors are constants. These are the deviations of the norms, the attention weights, the
 * factor f(x) / x of each nonlinearity f, and one factor of each product in a gate (graph_pull_back). The parts are the
 * shares of these terms:
 *
 *   words[j] + positions[j] + biases[j], summed over the tokens j, + last + head = score
 *
 * head is the share of biases after the row that the head reads, and of a row that belongs to no token. last is the
 * share of biases of the row's token after builder_needed_rows, which belong to its `biases`. The sum is exact for
 * every share of the gates, up to rounding; products of int8 weights also round their inputs.
 *
 * ATTRIBUTION_GRADIENT: the forward reads b + PORT_FACTOR · (x_j - b) in place of the word vector x_j of token j, where
 * b is PORT_BASELINE. words[j] is the gradient of the score there times x_j - b. Factor 1 and b = 0 give gradient ×
 * input; the mean over factors from 0 to 1 gives integrated gradients. A round of attention pools y_i = Σ_j p_ij x_j;
 * attention[j] is ⟨Σ_i p_ij ∂score/∂y_i, x_j⟩, summed over the rounds.
 *
 * The tokens of a source have parts of the same kinds (PORT_SOURCE_WORD_PARTS …), and PORT_FACTOR multiplies their word
 * vectors; their baseline is 0. The numbers of rows of source and tokens must differ: STATUS_INVALID.
 *
 * The forward's nodes come first in the plan. After the node that computes the logits (plan_node_of) they can be read
 * and the coefficients written. */
#ifndef ENGINE_MODEL_ATTRIBUTION_H
#define ENGINE_MODEL_ATTRIBUTION_H

#include "engine/model/builder.h"

/* Append what spec->explain.attribution requests, after the forward. */
void attribution_append(builder *b);

#endif
