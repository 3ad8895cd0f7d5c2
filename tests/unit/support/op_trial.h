/* op_trial.h - is a backend's kernel the op it claims to be?
 *
 * Functions return false and print what differed. */
#ifndef TESTS_UNIT_SUPPORT_OP_TRIAL_H
#define TESTS_UNIT_SUPPORT_OP_TRIAL_H

#include "engine/tensor/backend.h"
#include "tests/unit/support/op_cases.h"

/* Run the case on `reference` and on `b` and compare every output and every input that
 * is updated in place. On b also: each allowed overwriting of an input, each set of
 * unwanted outputs, guards around every tensor and the scratch, inputs unchanged. A case in bf16 (op_cases_bf16) wants
 * a reference that computes in it: bf16_backend_new around the reference kernels. */
bool op_trial_matches(const op_case *c, backend *reference, backend *b);
/* The same, for kernels that round on the way what they sum up afterwards: further off by that share of the largest
 * number of a result. */
bool op_trial_near(const op_case *c, backend *reference, backend *b, double of_largest);

/* Gradients that graph_backward gives, against central differences of the forward, both
 * on b. A case without `step` passes. */
bool op_trial_gradient(const op_case *c, backend *b);

#endif
