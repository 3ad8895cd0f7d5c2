/* training.h - steps of training a golden set's model on one batch, for all trained weights, by Adam, AdamW or
 * op_normalized_sgd.
 *
 * Reads the recipe: an object "recipe", "adam" or "optimizer" of the config, or else the config itself, with
 * "weight_decay", "clip", "adam_eps" ("eps" within an object) and "betas". The rates of the steps are a tensor lr [T],
 * or the number "lr" of the recipe. The number of steps is then "steps" of the recipe or the number of the set's losses.
 *
 * Values: loss [T], which a set may call losses, and grad_norm [T]: both of the weights before each step, the norm
 * before clipping. If the set asks for them, the weights after t steps as w{t}.NAME.
 *
 *   training t = {.params = …};                         defaults of the recipe
 *   training_read(g, &t, &err);
 *   training_begin(g, model, &t, &err);
 *   golden_backward_into(g, model, &spec, t.gradients, &t.backward, &err), and its inputs
 *   training_run(g, &t, &err); */
#ifndef TESTS_GOLDEN_TRAINING_H
#define TESTS_GOLDEN_TRAINING_H

#include "tests/golden/golden.h"
#include "engine/tensor/ops.h"

typedef struct training {
	adamw_params params;
	normalized_sgd_params normalized; /* with by_norm, in place of params */
	bool by_norm;
	float rate;
	int64_t count;
	const float *rates; /* [count] */
	const model *model;
	float *gradients;  /* laid out like the trained part of the model's arena */
	float *statistics; /* with by_norm: of the rows of all trained parameters (model_row_spans) */
	plan *backward;    /* writes them */
	plan *update;
	value hyper, norm2;
} training;

/* True if the set has a weight after some steps. */
bool training_is_asked(const golden *g);
/* Read the recipe; *t has the defaults. */
status training_read(golden *g, training *t, error *err);
/* Memory for gradients, and moments of 0. */
status training_begin(golden *g, const model *m, training *t, error *err);
/* One step of the count, the i-th from 0, which changes the model's weights: the loss before it, and the norm of its
 * gradients. */
status training_step(training *t, int64_t i, float *loss, float *norm);
/* All steps. */
status training_run(golden *g, training *t, error *err);

#endif
