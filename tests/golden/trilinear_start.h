/* trilinear_start.h - the start's node of 3Lin's texts. It sees nothing, so its values follow from its row of E. They
 * are computed here in double from the weights as the model reads them. */
#ifndef TESTS_GOLDEN_TRILINEAR_START_H
#define TESTS_GOLDEN_TRILINEAR_START_H

#include "tests/golden/trilinear_set.h"

/* Compute the node's state, which is the same before and after all layers: out [D]. */
status trilinear_start_state(const trilinear_texts *t, double *out, error *err);
/* Into the start's row of every text, of values [nodes, width]: N(state), as the layers read it; the product of that
 * with the parameter `matrix`, or N of it, as attention reads it; the natural logits. */
status trilinear_start_normed(const trilinear_texts *t, float *values, error *err);
status trilinear_start_product(const trilinear_texts *t, const char *matrix, bool normal, float *values, error *err);
status trilinear_start_logits(const trilinear_texts *t, float *values, error *err);
/* The steps [nodes] of the codes of keys, whose matrix is `matrix`, from normed [nodes, D]. They are no output of a
 * model. */
status trilinear_start_key_steps(const trilinear_texts *t, const char *matrix, const float *normed, float *steps,
                                 error *err);

#endif
