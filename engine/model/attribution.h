/* attribution.h - a score of a forward as a sum of signed parts, one for each token.
 *
 * The score is Σ_v c_v z_v of the logits z that the forward computes, one row for each sequence, with coefficients c
 * that the caller chooses when z is known (PORT_COEFFICIENTS): 1 for a token and 0 else gives its logit; 1 and -1 the
 * difference of two; 1 - p and -p with the probabilities p the logit above the model's expectation of it.
 *
 * ATTRIBUTION_FROZEN: the logits are a sum of terms, word vectors, position vectors and biases, each multiplied by
 * matrices, if the deviations of the norms, the weights of the attention, the factor f(x) / x of each nonlinearity f,
 * and one factor of each product in a gate are taken as constants (graph_pull_back). The parts are these terms' shares:
 *
 *   words[j] + positions[j] + biases[j], summed over the tokens j, + last + head = score
 *
 * with head those biases that stand behind what the head reads and the vector of a row that is no token's, and last
 * those of the row's token behind builder_needed_rows, which belong to its `biases`. The sum is exact for every share
 * of the gates, but for rounding, and that the products of int8 weights also round what they multiply.
 *
 * ATTRIBUTION_GRADIENT: words[j] is the gradient of the score at token j's word vector times the vector before it was
 * multiplied by PORT_FACTOR (at 1: gradient x input; its mean over factors from 0 to 1: integrated gradients);
 * attention[j] the sum over rounds of attention of ⟨Σ_i p_ij ∂score/∂y_i, x_j⟩, where y_i = Σ_j p_ij x_j.
 *
 * With a source its tokens have parts of the same kinds (PORT_SOURCE_WORD_PARTS …), and PORT_FACTOR multiplies their
 * word vectors too. The number of a source's rows must differ from that of the tokens' rows: STATUS_INVALID.
 *
 * The forward's nodes come first in the plan: after the node that makes the logits (plan_node_of) they can
 * be read and the coefficients written. */
#ifndef ENGINE_MODEL_ATTRIBUTION_H
#define ENGINE_MODEL_ATTRIBUTION_H

#include "engine/model/builder.h"

/* Append what spec->attribution asks for, behind the forward. */
void attribution_append(builder *b);

#endif
