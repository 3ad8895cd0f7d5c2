/* op_trial.h - is a backend's kernel the op it claims to be?
 *
 * Functions return false and print what differed. */
#ifndef TESTS_UNIT_SUPPORT_OP_TRIAL_H
#define TESTS_UNIT_SUPPORT_OP_TRIAL_H

#include "engine/tensor/backend.h"
#include "tests/unit/support/op_cases.h"

/* Run the case on `reference` and on `b` and compare every output and every input that
 * is updated in place. On b also: each allowed overwriting of an input, each set of
 * unwanted outputs, guards around every tensor and the scratch, inputs unchanged. */
bool op_trial_matches(const op_case *c, backend *reference, backend *b);

/* Gradients that graph_backward gives, against central differences of the forward, both
 * on b. A case without `step` passes. */
bool op_trial_gradient(const op_case *c, backend *b);

#endif
