/* optimizer.h - the optimiser of a run, of any kind, over the trained part of a model's flat arena.
 *
 * Gradients and their mean (if a step has several micro-batches) are vectors in the layout of that part. The optimiser
 * is therefore two plans of a few ops and depends on no parameter's name. Its kind (optimizer_kind.h) states what it
 * keeps between steps and how it updates. One step:
 *
 *   optimizer_begin
 *   per micro-batch: gradients written to optimizer_gradients; run optimizer_accumulate_plan
 *   optimizer_prepare(lr); run optimizer_update_plan; optimizer_finish
 *
 * The trainer runs the plans node by node. The node that changes the weights is the last of the update plan.
 *
 * With train_options.shard_optimizer the weights are divided into one share for each rank (ranks.h). The optimiser has
 * the states of this rank's share and updates only that; the norm and the mean are those of all gradients. After the
 * update the caller exchanges the shares and calls optimizer_exchanged. Kinds that compute with whole tensors or rows
 * are divided between parameters, the others into equal shares. The update of a number depends on no other share, so
 * its bits are those of an optimiser with a single share. */
#ifndef ENGINE_TRAIN_OPTIMIZER_H
#define ENGINE_TRAIN_OPTIMIZER_H

#include "engine/model/model.h"
#include "engine/train/trainer.h"

typedef struct optimizer optimizer;

/* Create with all states zero. Borrows m; updates its arena, and its bf16 copy if it has one. STATUS_UNSUPPORTED: the
 * kind does not maintain such a copy. */
status optimizer_new(optimizer **out, model *m, const train_options *o, error *err);
void optimizer_free(optimizer *o);

/* Return where a training plan writes its gradients. */
float *optimizer_gradients(const optimizer *o);
/* Return what the update reads: the gradients, or their mean over the step's micro-batches. */
float *optimizer_step_gradients(const optimizer *o);
/* Return the plan that adds the gradients to their mean; NULL if a step is one micro-batch. */
plan *optimizer_accumulate_plan(const optimizer *o);
/* Set the weight of the next gradients in the mean; weights average 1 over a step. Only for batches with uneven
 * numbers of labels (train_options_uneven); otherwise all weights are 1. */
status optimizer_weigh(optimizer *o, float weight);
plan *optimizer_update_plan(const optimizer *o);

/* Return the bounds of the shares in the arena, one more than ranks; rank i has the numbers from the i-th to before the
 * next. NULL: the optimiser is not sharded. */
const int64_t *optimizer_shares(const optimizer *o);
/* Update what depends on weights that other ranks have written: the bf16 copy. */
status optimizer_exchanged(optimizer *o);
/* Gather the states of all shares in the host's memory. All ranks call it after the same update, until *complete.
 * Never waits for other ranks. What is gathered lasts until the next optimizer_prepare. */
status optimizer_gather(optimizer *o, bool *complete);
/* True if all states can be downloaded: the optimiser is not sharded, or they have been gathered. */
bool optimizer_is_whole(const optimizer *o);

/* Reset the mean. */
status optimizer_begin(optimizer *o);
status optimizer_prepare(optimizer *o, double learning_rate);
/* *norm: norm of the gradients before clipping. If it is not finite, nothing was updated. */
status optimizer_finish(optimizer *o, double *norm);
/* Finish for a caller that has read the squared norm from its device address. Must precede the next
 * optimizer_prepare. */
const float *optimizer_norm2(const optimizer *o);
double optimizer_count(optimizer *o, float norm2);
/* Return the device address of the mean of the micro-batches' squared norms; NULL without gradient_noise. */
const float *optimizer_small2(const optimizer *o);

/* Return the number of updates made. */
int64_t optimizer_updates(const optimizer *o);
void optimizer_set_updates(optimizer *o, int64_t updates);

/* Return the name of the kind, and the measure of its states (optimizer_kind.h); NULL: no job takes them over. */
const char *optimizer_name(const optimizer *o);
const char *optimizer_measure(const optimizer *o);
/* Return the name of the i-th vector kept between steps, NULL past the last, and its length over all shares. */
const char *optimizer_state_name(const optimizer *o, int i);
int64_t optimizer_state_floats(const optimizer *o, int i);
/* Copy that vector from and to the device, over all shares. A download needs optimizer_is_whole; an upload takes this
 * rank's share. */
status optimizer_download(const optimizer *o, int i, float *state);
status optimizer_upload(optimizer *o, int i, const float *state);

#endif
