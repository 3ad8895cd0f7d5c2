/* optimizer.h - AdamW over a model's flat arena.
 *
 * Gradients, both moments and (when several micro-batches make a step) their mean are
 * vectors laid out like the model's arena, so the optimiser is two plans of three ops in all and
 * knows no parameter by name. One step:
 *
 *   optimizer_begin
 *   per micro-batch: gradients written to optimizer_gradients; run optimizer_gather_plan
 *   optimizer_prepare(lr); run optimizer_update_plan; optimizer_finish
 *
 * The plans are handed out so that the trainer can run them node by node. The node that
 * changes the weights is the last of the update plan. */
#ifndef ENGINE_TRAIN_OPTIMIZER_H
#define ENGINE_TRAIN_OPTIMIZER_H

#include "engine/model/model.h"
#include "engine/train/trainer.h"

typedef struct optimizer optimizer;

/* Moments zero. Borrows m, whose arena it updates, and its bf16 copy if there is one by now. */
status optimizer_new(optimizer **out, model *m, const train_options *o, error *err);
void optimizer_free(optimizer *o);

/* Where a training plan writes its gradients. */
float *optimizer_gradients(const optimizer *o);
/* Adds the gradients to their mean over the step; NULL when a step is one micro-batch. */
plan *optimizer_gather_plan(const optimizer *o);
plan *optimizer_update_plan(const optimizer *o);

/* Forget what was gathered. */
status optimizer_begin(optimizer *o);
status optimizer_prepare(optimizer *o, double learning_rate);
/* *norm: of the gradients, before clipping. When it is not finite nothing was updated. */
status optimizer_finish(optimizer *o, double *norm);
/* The same for who has read the norm's square, from where the update leaves it on the device. It has to be before the
 * next optimizer_prepare. */
const float *optimizer_norm2(const optimizer *o);
double optimizer_count(optimizer *o, float norm2);

/* Updates made so far: Adam's t. */
int64_t optimizer_updates(const optimizer *o);
/* Copy the moments out of and into the device; vectors of model_arena_floats. */
status optimizer_download(const optimizer *o, float *m, float *v);
status optimizer_upload(optimizer *o, const float *m, const float *v, int64_t updates);

#endif
