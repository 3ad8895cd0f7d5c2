/* evaluation.h - one run of a causal language model over one batch. */
#ifndef TESTS_GOLDEN_EVALUATION_H
#define TESTS_GOLDEN_EVALUATION_H

#include "tests/golden/batch.h"
#include "tests/golden/results.h"

typedef struct evaluation_spec {
	bool gradients, recurrent, loss_only, bf16;
	double smoothing;
	long chunk; /* tokens read at a time in the recurrent form; 0: one */
	position_policy policy;
} evaluation_spec;

/* Adds to `out`, which starts empty: logits [B,N,V], layers.L.R.{score,log_normalizer,pooled} of an architecture with
 * rounds, loss, count and, if asked for, grad.NAME of every parameter, in a checkpoint's layout. Errors as of
 * model_plan. */
status evaluation_run(results *out, model *m, const batch *in, const evaluation_spec *spec, error *err);

#endif
