/* gradient_sum.h - sums the gradients of a step over the ranks of a run (ranks.h), and exchanges the weights that each
 * rank has updated.
 *
 * The arena of gradients is cut between parameters into buckets of about GRADIENT_SUM_FLOATS numbers. The sum of a
 * bucket starts when the backward has passed the last node that writes into it. In steps of one micro-batch it
 * therefore overlaps with the computation of earlier layers. The loss is summed, too, and the ranks' wishes to stop
 * and to save (ranks.h). One step:
 *
 *   gradient_sum_begin;
 *   gradient_sum_passed after some nodes of the backward, or never;
 *   gradient_sum_rest;
 *   gradient_sum_poll until it is complete;
 *   after an update by shares: gradient_sum_exchange; gradient_sum_exchanged until it is complete
 *
 * If the ranks' devices are a group, the devices sum, and nodes have passed when they are issued; the loss is summed by
 * the host. The device then waits for the host between a batch and its update, since the host waits for the losses of
 * all ranks. Otherwise the gradients of a device are copied to the host and back. */
#ifndef ENGINE_TRAIN_GRADIENT_SUM_H
#define ENGINE_TRAIN_GRADIENT_SUM_H

#include "engine/model/model.h"
#include "engine/train/ranks.h"

enum { GRADIENT_SUM_FLOATS = 1 << 18 };

typedef struct gradient_sum gradient_sum;

/* Create the sums. gradients: on the model's device, in the layout of the trained part of its arena. backward: the plan
 * whose nodes write them; NULL: they are written otherwise and complete in gradient_sum_rest. Borrows all.
 * STATUS_NOMEM. */
status gradient_sum_new(gradient_sum **out, ranks *r, const model *m, const plan *backward, float *gradients,
                        error *err);
void gradient_sum_free(gradient_sum *s);

/* Return the next node, after `node` and at most `end`, before which a device that sums must be told which nodes have
 * passed. The part of the backward up to it can be issued at once. */
int gradient_sum_next(const gradient_sum *s, int node, int end);

/* Start a step. share: factor of this rank's gradients in the sum. */
void gradient_sum_begin(gradient_sum *s, float share);
/* Report that all nodes before `node` have run (or, for a device that sums, have been issued). Starts the sums of what
 * they have written and advances the sums in progress. */
status gradient_sum_passed(gradient_sum *s, int node);
/* All gradients are written: start the remaining sums and that of `loss`. */
status gradient_sum_rest(gradient_sum *s, float loss);
/* *complete: the gradients in device memory are the sums, and *loss is the sum of the losses. */
status gradient_sum_poll(gradient_sum *s, bool *complete, float *loss);

/* Start to copy each rank's share of the trained weights to all: rank i's are weights[at[i]] to weights[at[i + 1] - 1],
 * on the model's device. Borrows both until it is complete, and the gradients' copy in host memory, if there is one. */
status gradient_sum_exchange(gradient_sum *s, float *weights, const int64_t *at);
/* *complete: the weights in device memory are those of all ranks. */
status gradient_sum_exchanged(gradient_sum *s, bool *complete);

#endif
