/* optimizer.h - the optimiser of a run, of any kind, over the trained part of a model's flat arena.
 *
 * Gradients and (when several micro-batches make a step) their mean are vectors laid out like that part, so the
 * optimiser is two plans of a few ops in all and depends on no parameter's name. Its kind (optimizer_kind.h) says what
 * it keeps between steps and how it updates. One step:
 *
 *   optimizer_begin
 *   per micro-batch: gradients written to optimizer_gradients; run optimizer_accumulate_plan
 *   optimizer_prepare(lr); run optimizer_update_plan; optimizer_finish
 *
 * The plans are handed out so that the trainer can run them node by node. The node that
 * changes the weights is the last of the update plan. */
#ifndef ENGINE_TRAIN_OPTIMIZER_H
#define ENGINE_TRAIN_OPTIMIZER_H

#include "engine/model/model.h"
#include "engine/train/trainer.h"

typedef struct optimizer optimizer;

/* All states zero. Borrows m, whose arena it updates, and its bf16 copy if there is one by now.
 * STATUS_UNSUPPORTED: the kind does not keep such a copy. */
status optimizer_new(optimizer **out, model *m, const train_options *o, error *err);
void optimizer_free(optimizer *o);

/* Where a training plan writes its gradients. */
float *optimizer_gradients(const optimizer *o);
/* What the update reads: these, or their mean over the step's micro-batches. */
float *optimizer_step_gradients(const optimizer *o);
/* Adds the gradients to their mean over the step; NULL when a step is one micro-batch. */
plan *optimizer_accumulate_plan(const optimizer *o);
/* How much those that it adds next count, beside a mean of 1 over the step's micro-batches. Only where batches have
 * uneven numbers of labels (train_options_uneven); elsewhere all count 1. */
status optimizer_weigh(optimizer *o, float weight);
plan *optimizer_update_plan(const optimizer *o);

/* Forget what was gathered. */
status optimizer_begin(optimizer *o);
status optimizer_prepare(optimizer *o, double learning_rate);
/* *norm: of the gradients, before clipping. When it is not finite nothing was updated. */
status optimizer_finish(optimizer *o, double *norm);
/* The same for a caller that has read the norm's square, from where the update leaves it on the device. It has to be
 * before the next optimizer_prepare. */
const float *optimizer_norm2(const optimizer *o);
double optimizer_count(optimizer *o, float norm2);
/* Where the mean of the micro-batches' own squared norms is left on the device; NULL without gradient_noise. */
const float *optimizer_small2(const optimizer *o);

/* Updates made so far. */
int64_t optimizer_updates(const optimizer *o);
void optimizer_set_updates(optimizer *o, int64_t updates);

/* The name of its kind, and by what its states are measured (optimizer_kind.h); NULL: no job takes them over. */
const char *optimizer_name(const optimizer *o);
const char *optimizer_measure(const optimizer *o);
/* The i-th vector that it keeps between steps: its name, NULL past the last one, and how many numbers it has. */
const char *optimizer_state_name(const optimizer *o, int i);
int64_t optimizer_state_floats(const optimizer *o, int i);
/* Copy it out of and into the device. */
status optimizer_download(const optimizer *o, int i, float *state);
status optimizer_upload(optimizer *o, int i, const float *state);

#endif
