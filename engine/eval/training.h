/* training.h - steps of training a golden set's model on one batch, on all weights that are trained, by Adam or AdamW
 * or by op_normalized_sgd.
 *
 * Read: the recipe, an object "recipe", "adam" or "optimizer" of the config, or else the config itself, with
 * "weight_decay", "clip", "adam_eps" (in an object "eps" too), "betas"; the rates of the steps, a tensor lr [T] or a
 * number "lr" of the recipe for as many steps as it has in "steps" or the set has losses.
 *
 * Values: loss [T], which a set may call losses, and grad_norm [T], of the weights before each step, the norm before it
 * is clipped; and as the set asks for them, in names like w5.NAME, weights after so many steps.
 *
 *   training t = {.params = …};                         what a recipe leaves out
 *   training_read(g, &t, &err);
 *   training_begin(g, model, &t, &err);
 *   golden_backward_into(g, model, &spec, t.gradients, &t.backward, &err), and its inputs
 *   training_run(g, &t, &err); */
#ifndef ENGINE_EVAL_TRAINING_H
#define ENGINE_EVAL_TRAINING_H

#include "engine/eval/golden.h"
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

/* Does the set have a weight after some steps? */
bool training_is_asked(const golden *g);
/* The recipe, where it differs from what *t has. */
status training_read(golden *g, training *t, error *err);
/* Memory for gradients, and moments of 0. */
status training_begin(golden *g, const model *m, training *t, error *err);
/* One step of the count, the i-th from 0, which changes the model's weights: the loss before it, and the norm of its
 * gradients. */
status training_step(training *t, int64_t i, float *loss, float *norm);
/* All steps. */
status training_run(golden *g, training *t, error *err);

#endif
