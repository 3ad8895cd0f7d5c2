/* op_trial.h - check a backend's kernel against the definition of its op.
 *
 * Functions return false and print the difference. */
#ifndef TESTS_UNIT_SUPPORT_OP_TRIAL_H
#define TESTS_UNIT_SUPPORT_OP_TRIAL_H

#include "engine/tensor/backend.h"
#include "tests/unit/support/op_cases.h"

/* Run the case on `reference` and on `b` and compare every output and every input that is updated in place. On b, also
 * try each allowed overwriting of an input and sets of unrequested outputs. Check guards around every tensor and the
 * scratch, and that inputs are unchanged.
 *
 * A case in bf16 (op_cases_bf16) needs a reference that computes in bf16: bf16_backend_new around the reference
 * kernels. */
bool op_trial_matches(const op_case *c, backend *reference, backend *b);
/* As op_trial_matches, for kernels that round terms before they add them up: results may be off by a further
 * `of_largest` times the largest number of the result. */
bool op_trial_near(const op_case *c, backend *reference, backend *b, double of_largest);

/* Compare the gradients of graph_backward with central differences of the forward, both on b. A case without `step`
 * passes. */
bool op_trial_gradient(const op_case *c, backend *b);

#endif
